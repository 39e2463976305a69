package view

import (
	"context"
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers/value"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Matches lists the things that a text names exactly. It may be several, and is empty if there is none.
type Matches struct {
	CallID    string `json:"call_id,omitempty"`    // the call of that id, or whose receipt has it
	ReceiptID string `json:"receipt_id,omitempty"` // if the text is a receipt's id
	Session   string `json:"session,omitempty"`
	Key       string `json:"key,omitempty"`  // a key that a call holds, waits for or succeeded with
	Tool      string `json:"tool,omitempty"` // of the registry in force
	Caller    string `json:"caller,omitempty"`
}

// IsID reports whether a text has the form of a call's id. Postgres rejects any other.
func IsID(text string) bool { return value.IsUUID(text) }

// Find returns the things that a text names: a call's id, a receipt's id, a session, a computed key, a tool or a
// caller.
func Find(ctx context.Context, db DB, text string) (found Matches, err error) {
	if text = strings.TrimSpace(text); text == "" || len(text) > 2000 || !valid(text) {
		return found, nil
	}
	if IsID(text) {
		err = db.QueryRow(ctx, `select (select c.id::text from gem.calls c where c.id = $1::text::uuid),
			(select r.call_id::text from gem.receipts r where r.id = $1::text::uuid)`, text).
			Scan((*zeronull.Text)(&found.CallID), (*zeronull.Text)(&found.ReceiptID))
		if found.ReceiptID != "" {
			found.CallID, found.ReceiptID = found.ReceiptID, strings.ToLower(text)
		}
	}
	if err == nil {
		var session, key, tool, caller bool
		err = db.QueryRow(ctx, `select
			exists (select from gem.calls c where c.session_id = $1::text and c.status <> 'running')
				or exists (select from gem.calls c where c.status = 'running' and c.session_id = $1::text),
			exists (select from gem.receipts r where r.idempotency_key = $1::text and r.status = 'succeeded'
				and r.replay_of is null)
				or exists (select from gem.calls c where c.computed_key = $1::text
					and (c.status in ('running', 'queued') or c.status = 'waiting' and c.waits_for <> 'key'))
				or exists (select from gem.calls c where c.status = 'waiting' and c.waits_for = 'key'
					and c.computed_key = $1::text),
			exists (select from gem.tools t where t.name = $1::text),
			exists (select from gem.calls c where c.created_by = $1::text)`, text).Scan(&session, &key, &tool, &caller)
		for is, name := range map[*string]bool{&found.Session: session, &found.Key: key, &found.Tool: tool,
			&found.Caller: caller} {
			if name {
				*is = text
			}
		}
	}
	if err != nil {
		return Matches{}, fmt.Errorf("find what a text names: %w", err)
	}
	return found, nil
}
