package rulesreplay

import (
	"encoding/json"
	"iter"
	"math/big"
	"slices"
	"time"

	"github.com/gemworker/gem/rules"
)

// looks says how a decision is computed again.
type looks struct {
	now     time.Time
	retried bool      // a try before may have counted the call, and its answer was lost
	again   bool      // it had
	seen    time.Time // up to when ends were known
}

// compare computes a decision again. It is the recorded one if it comes out of what its gate may have seen: the call's own places, or not, where
// an earlier try may have made them, and ends of calls up to a time shortly before, where those that came later may not have been committed.
func (r *recomputed) compare(p program, at time.Time, recorded string, judgement rules.Judgement, how looks, say func(rules.Answer) string) {
	r.report.Decisions++
	first, tries := "", []looks{how}
	if how.retried {
		second := how
		second.again = true
		tries = append(tries, second)
	}
	for i, seen := range r.horizons(judgement, how.now) {
		for _, try := range tries {
			try.seen = seen
			answer, lost := rules.Answer{Outcome: rules.Passed}, ""
			if len(judgement.Checks) > 0 {
				answer, lost = r.gate(judgement.Checks, try)
			}
			if lost != "" {
				r.unknown[lost] = true
				return
			}
			again := say(answer)
			if again == recorded {
				return
			}
			if i == 0 && !try.again {
				first = again
			}
		}
	}
	r.differ(p, at, recorded, first)
}

// horizons are the times up to which the gate may have known of ends: its own, and those just before ends that may not have been committed.
func (r *recomputed) horizons(j rules.Judgement, now time.Time) iter.Seq2[int, time.Time] {
	return func(yield func(int, time.Time) bool) {
		if !yield(0, now) {
			return
		}
		for i, at := range r.uncertain(j, now) {
			if !yield(i+1, at) {
				return
			}
		}
	}
}

// uncertain are the times just before the ends of which the gate may not have known yet, the last first.
func (r *recomputed) uncertain(j rules.Judgement, now time.Time) (times []time.Time) {
	add := func(e rules.Ended) {
		if !e.At.After(now) && e.At.After(now.Add(-slack)) || !e.At.After(r.CreatedAt) && e.At.After(r.CreatedAt.Add(-slack)) {
			times = append(times, e.At.Add(-time.Microsecond))
		}
	}
	for _, check := range j.Checks {
		switch check.Kind {
		case rules.Required, rules.Afterwards:
			for _, e := range r.ends[[2]string{r.Session, r.Caller}] {
				if slices.Contains(check.Tools, e.Tool) {
					add(e)
				}
			}
		case rules.FailureRow:
			upto := r.before(check.Counter, now)
			for _, row := range r.runs[check.Counter][max(0, upto-1000):upto] {
				if e, ended := r.of[row.CallID]; ended {
					add(e)
				}
			}
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	return slices.CompactFunc(times, time.Time.Equal)
}

// gate answers the checks as of a time, from what the log says was there. lost says why that cannot be known.
func (r *recomputed) gate(checks []rules.Check, how looks) (a rules.Answer, lost string) {
	var m rules.Memory
	for _, check := range checks {
		switch check.Kind {
		case rules.Required, rules.Afterwards:
			if lost = r.tellEnds(&m, check, how.seen); lost != "" {
				return a, lost
			}
		case rules.Count, rules.Sum, rules.FailureRow:
			if lost = r.tellRows(&m, check, how); lost != "" {
				return a, lost
			}
		}
		if check.Digest != "" {
			r.tellQuestion(&m, check, how.now)
		}
	}
	return m.Gate(how.now, r.atGate(), checks), ""
}

// tellEnds tells of the ends in the session of the call.
func (r *recomputed) tellEnds(m *rules.Memory, check rules.Check, seen time.Time) string {
	found := false
	for _, e := range r.ends[[2]string{r.Session, r.Caller}] {
		if slices.Contains(check.Tools, e.Tool) && !e.At.After(seen) {
			m.Ended(e)
			found = true
		}
	}
	if r.pruned && !found && (check.WithinMS == 0 || r.CreatedAt.Add(-time.Duration(check.WithinMS)*time.Millisecond).Before(r.since)) {
		return callsPruned
	}
	return ""
}

// tellRows tells of the rows that a counter had: of its last ones, as many as the check looks at.
func (r *recomputed) tellRows(m *rules.Memory, check rules.Check, how looks) string {
	rows := r.runs[check.Counter]
	upto := r.before(check.Counter, how.now)
	if i, has := r.places[r.ID][check.Counter]; has {
		if own := rows[i]; how.again || own.written.Before(how.now) {
			m.Counted(check.Counter, own.Place)
			return ""
		}
		if later := rows[i].written.After(how.now); !later || i > 0 && rows[i].written.Equal(rows[i-1].At) { // after a row ahead of the clock
			upto = i // it gets this place now, and otherwise when it comes to the gate again
		}
	}
	var from int
	switch check.Kind {
	case rules.Count:
		from = upto - most(check.Max)
	case rules.Sum:
		within := time.Duration(check.WithinMS) * time.Millisecond
		for from = upto; from > 0 && rows[from-1].At.Add(within).After(how.now); from-- {
		}
		if from == 0 && upto > 0 && rows[0].n > 1 {
			from = -1
		}
	default:
		from = upto - 1000
	}
	gone := len(rows) > 0 && rows[0].n > 1
	if window := time.Duration(max(check.WithinMS, check.RestMS)) * time.Millisecond; r.pruned && how.now.Add(-window).Before(r.complete) {
		gone = true // a counter whose calls all were pruned begins again
	}
	if gone && (from < 0 || upto == 0) {
		return rowsPruned
	}
	for _, row := range rows[max(0, min(from, upto)):upto] {
		m.Counted(check.Counter, row.Place)
		if check.Kind != rules.FailureRow {
			continue
		}
		if e, ended := r.of[row.CallID]; ended && !e.At.After(how.seen) {
			e.SessionID = "" // a failure, and nothing that requires or after look at
			m.Ended(e)
		}
	}
	return ""
}

// most is how many places of a count the gate looks back: one at least, which has the counter's time.
func most(n json.Number) int {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok || !r.IsInt() {
		return 1
	}
	return max(1, int(r.Num().Int64()))
}

// tellQuestion tells what had become of a question.
func (r *recomputed) tellQuestion(m *rules.Memory, check rules.Check, now time.Time) {
	for _, q := range r.Questions {
		switch {
		case q.Digest != check.Digest || !q.CreatedAt.Before(now):
		case q.Status != "succeeded" && q.Status != "failed" && q.Status != "not_configured" || q.EndedAt.After(now):
			m.Asked(q.Digest)
		case q.Result.Error.Code == "cancelled": // it is asked anew
		default:
			m.Decided(q.decision())
		}
	}
}

// decision is what came of a question that has ended.
func (q question) decision() rules.Decision {
	d := rules.Decision{Digest: q.Digest, ID: q.ID, By: q.Result.By, At: q.Result.At, Outcome: rules.Denied, Reason: q.Result.Reason}
	switch {
	case q.Result.Approved:
		d.Outcome = rules.Passed
	case q.Status == "succeeded" && q.Result.Reason == "expired" && q.Result.By == "":
		d.Outcome = rules.Expired
	case q.Status != "succeeded":
		d.Outcome, d.Reason = rules.Unasked, q.Result.Error.Message
	}
	return d
}

// plain is a number without zeros that say nothing.
func plain(n json.Number) json.Number {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		return n
	}
	places, exact := r.FloatPrec()
	if !exact {
		return n
	}
	return json.Number(r.FloatString(places))
}
