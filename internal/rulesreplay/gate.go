package rulesreplay

import (
	"encoding/json"
	"iter"
	"math/big"
	"slices"
	"time"

	"github.com/gemworker/gem/rules"
)

// looks describes how a decision is computed again.
type looks struct {
	now     time.Time
	retried bool     // an earlier try may have counted the call before its answer was lost
	again   bool     // an earlier try has counted it
	named   []string // the receipts of failures that the recorded decision names
	horizon          // the ends that were known
}

// horizon describes the ends that a gate may have known: those up to a time, except some that may not have been
// committed.
type horizon struct {
	upto time.Time
	// of the ends that may not have been committed, only failures were known: those in looks.named, if it has any
	onlyFailures bool
	unseen       []string // the calls and questions whose ends had not been committed
}

// compare computes a decision again. The decision is the recorded one if any view that the gate may have had leads to
// it: with or without the call's own places, if an earlier try may have made them, and without some of the ends shortly
// before, since they may not have been committed.
func (r *recomputed) compare(p program, at time.Time, recorded string, judgement rules.Judgement, how looks,
	say func(rules.Answer) string) {
	r.report.Decisions++
	first, tries := "", []looks{how}
	if how.retried {
		second := how
		second.again = true
		tries = append(tries, second)
	}
	for known := range r.horizons(judgement, how.now) {
		for _, try := range tries {
			try.horizon = known
			answer, lost := rules.Answer{Outcome: rules.Passed}, ""
			if len(judgement.Checks) > 0 || len(r.denials()) > 0 {
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
			if first == "" && !try.again {
				first = again
			}
		}
	}
	r.differ(p, at, recorded, first)
}

// horizons yields what the gate may have known: all ends up to its time, or up to just before one that may not have
// been committed, or, since ends are not committed in the order of their times, the failures alone, or all ends but
// some of the last ones, or but one.
func (r *recomputed) horizons(j rules.Judgement, now time.Time) iter.Seq[horizon] {
	return func(yield func(horizon) bool) {
		if !yield(horizon{upto: now}) {
			return
		}
		ends := r.uncertain(j, now)
		var times []time.Time // just before the ends
		for _, e := range ends {
			times = append(times, e.at.Add(-time.Microsecond))
		}
		times = slices.CompactFunc(times, time.Time.Equal)
		for _, at := range times {
			if !yield(horizon{upto: at}) {
				return
			}
		}
		if len(times) > 0 && !yield(horizon{upto: now, onlyFailures: true}) {
			return
		}
		last := ends[:min(len(ends), mostUnseen)]
		for subset := 1; subset < 1<<len(last); subset++ {
			var unseen []string
			for i, e := range last {
				if subset&(1<<i) != 0 {
					unseen = append(unseen, e.id)
				}
			}
			if !yield(horizon{upto: now, unseen: unseen}) {
				return
			}
		}
		for _, e := range ends[len(last):] {
			if !yield(horizon{upto: now, unseen: []string{e.id}}) {
				return
			}
		}
	}
}

const (
	// mostUnseen is the number of ends that are taken, in each combination, not to have been committed.
	mostUnseen = 6
	// mostUncertain is the number of ends that are taken, one by one, not to have been committed.
	mostUncertain = 200
)

// uncommitted reports whether an end of that time may not have been committed when the gate looked.
func uncommitted(at, now time.Time) bool { return !at.After(now) && at.After(now.Add(-slack)) }

// end is the end of a call or of a question.
type end struct {
	at time.Time
	id string
}

// uncertain returns the last ends that the gate may not have known, the last first.
func (r *recomputed) uncertain(j rules.Judgement, now time.Time) (ends []end) {
	seen := map[end]bool{}
	add := func(at time.Time, id string) {
		if e := (end{at, id}); uncommitted(at, now) && !seen[e] {
			seen[e] = true
			ends = append(ends, e)
		}
	}
	for _, check := range j.Checks {
		switch check.Kind {
		case rules.Required, rules.Afterwards:
			for _, e := range r.ends[[2]string{r.Session, r.Caller}] {
				if slices.Contains(check.Tools, e.Tool) {
					add(e.At, e.CallID)
				}
			}
		case rules.FailureRow:
			upto := r.before(check.Counter, now)
			for _, row := range r.runs[check.Counter][max(0, upto-1000):upto] {
				if e, ended := r.of[row.CallID]; ended {
					add(e.At, e.CallID)
				}
			}
		}
	}
	for _, d := range r.denials() {
		add(d.At, d.ID)
	}
	for _, q := range r.Questions {
		add(q.EndedAt, q.ID)
	}
	slices.SortStableFunc(ends, func(a, b end) int { return b.at.Compare(a.at) })
	return ends[:min(len(ends), mostUncertain)]
}

// gate answers the checks as of a time, from the log's state at that time. lost is the reason if this state is unknown.
func (r *recomputed) gate(checks []rules.Check, how looks) (a rules.Answer, lost string) {
	var m rules.Memory
	for _, check := range checks {
		switch check.Kind {
		case rules.Required, rules.Afterwards:
			if lost = r.tellEnds(&m, check, how.horizon); lost != "" {
				return a, lost
			}
		case rules.Count, rules.Sum, rules.FailureRow:
			if lost = r.tellRows(&m, check, how); lost != "" {
				return a, lost
			}
		}
	}
	r.tellQuestions(&m, how.now, how.horizon)
	return m.Gate(how.now, r.atGate(), checks), ""
}

// tellEnds adds the ends in the call's session to m.
func (r *recomputed) tellEnds(m *rules.Memory, check rules.Check, known horizon) string {
	found := false
	for _, e := range r.ends[[2]string{r.Session, r.Caller}] {
		if slices.Contains(check.Tools, e.Tool) && !e.At.After(known.upto) && !slices.Contains(known.unseen, e.CallID) {
			m.Ended(e)
			found = true
		}
	}
	if r.pruned && !found && (check.WithinMS == 0 ||
		r.CreatedAt.Add(-time.Duration(check.WithinMS)*time.Millisecond).Before(r.since)) {
		return callsPruned
	}
	return ""
}

// tellRows adds the last rows of a counter to m: as many as the check reads.
func (r *recomputed) tellRows(m *rules.Memory, check rules.Check, how looks) string {
	rows := r.runs[check.Counter]
	upto := r.before(check.Counter, how.now)
	if i, has := r.places[r.ID][check.Counter]; has {
		if own := rows[i]; how.again || own.written.Before(how.now) {
			m.Counted(check.Counter, own.Place)
			return ""
		}
		// after a row ahead of the clock
		if later := rows[i].written.After(how.now); !later || i > 0 && rows[i].written.Equal(rows[i-1].At) {
			upto = i // it gets this place now, or when it returns to the gate
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
	if window := time.Duration(max(check.WithinMS, check.CooldownMS)) * time.Millisecond; r.pruned &&
		how.now.Add(-window).Before(r.complete) {
		gone = true // a counter whose calls were all pruned starts again
	}
	if gone && (from < 0 || upto == 0) {
		return rowsPruned
	}
	for _, row := range rows[max(0, min(from, upto)):upto] {
		m.Counted(check.Counter, row.Place)
		if check.Kind != rules.FailureRow {
			continue
		}
		if e, ended := r.of[row.CallID]; ended && !e.At.After(how.upto) && !how.missed(e) {
			e.SessionID = "" // it counts as a failure only, and not for requires or after
			m.Ended(e)
		}
	}
	return ""
}

// missed reports whether the gate is taken not to have known an end since it had not been committed.
func (l looks) missed(e rules.CallEnd) bool {
	if slices.Contains(l.unseen, e.CallID) {
		return true
	}
	if !l.onlyFailures || !uncommitted(e.At, l.now) {
		return false
	}
	return e.Status != "failed" || len(l.named) > 0 && !slices.Contains(l.named, e.ReceiptID)
}

// most returns how many places of a count the gate reads: at least one, which has the counter's time.
func most(n json.Number) int {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok || !r.IsInt() {
		return 1
	}
	return max(1, int(r.Num().Int64()))
}

// denials returns people's denials of the call, in order.
func (r *recomputed) denials() (all []rules.Decision) {
	for _, q := range r.Questions {
		if given := q.Answer; given.By != "" && !given.Value.Approved {
			all = append(all, rules.Decision{CallID: r.ID, Rule: q.Rule, Digest: q.Digest, ID: q.ID, By: given.By, At: given.At,
				Outcome: rules.Denied, Reason: given.Value.Reason})
		}
	}
	slices.SortStableFunc(all, func(a, b rules.Decision) int { return a.At.Compare(b.At) })
	return all
}

// tellQuestions adds the known denials to m, and the outcomes of the questions about the call, in the order in which
// they ended.
func (r *recomputed) tellQuestions(m *rules.Memory, now time.Time, known horizon) {
	for _, d := range r.denials() {
		if !d.At.After(known.upto) && !slices.Contains(known.unseen, d.ID) {
			m.Denied(d)
		}
	}
	inOrder := slices.SortedStableFunc(slices.Values(r.Questions),
		func(a, b question) int { return a.EndedAt.Compare(b.EndedAt) })
	for _, q := range inOrder {
		switch {
		case !q.CreatedAt.Before(now):
		case q.Status != "succeeded" && q.Status != "failed" && q.Status != "not_configured" ||
			q.EndedAt.After(known.upto) || slices.Contains(known.unseen, q.ID):
			m.Asked(q.Digest)
		case q.Result.Error.Code == "cancelled": // it is asked again
		default:
			d := q.decision()
			d.CallID = r.ID
			m.Decided(d)
		}
	}
}

// decision returns the decision of a question that has ended.
func (q question) decision() rules.Decision {
	d := rules.Decision{Rule: q.Rule, Digest: q.Digest, ID: q.ID, By: q.Result.By, At: q.Result.At, Outcome: rules.Denied,
		Reason: q.Result.Reason}
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

// plain returns a number without redundant zeros.
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
