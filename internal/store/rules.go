package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Gate decides whether an attempt may run its call: it takes the key, and answers the checks of the rules.
type Gate struct {
	Key      string // empty for none
	KeyField string // as in [HoldKey], like Refuse
	Refuse   bool
	Checks   []rules.Check
	Version  string // of the rules
	// Again reports that an earlier attempt, or an earlier try of this statement, may have been counted.
	Again    bool
	Deadline time.Duration // how long after the call was due people may decide; 0: no limit
	// Open is the longest time for which its questions wait without a claim. 0: a worker claims them, and checks them.
	Open time.Duration
}

// Do takes the key and answers the checks in one statement. If the key's verdict ends the attempt, answer has no
// outcome.
func (g Gate) Do(ctx context.Context, db DB, a Attempt) (k Key, answer rules.Answer, err error) {
	checks, err := json.Marshal(append([]rules.Check{}, g.Checks...)) // a list, even without checks
	if err != nil {
		return k, answer, err
	}
	var met, approvals []byte
	err = db.QueryRow(ctx, `select verdict, receipt_id::text, result::text,
		case when receipt_id is not null then coalesce(gem.input_differs($1, receipt_id, $9, $10), false) else false end,
		outcome, at, starts_at, met::text, approvals::text
		from gem.gate($1, $2, $3, $4, $5, $6, $7, $8, $11)`,
		a.CallID, a.Number, a.WorkerID, zeronull.Text(g.Key), string(checks), g.Version, g.Again,
		zeronull.Int8(g.Deadline.Milliseconds()), zeronull.Text(g.KeyField), g.Refuse,
		zeronull.Int8(g.Open.Milliseconds())).
		Scan(&k.Verdict, (*zeronull.Text)(&k.ReceiptID), &k.Result, &k.InputDiffers,
			(*zeronull.Text)(&answer.Outcome), (*zeronull.Timestamptz)(&answer.At), (*zeronull.Timestamptz)(&answer.StartsAt),
			&met,
			&approvals)
	if err == nil && answer.Outcome != "" {
		if err = json.Unmarshal(met, &answer.Met); err == nil {
			err = json.Unmarshal(approvals, &answer.Approvals)
		}
	}
	return k, answer, err
}

// Admission is the result of [Admit] for a call. If it was not decided, the call needs a [Gate] of its own.
type Admission struct {
	Decided bool
	Key     Key
	Answer  rules.Answer
}

// Item encodes the gate for [Admit]. It returns "" if another attempt came before this one, or people are asked.
func (g Gate) Item(a Attempt) (string, error) {
	if g.Again || a.Number != 1 || slices.ContainsFunc(g.Checks, func(c rules.Check) bool { return c.Digest != "" }) {
		return "", nil
	}
	encoded, err := json.Marshal(struct {
		Call     string        `json:"call"`
		Key      string        `json:"key,omitempty"`
		KeyField string        `json:"key_field,omitempty"`
		Refuse   bool          `json:"refuse,omitempty"`
		Checks   []rules.Check `json:"checks,omitempty"`
		Deadline int64         `json:"deadline_ms,omitempty"`
	}{a.CallID, g.Key, g.KeyField, g.Refuse, g.Checks, g.Deadline.Milliseconds()})
	return string(encoded), err
}

// Admit decides many gates of a worker, each encoded by [Gate.Item], in one statement and in their order. It leaves a
// gate undecided if that would have to wait for another transaction, or if the attempt no longer holds its call.
func Admit(ctx context.Context, db DB, workerID, rulesVersion string, gates []string) ([]Admission, error) {
	rows, err := db.Query(ctx, "select place, verdict, receipt_id::text, result::text, differs, outcome, at, starts_at, "+
		"met::text from gem.admit($1, $2, $3)", workerID, "["+strings.Join(gates, ",")+"]", rulesVersion)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make([]Admission, len(gates))
	for rows.Next() {
		var place int
		var a Admission
		var met []byte
		err := rows.Scan(&place, &a.Key.Verdict, (*zeronull.Text)(&a.Key.ReceiptID), &a.Key.Result, &a.Key.InputDiffers,
			(*zeronull.Text)(&a.Answer.Outcome), (*zeronull.Timestamptz)(&a.Answer.At),
			(*zeronull.Timestamptz)(&a.Answer.StartsAt), &met)
		if err == nil && a.Answer.Outcome != "" {
			err = json.Unmarshal(met, &a.Answer.Met)
		}
		if err != nil {
			return nil, err
		}
		a.Decided = true
		all[place] = a
	}
	return all, rows.Err()
}

// NoteRuling writes the rules' verdicts on a call to its journal.
func NoteRuling(ctx context.Context, db DB, a Attempt, ruling json.RawMessage) error {
	_, err := db.Exec(ctx, "select gem.note_ruling($1, $2, $3, $4)", a.CallID, a.Number, a.WorkerID, string(ruling))
	return err
}
