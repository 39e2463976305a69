package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Comms is the domain comms: messages that leave, in comms_email.go and comms_sms.go, and what is noted of conversations.
//
// A message has a row in comms_log before it is sent. That row, and not the receipt, is what a later attempt of the same
// call looks at when a worker died in between: one that says `sent` is not sent again.
type Comms struct {
	db     DB
	smtp   SMTP
	twilio Twilio
}

func newComms(d Deps) Comms { return Comms{db: d.DB, smtp: d.SMTP, twilio: d.Twilio} }

// logTimeout is for what is written after a message left, also when the call's own time is over.
const logTimeout = 5 * time.Second

// message is a row of comms_log.
type message struct {
	channel    string // email, sms
	recipient  string
	subject    string // of a mail
	body       string
	contextRef json.RawMessage
	templateID string
}

// send logs the message, sends it and logs how that went. It returns the id of the row. deliver returns the id that the
// message has at its service, and nil when the service took it, whatever went wrong after that.
func (c Comms) send(ctx context.Context, call *Call, m message, deliver func() (messageID string, err error)) (string, error) {
	var id, status string
	var messageID *string
	var inserted bool
	// A row that says sent is left as it is; any other belongs to an earlier attempt of this call, which is over.
	err := c.db.QueryRow(ctx, `insert into comms_log as l (call_id, channel, recipient, subject, body, context_ref, template_id, status)
		values ($1, $2, $3, $4, $5, $6, $7, 'sending')
		on conflict (call_id) where call_id is not null do update
			set status = case when l.status = 'sent' then l.status else 'sending' end, updated_at = now()
		returning id::text, status, message_id, xmax = 0`,
		call.ID, m.channel, m.recipient, orNull(m.subject), m.body, orNullJSON(m.contextRef), orNull(m.templateID)).
		Scan(&id, &status, &messageID, &inserted)
	if err != nil {
		err = fmt.Errorf("the message was not sent, since it could not be written to comms_log: %w", err)
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
			return "", err
		}
		return "", Transient(err)
	}
	if inserted {
		call.Wrote("comms_log", Insert, id)
	} else {
		call.Wrote("comms_log", Update, id)
	}
	if status == "sent" {
		// Sent by an earlier attempt of this call, whose receipt was never written: it is an effect of this call.
		call.Sent(m.channel, m.recipient, deref(messageID))
		return id, nil
	}

	sent, err := deliver()
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), logTimeout)
	defer cancel()
	if err != nil {
		// Best effort: the error that counts is the one of the delivery. A row that another attempt has brought to sent stays.
		_, _ = c.db.Exec(after, `update comms_log set status = 'failed', error = $2, updated_at = now() where id = $1 and status <> 'sent'`,
			id, clip(err.Error(), 1000))
		return "", err
	}
	call.Sent(m.channel, m.recipient, sent)
	// The message is out, so the call has succeeded: a log that can not be brought up to date does not change that.
	_, _ = c.db.Exec(after, `update comms_log set status = 'sent', message_id = $2, sent_at = now(), error = null, updated_at = now()
		where id = $1`, id, sent)
	return id, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// foreign makes a text of another service fit for a message: short, valid, on one line, and without the secret, should the
// service have echoed it.
func foreign(s string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return clip(strings.TrimSpace(s), 500)
}

// LogCallOutcome notes how a phone call with an entity went.
type LogCallOutcome struct {
	EntityID   string          `json:"entity_id"`
	Outcome    string          `json:"outcome"`
	Notes      string          `json:"notes"`
	ContextRef json.RawMessage `json:"context_ref"`
}

// LogCallOutcome is comms.log_call_outcome: an interaction of the type call, whose details hold the input.
func (Comms) LogCallOutcome(ctx context.Context, tx Tx, call *Call, in LogCallOutcome) (InteractionAdded, error) {
	details, err := json.Marshal(struct {
		Outcome    string           `json:"outcome"`
		Notes      string           `json:"notes,omitempty"`
		ContextRef *json.RawMessage `json:"context_ref,omitempty"`
	}{in.Outcome, in.Notes, orNullJSON(in.ContextRef)})
	if err != nil {
		return InteractionAdded{}, fmt.Errorf("write the details: %w", err)
	}
	return addInteraction(ctx, tx, call, AddInteraction{
		EntityID:        in.EntityID,
		InteractionType: "call",
		Summary:         "Call: " + strings.ReplaceAll(in.Outcome, "_", " "),
		Details:         details,
	})
}

// CreateFollowupTaskFromMessage is a task that a message gave rise to.
type CreateFollowupTaskFromMessage struct {
	Title      string          `json:"title"`
	ContextRef json.RawMessage `json:"context_ref"` // the message, or what it is about
	DueAt      *Time           `json:"due_at"`
}

// CreateFollowupTaskFromMessage is comms.create_followup_task_from_message. The task is business, unless the type of its
// context is personal.
func (Comms) CreateFollowupTaskFromMessage(ctx context.Context, tx Tx, call *Call, in CreateFollowupTaskFromMessage) (TaskCreated, error) {
	var out TaskCreated
	err := tx.QueryRow(ctx, `insert into tasks (title, domain, due_at, context_ref, call_id)
		values ($1, case when $2::jsonb ->> 'type' = 'personal' then 'personal' else 'business' end, $3, $2, $4) returning id::text`,
		in.Title, orNullJSON(in.ContextRef), in.DueAt, call.ID).Scan(&out.TaskID)
	if err != nil {
		return TaskCreated{}, fmt.Errorf("insert the task: %w", err)
	}
	call.Wrote("tasks", Insert, out.TaskID)
	return out, nil
}
