package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Gate asks whether an attempt may run its call: it takes the key, and answers the checks of the rules.
type Gate struct {
	Key      string // empty for none
	KeyField string // as of [HoldKey], like Refuse
	Refuse   bool
	Checks   []rules.Check
	Version  string // of the rules
	// Again: an earlier attempt, or an earlier try of this one, may have been counted.
	Again    bool
	Deadline time.Duration // after the call was to run, when nobody needs to decide any more; 0: no such time
}

// Do takes the key and answers the checks, in one statement. Where the key ends the attempt, as its verdict says, answer has no outcome.
func (g Gate) Do(ctx context.Context, db DB, a Attempt) (k Key, answer rules.Answer, err error) {
	checks, err := json.Marshal(g.Checks)
	if err != nil {
		return k, answer, err
	}
	var met, approvals []byte
	var deadline *int64
	if g.Deadline > 0 {
		ms := g.Deadline.Milliseconds()
		deadline = &ms
	}
	err = db.QueryRow(ctx, `select verdict, receipt_id::text, result::text,
		case when receipt_id is not null then coalesce(gem.input_differs($1, receipt_id, $9, $10), false) else false end,
		outcome, at, turn, met::text, approvals::text
		from gem.gate($1, $2, $3, $4, $5, $6, $7, $8)`,
		a.CallID, a.Number, a.WorkerID, zeronull.Text(g.Key), string(checks), g.Version, g.Again, deadline, zeronull.Text(g.KeyField), g.Refuse).
		Scan(&k.Verdict, (*zeronull.Text)(&k.ReceiptID), &k.Result, &k.InputDiffers,
			(*zeronull.Text)(&answer.Outcome), (*zeronull.Timestamptz)(&answer.At), (*zeronull.Timestamptz)(&answer.Turn), &met, &approvals)
	if err == nil && answer.Outcome != "" {
		if err = json.Unmarshal(met, &answer.Met); err == nil {
			err = json.Unmarshal(approvals, &answer.Approvals)
		}
	}
	return k, answer, err
}

// NoteRuling writes what a call was told by the rules into its journal.
func NoteRuling(ctx context.Context, db DB, a Attempt, ruling json.RawMessage) error {
	_, err := db.Exec(ctx, "select gem.note_ruling($1, $2, $3, $4)", a.CallID, a.Number, a.WorkerID, string(ruling))
	return err
}
