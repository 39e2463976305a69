package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// KeyVerdict says what an attempt is to do with its idempotency key.
type KeyVerdict string

// The verdicts of [HoldKey].
const (
	KeyTaken KeyVerdict = "run"  // the attempt holds the key: no other call runs with it until this one ends
	KeyHit   KeyVerdict = "hit"  // the key succeeded before: repeat that receipt
	KeyBusy  KeyVerdict = "wait" // another call holds the key: this one waits for it, and is no longer the attempt's
)

// Key is the answer of [HoldKey]. ReceiptID and Result are those of the earlier receipt if Verdict is [KeyHit].
type Key struct {
	Verdict   KeyVerdict
	ReceiptID string
	Result    json.RawMessage
}

// HoldKey asks for a key on behalf of an attempt. If another call holds it, the call is put to wait in the same statement.
func HoldKey(ctx context.Context, db DB, a Attempt, key string) (k Key, err error) {
	err = db.QueryRow(ctx, "select verdict, receipt_id::text, result::text from gem.hold_key($1, $2, $3, $4)",
		a.CallID, a.Number, a.WorkerID, key).Scan(&k.Verdict, (*zeronull.Text)(&k.ReceiptID), &k.Result)
	return k, err
}
