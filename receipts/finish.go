package receipts

import (
	"encoding/json"

	"github.com/jackc/pgx/v5/pgtype"
)

// Attempt names the one attempt that may move a call on: a statement with another number or worker is refused.
type Attempt struct {
	CallID   string
	Number   int
	WorkerID string
}

// Final is all that a receipt needs.
type Final struct {
	Attempt
	Outcome
	Effects         json.RawMessage
	RegistryVersion string
}

// FinishSQL ends a call: status, receipt and last event in one statement. A handler's transaction runs it last, together
// with its commit; else it is a transaction of its own. Its error is [IsNotHeld] when the attempt no longer holds the call.
const FinishSQL = "select gem.finish($1, $2, $3, $4, $5, $6, $7, $8)::text"

// Args are the arguments of [FinishSQL]. JSON goes as text: through a pooler Postgres must not have to guess.
func (f Final) Args() []any {
	return []any{f.CallID, f.Number, f.WorkerID, string(f.Status), string(f.Result), string(f.Effects), f.RegistryVersion,
		pgtype.Text{String: f.ReplayOf, Valid: f.ReplayOf != ""}}
}
