package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Failure summarises calls to a tool that ended with the same code. Refused and cancelled calls are not failures.
type Failure struct {
	Tool   string `json:"tool"`
	Status string `json:"status"` // failed or not_configured
	Code   string `json:"code"`   // not_configured for that status
	// Message is the message of the last call, CallID, at most 1,000 characters.
	Message string    `json:"message"`
	CallID  string    `json:"call_id"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Failures is a summary of failures.
type Failures struct {
	Failures []Failure `json:"failures"` // the most frequent first
	Looked   int       `json:"looked"`   // how many calls it covers
	// AtLeast means that calls before From were requested but not read.
	AtLeast bool      `json:"at_least,omitempty"`
	From    time.Time `json:"from"`
}

// Filter returns the filter for the calls of f that ended at or after a time.
func (f Failure) Filter(from time.Time) Filter {
	filter := Filter{State: f.Status, Tool: cmp.Or(f.Tool, NoTool), From: from}
	if f.Status == "failed" {
		filter.Code = f.Code
	}
	return filter
}

const mostFailures = 5000

// ReadFailures summarises the last failures since a time, at most 5,000, of one tool or of all, among the last 20,000
// calls that did not succeed. The zero time means the last day.
func ReadFailures(ctx context.Context, db DB, from time.Time, tool string) (*Failures, error) {
	all, err := readFailures(ctx, db, from, tool)
	if err != nil {
		return nil, fmt.Errorf("read the failures: %w", err)
	}
	return all, nil
}

// failure is a call that failed or was not configured.
type failure struct {
	Tool    string    `json:"tool"`
	Status  string    `json:"status"`
	Code    string    `json:"code"`
	Message string    `json:"message"` // empty unless it is the last of its tool and code
	At      time.Time `json:"at"`
	CallID  string    `json:"call_id"`
}

// notSucceeded and isFailure are conditions on receipts that have indexes.
const notSucceeded, isFailure = "r.status <> 'succeeded'", "r.failed"

// endedSince selects the last calls since a time in SQL that meet a condition: calls that did not succeed, including
// refused and cancelled ones (see outcome), or failures. more are further columns.
func endedSince(condition, since, most, more string) string {
	return `select f.tool, f.status, f.outcome, f.code, f.at, f.call_id,
			case when row_number() over (partition by f.tool, f.status, f.code order by f.at desc) = 1
				then coalesce(f.message, '') else '' end as message` + more + `
		from (
			select r.tool_name as tool, r.status, r.outcome, coalesce(r.error_code, r.status) as code, r.message,
				r.created_at as at, r.call_id
			from gem.receipts r where ` + condition + ` and r.created_at >= ` + since + `
			order by r.created_at desc limit ` + most + `) f`
}

// The row after the last one is selected too, whatever its tool. before is the end of the preceding call in that
// order.
var theFailures = `select n.since, f.tool, f.status, f.code, f.message, f.at, f.call_id::text, f.place, f.before
	from (select coalesce($1::timestamptz, gem.now() - interval '1 day') as since) n
	left join lateral (select * from (` + endedSince(notSucceeded, "n.since", "$3::int + 1",
	", row_number() over (order by f.at desc) as place, lag(f.at) over (order by f.at desc) as before") + `) f
		where f.outcome in ('failed', 'not_configured') and ($2::text = '' or f.tool = $2::text) or f.place > $3::int) f
		on true
	order by f.place limit $4::int + 1`

func readFailures(ctx context.Context, db DB, from time.Time, tool string) (*Failures, error) {
	rows, err := db.Query(ctx, theFailures, zeronull.Timestamptz(from), tool, stretch, mostFailures)
	if err != nil {
		return nil, err
	}
	all := &Failures{}
	var failed []failure
	var f failure
	var place zeronull.Int8
	var before zeronull.Timestamptz
	var end time.Time // of the last call that is read, if there are more
	_, err = pgx.ForEachRow(rows, []any{&all.From, (*zeronull.Text)(&f.Tool), (*zeronull.Text)(&f.Status),
		(*zeronull.Text)(&f.Code), (*zeronull.Text)(&f.Message),
		(*zeronull.Timestamptz)(&f.At), (*zeronull.Text)(&f.CallID), &place, &before}, func() error {
		switch {
		case place == 0 || !end.IsZero(): // there is none, or the limit is reached
		case int(place) > stretch:
			end = time.Time(before)
		case len(failed) == mostFailures:
			end = failed[len(failed)-1].At
		default:
			failed = append(failed, f)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !end.IsZero() {
		all.AtLeast, all.From = true, end
	}
	all.Failures, all.Looked = sumUp(failed), len(failed)
	return all, nil
}

// sumUp summarises failures, the last first, by tool and code.
func sumUp(failed []failure) []Failure {
	type reason struct{ tool, status, code string }
	places := map[reason]int{}
	all := []Failure{}
	for _, f := range failed {
		why := reason{f.Tool, f.Status, f.Code}
		place, known := places[why]
		if !known {
			place = len(all)
			places[why] = place
			all = append(all, Failure{Tool: f.Tool, Status: f.Status, Code: f.Code, Message: f.Message, CallID: f.CallID,
				Last: f.At})
		}
		all[place].Count++
		all[place].First = f.At
	}
	slices.SortStableFunc(all, func(a, b Failure) int { return cmp.Compare(b.Count, a.Count) })
	return all
}
