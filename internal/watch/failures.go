package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Failure sums up calls of a tool that failed or were not configured for the same reason. Refused and cancelled calls are not
// failures.
type Failure struct {
	Tool   string `json:"tool"`
	Status string `json:"status"` // failed or not_configured
	Code   string `json:"code"`   // not_configured for such
	// Message is the message with … in place of its numbers, ids and quoted texts, at most 200 characters. It is empty for messages that say nothing.
	Message string    `json:"message"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	// CallID is the last of them, and Example its message, at most 300 characters.
	CallID  string `json:"call_id"`
	Example string `json:"example"`
}

// Failures are sums of failures.
type Failures struct {
	Failures []Failure `json:"failures"` // the most frequent first
	Looked   int       `json:"looked"`   // how many calls they sum up
	// AtLeast says that calls before From, which were asked for too, were not looked at.
	AtLeast bool      `json:"at_least,omitempty"`
	From    time.Time `json:"from"`
}

// Filter wants the calls that f sums up, of those that ended from a time on.
func (f Failure) Filter(from time.Time) Filter {
	filter := Filter{State: f.Status, Tool: cmp.Or(f.Tool, NoTool), Message: cmp.Or(f.Message, NoMessage), From: from}
	if f.Status == "failed" {
		filter.Code = f.Code
	}
	return filter
}

const mostFailures = 5000

// ReadFailures sums up the last failures since a time, 5,000 at most, of one tool or of all, among the last 20,000 calls that did
// not succeed. The zero time means the last day.
func ReadFailures(ctx context.Context, db DB, from time.Time, tool string) (*Failures, error) {
	all, err := readFailures(ctx, db, from, tool)
	if err != nil {
		return nil, fmt.Errorf("read what failed: %w", err)
	}
	return all, nil
}

// failure is a call that failed or was not configured.
type failure struct {
	Tool    string    `json:"tool"`
	Status  string    `json:"status"`
	Code    string    `json:"code"`
	Message string    `json:"message"` // as ofMessage has it
	At      time.Time `json:"at"`
	CallID  string    `json:"call_id"`
}

// endedSince selects the last calls that did not succeed since a time of SQL, with more columns. Refused and cancelled ones are
// among them: see outcome.
func endedSince(since, most, more string) string {
	return "select r.tool_name as tool, r.status, r.outcome, coalesce(r.error_code, r.status) as code, " + ofMessage("r.message") + " as message, r.created_at as at, r.call_id" + more +
		" from gem.receipts r where r.status <> 'succeeded' and r.created_at >= " + since + " order by r.created_at desc limit " + most
}

// The one behind the last that is looked at comes too, whatever its tool. before is when the one before it in that order ended.
var theFailures = `select n.since, f.tool, f.status, f.code, f.message, f.at, f.call_id::text, f.place, f.before
	from (select coalesce($1::timestamptz, gem.now() - interval '1 day') as since) n
	left join lateral (select * from (` + endedSince("n.since", "$3::int + 1", ", row_number() over (order by r.created_at desc) as place, lag(r.created_at) over (order by r.created_at desc) as before") + `) f
		where f.outcome in ('failed', 'not_configured') and ($2::text = '' or f.tool = $2::text) or f.place > $3::int) f on true
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
	var end time.Time // of the last that is looked at, if there are more
	_, err = pgx.ForEachRow(rows, []any{&all.From, (*zeronull.Text)(&f.Tool), (*zeronull.Text)(&f.Status), (*zeronull.Text)(&f.Code), (*zeronull.Text)(&f.Message),
		(*zeronull.Timestamptz)(&f.At), (*zeronull.Text)(&f.CallID), &place, &before}, func() error {
		switch {
		case place == 0 || !end.IsZero(): // there is none, or no more are looked at
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

// sumUp sums up failures, the last first, by tool, code and message.
func sumUp(failed []failure) []Failure {
	type reason struct{ tool, status, code, message string }
	places := map[reason]int{}
	all := []Failure{}
	for _, f := range failed {
		why := reason{f.Tool, f.Status, f.Code, withoutValues(f.Message)}
		place, known := places[why]
		if !known {
			place = len(all)
			places[why] = place
			all = append(all, Failure{Tool: f.Tool, Status: f.Status, Code: f.Code, Message: why.message, Last: f.At, CallID: f.CallID, Example: f.Message})
		}
		all[place].Count++
		all[place].First = f.At
	}
	slices.SortStableFunc(all, func(a, b Failure) int { return cmp.Compare(b.Count, a.Count) })
	return all
}

// ofMessage is SQL for the part of a message by which failures are told apart.
func ofMessage(message string) string { return "coalesce(left(" + message + ", 300), '')" }

// withoutValues writes … in place of what differs between messages of one kind: quoted texts, and words with a digit.
func withoutValues(message string) string {
	var kept strings.Builder
	for len(message) > 0 {
		r, size := utf8.DecodeRuneInString(message)
		if end, quotes := closing[r]; quotes {
			if i := strings.IndexRune(message[size:], end); i >= 0 {
				kept.WriteString("…")
				message = message[size+i+utf8.RuneLen(end):]
				continue
			}
		}
		n := strings.IndexFunc(message, func(r rune) bool { return !isWord(r) })
		if n < 0 {
			n = len(message)
		}
		word := strings.TrimRight(message[:n], ".:-'’")
		switch {
		case n == 0:
			kept.WriteString(message[:size])
			message = message[size:]
			continue
		case strings.ContainsAny(word, "0123456789"):
			kept.WriteString("…")
		default:
			kept.WriteString(word)
		}
		kept.WriteString(message[len(word):n])
		message = message[n:]
	}
	said := strings.Join(strings.Fields(kept.String()), " ")
	if r := []rune(said); len(r) > 200 {
		said = string(r[:199]) + "…"
	}
	return said
}

// closing are the quotes that end a quoted text. A ' may be an apostrophe, and is passed over inside a word.
var closing = map[rune]rune{'"': '"', '\'': '\'', '`': '`', '“': '”', '«': '»'}

func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_.:-'’", r)
}
