// Package comms is the domain comms: outgoing mails and text messages, in email.go and sms.go, and notes on
// conversations.
package comms

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
)

// Comms has the tools of the domain.
//
// A message has a row in comms_log before it is sent. If a worker dies afterwards, a later attempt of the same call
// reads that row, because the receipt is missing: a message with the status `sent` is not sent again.
type Comms struct {
	config config
	db     handlers.DB // outside the call's transaction
}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain comms. Without a mail server and a Twilio account, its sending tools end as not_configured.
func Domain() handlers.Domain {
	c := &Comms{}
	return handlers.Domain{
		Remote: []string{"SendEmail", "SendSMS"},
		Tools:  c,
		Config: &c.config,
		Open: func(env handlers.Env) error {
			c.db = env.Pool
			return nil
		},
		Tables: tables,
		Grants: []string{"select, insert, update on public.comms_log"},
	}
}

// logTimeout is the time to log a result, even after the call's own time is over.
const logTimeout = 5 * time.Second

// message is a row of comms_log.
type message struct {
	channel    string // email, sms
	recipient  string
	subject    string // of a mail
	body       string
	contextRef any
	templateID string
}

// send logs the message, delivers it and logs the result. It returns the id of the row. deliver returns the service's
// id of the message. It returns an error only if the service did not accept the message, and ignores later errors.
func (c *Comms) send(ctx context.Context, call *handlers.Call, m message,
	deliver func() (messageID string, err error)) (string, error) {
	var id, status, messageID string
	var action receipts.Action
	// A row with the status sent does not change; any other belongs to an earlier attempt of this call, which has ended.
	err := c.db.QueryRow(ctx, `insert into public.comms_log as l (call_id, channel, recipient, subject, body, context_ref,
		template_id, status)
		values ($1, $2, $3, $4, $5, $6, $7, 'sending')
		on conflict (call_id) where call_id is not null do update
			set status = case when l.status = 'sent' then l.status else 'sending' end, updated_at = now()
		returning id::text, status, coalesce(message_id, ''), case when xmax = 0 then 'insert' else 'update' end`,
		call.ID, m.channel, m.recipient, table.Null(m.subject), m.body, m.contextRef, table.Null(m.templateID)).
		Scan(&id, &status, &messageID, &action)
	if err != nil {
		err = fmt.Errorf("the message was not sent, since it could not be written to comms_log: %w", err)
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
			return "", err
		}
		return "", handlers.Transient(err)
	}
	call.Wrote("comms_log", action, id)
	if status == "sent" {
		// An earlier attempt of this call sent it, and left no receipt: it is an effect of this call.
		call.Sent(m.channel, m.recipient, messageID)
		return id, nil
	}

	sent, err := deliver()
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), logTimeout)
	defer cancel()
	if err != nil {
		// Best effort: the delivery's error counts. A row that another attempt has set to sent stays.
		_, _ = c.db.Exec(after,
			`update public.comms_log set status = 'failed', error = $2, updated_at = now() where id = $1 and status <> 'sent'`,
			id, receipts.Shorten(err.Error(), 1000))
		return "", err
	}
	call.Sent(m.channel, m.recipient, sent)
	// The message is out, so the call has succeeded even if the log cannot be updated.
	_, _ = c.db.Exec(after,
		`update public.comms_log set status = 'sent', message_id = $2, sent_at = now(), error = null, updated_at = now()
		where id = $1`, id, sent)
	return id, nil
}

// LogCallOutcome is the outcome of a phone call.
type LogCallOutcome struct {
	EntityID   string          `json:"entity_id"` // of an entity, of a lead, or of an object that GEM does not know
	Outcome    string          `json:"outcome"`
	Notes      string          `json:"notes,omitempty"`
	ContextRef json.RawMessage `json:"context_ref,omitempty"`
}

// LoggedCall names the new interaction.
type LoggedCall struct {
	InteractionID string `json:"interaction_id"`
	LinkedTo      string `json:"linked_to"` // entity, lead or empty, by the object with the id
}

// LogCallOutcome is comms.log_call_outcome: an interaction of the type call, whose details have the input. The domain
// entity writes it. A call that happened is logged, regardless of the other party.
func (*Comms) LogCallOutcome(ctx context.Context, tx handlers.Tx, call *handlers.Call,
	in LogCallOutcome) (out LoggedCall, err error) {
	var id *string
	if value.IsUUID(in.EntityID) {
		id = &in.EntityID
	}
	err = tx.QueryRow(ctx, "select id::text, linked_to from gem_entity.log_call($1, $2, $3, $4)",
		id, "Call: "+strings.ReplaceAll(in.Outcome, "_", " "), in, call.ID).Scan(&out.InteractionID, &out.LinkedTo)
	if err == nil {
		call.Wrote("interactions", handlers.Insert, out.InteractionID)
	}
	return out, lacks(err, "entity", "interactions")
}

// CreateFollowupTaskFromMessage is a task that follows from a message.
type CreateFollowupTaskFromMessage struct {
	Title      string          `json:"title"`
	ContextRef json.RawMessage `json:"context_ref"` // the message, or its subject
	DueAt      *value.Time     `json:"due_at"`
}

// TaskRef names the new task.
type TaskRef struct {
	TaskID string `json:"task_id"`
}

// CreateFollowupTaskFromMessage is comms.create_followup_task_from_message. The task is business, unless the type of
// its context is personal. The domain os writes it.
func (*Comms) CreateFollowupTaskFromMessage(ctx context.Context, tx handlers.Tx, call *handlers.Call,
	in CreateFollowupTaskFromMessage) (
	TaskRef, error) {
	id, err := table.Insert(ctx, tx, call, "tasks", `select gem_os.create_task($1,
		case when $2::jsonb ->> 'type' = 'personal' then 'personal' else 'business' end, null, $3, $2, 'normal', $4)::text`,
		in.Title, table.NullJSON(in.ContextRef), in.DueAt, call.ID)
	return TaskRef{TaskID: id}, lacks(err, "os", "tasks")
}

// lacks converts the error of a database without another domain's function into a [handlers.NotConfigured].
func lacks(err error, domain, rows string) error {
	var pgErr *pgconn.PgError
	// undefined_function, invalid_schema_name
	if !errors.As(err, &pgErr) || pgErr.Code != "42883" && pgErr.Code != "3F000" {
		return err
	}
	return &handlers.NotConfigured{
		Reason:      fmt.Sprintf("The database has no tables of the domain %s, which keeps %s.", domain, rows),
		RequiredEnv: []string{},
		NextSteps: []string{fmt.Sprintf("Add a tool of the domain %s to the registry (and the domain to a program of "+
			"your own), run `gem migrate`, and make the call again.", domain)},
	}
}
