package rules

import (
	"cmp"
	"encoding/json"
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/gemworker/gem/receipts"
)

// Memory answers checks as gem.gate does, from recorded events instead of tables. Tests of rules and replays use it,
// and a test compares it with gem.gate. It knows no running calls, so a place is always free. The zero value has no
// events. Only one goroutine may use it at a time.
type Memory struct {
	counters  map[string][]place
	places    map[[2]string]place     // by counter and call
	ends      map[[2]string][]CallEnd // by session and caller
	receipts  map[string]CallEnd      // by call, except cancelled ones
	decisions map[string]Decision     // by digest
	denials   map[string]Decision     // by call: a person's first denial
	asked     map[string]bool         // digests of the questions that were asked
}

// place is a row of a counter.
type place struct {
	at     time.Time
	call   string
	over   bool // the rule met the call, but the call passed
	amount *big.Rat
}

// MemoryCall has the facts about a call that [Memory.Gate] needs.
type MemoryCall struct {
	ID, SessionID, CreatedBy string
	CreatedAt                time.Time
}

// CallEnd is the end of a call.
type CallEnd struct {
	CallID, Tool         string
	Status               string
	Code                 string // of a failure
	ReceiptID            string // empty if it has none
	SessionID, CreatedBy string
	At                   time.Time // the time of its receipt, and of its end
}

// Decision is the decision on a question: by a person, or by its deadline.
type Decision struct {
	// The call that the question was about, and the rule that asked. A person's denial applies to the call, whatever rules
	// ask later.
	CallID  string
	Rule    string
	Digest  string  // of the question
	Outcome Outcome // Passed, Denied, Expired or Unasked
	By      string
	Reason  string // as given
	ID      string // of the call to wait.approval
	At      time.Time
}

// Ended records the end of a call.
func (m *Memory) Ended(e CallEnd) {
	e.At = micros(e.At)
	if e.SessionID != "" {
		if m.ends == nil {
			m.ends = map[[2]string][]CallEnd{}
		}
		session := [2]string{e.SessionID, e.CreatedBy}
		m.ends[session] = append(m.ends[session], e)
	}
	if e.ReceiptID == "" || e.Code == "cancelled" {
		return
	}
	if m.receipts == nil {
		m.receipts = map[string]CallEnd{}
	}
	m.receipts[e.CallID] = e
}

// Decided records a decision.
func (m *Memory) Decided(d Decision) {
	d.At = micros(d.At)
	if m.decisions == nil {
		m.decisions = map[string]Decision{}
	}
	m.decisions[d.Digest] = d
	m.Denied(d)
}

// Denied records a denial by a person. It counts from the moment it is accepted, before its question has ended. Of
// several denials of a call, the earliest counts.
func (m *Memory) Denied(d Decision) {
	first, before := m.denials[d.CallID]
	if d.Outcome == Denied && d.By != "" && d.CallID != "" && (!before || d.At.Before(first.At)) {
		if m.denials == nil {
			m.denials = map[string]Decision{}
		}
		m.denials[d.CallID] = d
	}
}

// Place is a counter's entry for a call that passed or is delayed.
type Place struct {
	At     time.Time
	CallID string
	Amount json.Number // of a [Sum]
	Over   bool        // the rule met the call, but the call passed
}

// Counted appends calls to a counter.
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

// Asked records that people were asked a question.
func (m *Memory) Asked(digest string) {
	if m.asked == nil {
		m.asked = map[string]bool{}
	}
	m.asked[digest] = true
}

// micros returns a time with the precision of Postgres.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// view is the result of a check.
type view struct {
	met      bool
	seen     receipts.Evidence
	counted  bool      // the call already has its place
	missed   bool      // it missed its start, and has lost its place
	startsAt time.Time // for a wait: when there is room, or the time of its place
}

// Gate answers the checks of a call. It counts the call if the call passes them or delays it.
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
		if check.Action == Wait && waits == 1 && all[i].counted &&
			all[i].startsAt.Before(now.Add(-max(missedBy, milliseconds(check.WithinMS)))) {
			// as without a place: otherwise other calls that missed theirs would run at the same time
			all[i] = m.look(now, MemoryCall{}, check)
			all[i].missed = true
		}
	}
	a := Answer{At: now}
	for i, check := range checks {
		d, decided := m.decisions[check.Digest]
		switch {
		case check.Digest == "":
		case decided && d.Outcome == Passed:
			given := receipts.Approval{Rule: check.Rule, ID: d.ID, By: d.By, At: d.At, Digest: d.Digest, Reason: d.Reason}
			a.Approvals = append(a.Approvals, given)
		case decided:
			all[i].met, all[i].seen.By, all[i].seen.Reason = true, d.By, d.Reason
		case m.asked[check.Digest]:
			all[i].met = true // people were asked, whatever the check saw
		}
		if all[i].met {
			a.Met = append(a.Met, Met{Check: i, Seen: all[i].seen})
		}
	}
	a.Outcome = m.outcome(checks, all)
	m.holdDenial(&a, c, checks)
	switch a.Outcome {
	case Passed:
		for i, check := range checks {
			if check.Counter != "" && check.Kind != AtOnce && !all[i].counted {
				m.count(check, c.ID, now, all[i])
			}
		}
	case Delayed:
		for i, check := range checks {
			if check.Action == Wait && all[i].met {
				a.StartsAt = latest(a.StartsAt, all[i].startsAt)
			}
		}
		for i, check := range checks {
			// The call checks the other limits at that turn. A place with a future time would hold up all later calls of its
			// counter.
			if check.Action == Wait && !all[i].counted && all[i].startsAt.Equal(a.StartsAt) {
				m.count(check, c.ID, a.StartsAt, view{missed: all[i].missed})
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

// holdDenial applies a denial that no current check needs.
func (m *Memory) holdDenial(a *Answer, c MemoryCall, checks []Check) {
	d, denied := m.denials[c.ID]
	if !denied || slices.ContainsFunc(checks, func(k Check) bool { return m.decisions[k.Digest].Outcome == Denied }) {
		return
	}
	a.Met = slices.DeleteFunc(a.Met, func(met Met) bool {
		return checks[met.Check].Digest != "" && checks[met.Check].Rule == d.Rule
	})
	a.Met = append(a.Met, Met{Check: NoCheck, Rule: d.Rule, Seen: receipts.Evidence{By: d.By, Reason: d.Reason}})
	if a.Outcome != Stopped {
		a.Outcome = Denied
	}
}

// outcome returns the combined result of the checks.
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

// missedBy is how late a call may be for its start; the limit's period counts instead if it is longer.
const missedBy = time.Minute

// count gives a call its place in a check's counter, at a time that never decreases.
func (m *Memory) count(check Check, call string, at time.Time, v view) {
	if v.missed {
		delete(m.places, [2]string{check.Counter, call})
	}
	m.Counted(check.Counter, Place{At: m.clock(check.Counter, at), CallID: call, Amount: check.Add, Over: v.met})
}

// clock returns the time of a counter, which never goes back.
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
	case AtOnce:
		return view{}
	case Required:
		_, succeeded := m.before(c, check, func(e CallEnd) bool { return e.Status == "succeeded" })
		return view{met: !succeeded}
	case Afterwards:
		e, ended := m.before(c, check, func(e CallEnd) bool {
			return slices.Contains(check.Ended, e.as()) || slices.Contains(check.Ended, e.Status)
		})
		if !ended {
			return view{}
		}
		return view{met: true, seen: receipts.Evidence{Tool: e.Tool, Ended: e.as(), ReceiptID: e.ReceiptID, EndedAt: &e.At}}
	}
	if place, has := m.places[[2]string{check.Counter, c.ID}]; has { // it was let through, or is delayed
		s := view{counted: true, startsAt: place.at}
		switch {
		case check.Action == Wait && place.at.After(now):
			s.met, s.seen.FreeAt = true, &s.startsAt
		case check.Action == Warn:
			s.met = place.over // the earlier verdict remains
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

// calls checks whether the limit's number of calls was let through already.
func (m *Memory) calls(now, at time.Time, check Check) view {
	rows, most := m.counters[check.Counter], int(rat(check.Max).Num().Int64())
	if most == 0 {
		return view{met: true, seen: receipts.Evidence{NotInTime: check.Action == Wait}}
	}
	free := at
	if len(rows) >= most {
		free = latest(at, rows[len(rows)-most].at.Add(milliseconds(check.WithinMS)))
	}
	if check.Action == Wait { // it starts after the others
		if !free.After(now) {
			return view{startsAt: free}
		}
		last := now.Add(milliseconds(check.AtMostMS))
		late := check.AtMostMS > 0 && free.After(last)
		free = check.coarse(free)
		if check.AtMostMS > 0 && !late && free.After(last) {
			free = last // rounding must not postpone a start
		}
		return view{met: true, startsAt: free, seen: receipts.Evidence{FreeAt: &free, NotInTime: late}}
	}
	if !free.After(at) {
		return view{}
	}
	free = check.coarse(free)
	return view{met: true, seen: receipts.Evidence{FreeAt: &free}}
}

// sum checks whether the calls of the window leave room for this call's amount.
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

// failures checks whether the last calls that were let through and ended all failed, and the pause is not over.
func (m *Memory) failures(at time.Time, check Check) view {
	rows := m.counters[check.Counter]
	var failed []string
	var last time.Time
	for _, r := range slices.Backward(rows[max(0, len(rows)-1000):]) {
		e, ok := m.receipts[r.call]
		if !ok {
			continue
		}
		if e.Status != "failed" {
			break
		}
		failed, last = append(failed, e.ReceiptID), latest(last, e.At)
		if len(failed) == check.InARow {
			break
		}
	}
	free := last.Add(milliseconds(check.CooldownMS))
	if len(failed) < check.InARow || !free.After(at) {
		return view{}
	}
	free = check.coarse(free)
	if check.CoarseMS > 0 {
		failed = nil
	}
	return view{met: true, seen: receipts.Evidence{FreeAt: &free, Receipts: failed}}
}

// before returns the latest matching end, in the session of a call and its caller, that existed when the call was made.
func (m *Memory) before(c MemoryCall, check Check, fits func(CallEnd) bool) (last CallEnd, found bool) {
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

// as returns a rule's name for an end.
func (e CallEnd) as() string { return cmp.Or(e.Code, e.Status) }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// rat parses a number of a check, which is valid.
func rat(n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		return new(big.Rat)
	}
	return r
}

// decimal formats a sum of decimals, which has no more decimal places than they have.
func decimal(r *big.Rat) json.Number {
	places, _ := r.FloatPrec()
	return json.Number(r.FloatString(places))
}
