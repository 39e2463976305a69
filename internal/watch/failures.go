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

// Failure sums up calls of a tool that did not succeed for the same reason.
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
	filter := Filter{State: f.Status, Tool: f.Tool, Message: cmp.Or(f.Message, NoMessage), From: from}
	if f.Status == "failed" {
		filter.Code = f.Code
	}
	return filter
}

const mostFailures = 5000

// ReadFailures sums up the last calls that did not succeed since a time: 5,000 at most, or those of one tool among 20,000. The zero time means the
// last day.
func ReadFailures(ctx context.Context, db DB, from time.Time, tool string) (*Failures, error) {
	err := db.QueryRow(ctx, "select coalesce($1::timestamptz, gem.now() - interval '1 day')", zeronull.Timestamptz(from)).Scan(&from)
	var all *Failures
	if err == nil {
		all, err = readFailures(ctx, db, from, tool, mostFailures)
	}
	if err != nil {
		return nil, fmt.Errorf("read what failed: %w", err)
	}
	return all, nil
}

func readFailures(ctx context.Context, db DB, from time.Time, tool string, most int) (*Failures, error) {
	looked := most
	if tool != "" {
		looked = stretch
	}
	all := &Failures{Failures: []Failure{}, From: from}
	rows, err := db.Query(ctx, `select r.tool_name, r.status, coalesce(r.error_code, r.status), `+ofMessage("r.message")+`, r.created_at, r.call_id::text
		from (select * from gem.receipts r where r.status <> 'succeeded' and r.created_at >= $1 order by r.created_at desc limit $3::int) r
		where $2::text = '' or r.tool_name = $2::text
		order by r.created_at desc limit $4::int`, from, tool, looked, most)
	if err != nil {
		return nil, err
	}
	type reason struct{ tool, status, code, message string }
	places := map[reason]int{}
	var f Failure
	_, err = pgx.ForEachRow(rows, []any{&f.Tool, &f.Status, &f.Code, &f.Example, &f.Last, &f.CallID}, func() error {
		f.Message = withoutValues(f.Example)
		why := reason{f.Tool, f.Status, f.Code, f.Message}
		place, known := places[why]
		if !known {
			place = len(all.Failures)
			places[why] = place
			all.Failures = append(all.Failures, f)
		}
		all.Failures[place].Count++
		all.Failures[place].First = f.Last
		all.Looked++
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all.Failures, func(a, b Failure) int { return cmp.Compare(b.Count, a.Count) })
	if all.Looked == most {
		looked = most
	}
	rows, err = db.Query(ctx, `select r.created_at from gem.receipts r where r.status <> 'succeeded' and r.created_at >= $1
		order by r.created_at desc limit 2 offset $2::int`, from, looked-1)
	if err != nil {
		return nil, err
	}
	ends, err := pgx.CollectRows(rows, pgx.RowTo[time.Time]) // the last that was looked at, and the one before
	if err == nil && len(ends) == 2 {
		if all.AtLeast, all.From = true, ends[0]; all.Looked == most {
			all.From = f.Last
		}
	}
	return all, err
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
