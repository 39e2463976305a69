package rules

import (
	"cmp"
	"encoding/json"
	"math/big"
	"slices"
	"sort"
	"time"
)

// Memory answers checks as gem.gate does, from what it was told instead of from tables. It is for tests of rules and for replays, and
// gem.gate is held against it. Its zero value knows of nothing. Only one goroutine may use it at a time.
type Memory struct {
	counters  map[string][]place
	places    map[[2]string]place   // by counter and call
	ends      map[[2]string][]Ended // by session and caller
	receipts  map[string]Ended      // by call, but for cancelled ones
	decisions map[string]Decision   // by digest
	asked     map[string]bool       // digests of which people were asked
}

// place is a row of a counter.
type place struct {
	at     time.Time
	call   string
	over   bool // the rule met the call, and let it through all the same
	amount *big.Rat
}

// MemoryCall is what a [Memory] needs to know of a call that comes to the gate.
type MemoryCall struct {
	ID, SessionID, CreatedBy string
	CreatedAt                time.Time
}

// Ended says how a call ended.
type Ended struct {
	CallID, Tool         string
	Status               string
	Code                 string // of a failure
	ReceiptID            string // empty if it has none
	SessionID, CreatedBy string
	At                   time.Time // of its receipt, and of its end
}

// Decision is what came of a question: of somebody who decided, or of nobody in time.
type Decision struct {
	Digest  string  // of the question
	Outcome Outcome // Passed, Denied, Expired or Unasked
	By      string
	Reason  string // as given
	ID      string // of the call of wait.approval
	At      time.Time
}

// Ended tells of the end of a call.
func (m *Memory) Ended(e Ended) {
	e.At = micros(e.At)
	if e.SessionID != "" {
		if m.ends == nil {
			m.ends = map[[2]string][]Ended{}
		}
		session := [2]string{e.SessionID, e.CreatedBy}
		m.ends[session] = append(m.ends[session], e)
	}
	if e.ReceiptID == "" || e.Code == "cancelled" {
		return
	}
	if m.receipts == nil {
		m.receipts = map[string]Ended{}
	}
	m.receipts[e.CallID] = e
}

// Decided tells of a decision.
func (m *Memory) Decided(d Decision) {
	d.At = micros(d.At)
	if m.decisions == nil {
		m.decisions = map[string]Decision{}
	}
	m.decisions[d.Digest] = d
}

// Place is what a counter knows of a call that was let through, or has its turn.
type Place struct {
	At     time.Time
	CallID string
	Amount json.Number // of a [Sum]
	Over   bool        // the rule met the call, and let it through all the same
}

// Counted tells of calls in a counter, after those that it has.
func (m *Memory) Counted(counter string, places ...Place) {
	if m.counters == nil {
		m.counters, m.places = map[string][]place{}, map[[2]string]place{}
	}
	for _, p := range places {
		row := place{at: micros(p.At), call: p.CallID, over: p.Over}
		if p.Amount != "" {
			row.amount = rat(p.Amount)
		}
		m.counters[counter] = append(m.counters[counter], row)
		m.places[[2]string{counter, p.CallID}] = row
	}
}

// Asked tells of a question.
func (m *Memory) Asked(digest string) {
	if m.asked == nil {
		m.asked = map[string]bool{}
	}
	m.asked[digest] = true
}

// micros is the time as Postgres keeps it.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// view is what a check comes to.
type view struct {
	met     bool
	seen    Seen
	counted bool      // the call has its place already
	missed  bool      // it did not come at its turn, and has no place any more
	turn    time.Time // of a wait: when there is room, or its place
}

// Gate answers the checks of a call, and counts the call where it passes them or gets a turn.
func (m *Memory) Gate(now time.Time, c MemoryCall, checks []Check) Answer {
	now = micros(now)
	c.CreatedAt = micros(c.CreatedAt)
	all := make([]view, len(checks))
	waits := 0
	for _, check := range checks {
		if check.Action == Wait {
			waits++
		}
	}
	for i, check := range checks {
		all[i] = m.look(now, c, check)
		if check.Action == Wait && waits == 1 && all[i].counted && all[i].turn.Before(now.Add(-max(missedBy, milliseconds(check.WithinMS)))) {
			all[i] = m.look(now, MemoryCall{}, check) // as if it had none: others that missed theirs would run beside it
			all[i].missed = true
		}
	}
	a := Answer{At: now}
	for i, check := range checks {
		d, decided := m.decisions[check.Digest]
		switch {
		case check.Digest == "":
		case decided && d.Outcome == Passed:
			given := Approval{Rule: check.Rule, ID: d.ID, By: d.By, At: d.At, Digest: d.Digest, Reason: d.Reason}
			a.Approvals = append(a.Approvals, given)
		case decided:
			all[i].met, all[i].seen.By, all[i].seen.Reason = true, d.By, d.Reason
		case m.asked[check.Digest]:
			all[i].met = true // whatever it met, people were asked
		}
		if all[i].met {
			a.Met = append(a.Met, Met{Check: i, Seen: all[i].seen})
		}
	}
	switch a.Outcome = m.outcome(checks, all); a.Outcome {
	case Passed:
		for i, check := range checks {
			if check.Counter != "" && !all[i].counted {
				m.count(check, c.ID, now, all[i])
			}
		}
	case Delayed:
		for i, check := range checks {
			if check.Action == Wait && all[i].met {
				a.Turn = latest(a.Turn, all[i].turn)
			}
		}
		for i, check := range checks {
			// It looks at the others then: a place ahead of its time keeps all others of its counter behind it.
			if check.Action == Wait && !all[i].counted && all[i].turn.Equal(a.Turn) {
				m.count(check, c.ID, a.Turn, view{missed: all[i].missed})
			}
		}
	case Asked:
		for i, check := range checks {
			if check.Digest != "" && all[i].met {
				m.Asked(check.Digest)
			}
		}
	}
	return a
}

// outcome is what the checks come to together.
func (m *Memory) outcome(checks []Check, all []view) Outcome {
	met := map[Outcome]bool{}
	for i, check := range checks {
		switch {
		case !all[i].met:
		case check.Action == Block || all[i].seen.NotInTime:
			return Stopped
		case check.Action == Wait:
			met[Delayed] = true
		case check.Action == Ask:
			met[cmp.Or(m.decisions[check.Digest].Outcome, Asked)] = true
		}
	}
	for _, o := range []Outcome{Unasked, Denied, Expired, Asked, Delayed} {
		if met[o] {
			return o
		}
	}
	return Passed
}

// missedBy is how late a call may come to its turn, or the time of the limit if that is longer.
const missedBy = time.Minute

// count gives a call its place in a check's counter, at a time that never falls.
func (m *Memory) count(check Check, call string, at time.Time, v view) {
	if v.missed {
		delete(m.places, [2]string{check.Counter, call})
	}
	m.Counted(check.Counter, Place{At: m.clock(check.Counter, at), CallID: call, Amount: check.Add, Over: v.met})
}

// clock is the time of a counter: it never goes back.
func (m *Memory) clock(counter string, now time.Time) time.Time {
	if rows := m.counters[counter]; len(rows) > 0 {
		return latest(now, rows[len(rows)-1].at)
	}
	return now
}

// look answers one check.
func (m *Memory) look(now time.Time, c MemoryCall, check Check) view {
	switch check.Kind {
	case ItsCall:
		return view{met: true}
	case Required:
		_, succeeded := m.before(c, check, func(e Ended) bool { return e.Status == "succeeded" })
		return view{met: !succeeded}
	case Afterwards:
		e, ended := m.before(c, check, func(e Ended) bool {
			return slices.Contains(check.Ended, e.as()) || slices.Contains(check.Ended, e.Status)
		})
		if !ended {
			return view{}
		}
		return view{met: true, seen: Seen{Tool: e.Tool, Ended: e.as(), ReceiptID: e.ReceiptID, EndedAt: &e.At}}
	}
	if place, has := m.places[[2]string{check.Counter, c.ID}]; has { // it was let through, or has its turn
		s := view{counted: true, turn: place.at}
		switch {
		case check.Action == Wait && place.at.After(now):
			s.met, s.seen.FreeAt = true, &s.turn
		case check.Action == Warn:
			s.met = place.over // as it was told before
		}
		return s
	}
	switch at := m.clock(check.Counter, now); check.Kind {
	case Count:
		return m.calls(now, at, check)
	case Sum:
		return m.sum(at, check)
	default:
		return m.failures(at, check)
	}
}

// calls looks whether so many calls were let through already.
func (m *Memory) calls(now, at time.Time, check Check) view {
	rows, most := m.counters[check.Counter], int(rat(check.Max).Num().Int64())
	if most == 0 {
		return view{met: true, seen: Seen{NotInTime: check.Action == Wait}}
	}
	free := at
	if len(rows) >= most {
		free = latest(at, rows[len(rows)-most].at.Add(milliseconds(check.WithinMS)))
	}
	if check.Action == Wait { // its turn is after those of the others
		if !free.After(now) {
			return view{turn: free}
		}
		last := now.Add(milliseconds(check.AtMostMS))
		late := check.AtMostMS > 0 && free.After(last)
		free = check.coarse(free)
		if check.AtMostMS > 0 && !late && free.After(last) {
			free = last // rounding must not make a turn too late
		}
		return view{met: true, turn: free, seen: Seen{FreeAt: &free, NotInTime: late}}
	}
	if !free.After(at) {
		return view{}
	}
	free = check.coarse(free)
	return view{met: true, seen: Seen{FreeAt: &free}}
}

// sum looks whether the calls of the window leave room for what this one adds.
func (m *Memory) sum(at time.Time, check Check) view {
	within, add, most := milliseconds(check.WithinMS), rat(check.Add), rat(check.Max)
	rows := m.counters[check.Counter]
	first := sort.Search(len(rows), func(i int) bool { return rows[i].at.Add(within).After(at) })
	total := new(big.Rat)
	for _, r := range rows[first:] {
		total.Add(total, r.amount)
	}
	full := func(total *big.Rat) bool { return new(big.Rat).Add(total, add).Cmp(most) > 0 }
	if !full(total) {
		return view{}
	}
	s := view{met: true}
	if check.CoarseMS == 0 {
		s.seen.Total = decimal(total)
	}
	left := new(big.Rat).Set(total)
	for _, r := range rows[first:] {
		if left.Sub(left, r.amount); !full(left) {
			free := check.coarse(r.at.Add(within))
			s.seen.FreeAt = &free
			break
		}
	}
	return s
}

// failures looks whether the last calls that ended, of those let through, all failed, and rest still.
func (m *Memory) failures(at time.Time, check Check) view {
	rows := m.counters[check.Counter]
	var receipts []string
	var last time.Time
	for _, r := range slices.Backward(rows[max(0, len(rows)-1000):]) {
		e, ok := m.receipts[r.call]
		if !ok {
			continue
		}
		if e.Status != "failed" {
			break
		}
		receipts, last = append(receipts, e.ReceiptID), latest(last, e.At)
		if len(receipts) == check.InARow {
			break
		}
	}
	free := last.Add(milliseconds(check.RestMS))
	if len(receipts) < check.InARow || !free.After(at) {
		return view{}
	}
	free = check.coarse(free)
	if check.CoarseMS > 0 {
		receipts = nil
	}
	return view{met: true, seen: Seen{FreeAt: &free, Receipts: receipts}}
}

// before returns the latest end, in the session of a call and of its caller, that was there when the call was made.
func (m *Memory) before(c MemoryCall, check Check, fits func(Ended) bool) (last Ended, found bool) {
	for _, e := range m.ends[[2]string{c.SessionID, c.CreatedBy}] {
		switch {
		case !slices.Contains(check.Tools, e.Tool):
		case e.At.After(c.CreatedAt) || check.WithinMS > 0 && !e.At.Add(milliseconds(check.WithinMS)).After(c.CreatedAt):
		case fits(e) && (!found || !e.At.Before(last.At)):
			last, found = e, true
		}
	}
	return last, found
}

// as is how rules name an end.
func (e Ended) as() string { return cmp.Or(e.Code, e.Status) }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// rat reads a number of a check, which is one.
func rat(n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		return new(big.Rat)
	}
	return r
}

// decimal writes a sum of decimals, which has no more places than they.
func decimal(r *big.Rat) json.Number {
	places, _ := r.FloatPrec()
	return json.Number(r.FloatString(places))
}
