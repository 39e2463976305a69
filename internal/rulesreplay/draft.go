package rulesreplay

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

// DraftReport describes the effect of draft rules on past calls.
type DraftReport struct {
	Since    time.Time `json:"since"`
	Version  string    `json:"rules_version"`
	Registry string    `json:"registry_version"`
	Calls    int       `json:"calls"`   // the calls that were judged
	Stopped  int       `json:"stopped"` // the judged calls that the rules stop
	Rules    []Effect  `json:"rules"`   // the rules that are not off, in their order
	// Unknown counts the calls that could not be judged, by reason.
	Unknown map[string]int `json:"unknown,omitempty"`
}

// Effect is the effect of one rule on past calls.
type Effect struct {
	Rule    string       `json:"rule"`
	Action  rules.Action `json:"action"`
	Met     int          `json:"met"`
	Warned  int          `json:"warned"`
	Blocked int          `json:"blocked"`
	Asked   int          `json:"asked"`
	Delayed int          `json:"delayed"`
	// MedianDelayMS is the median delay of the delayed calls.
	MedianDelayMS int64 `json:"median_delay_ms,omitempty"`
	// Succeeded counts the matched calls that had succeeded.
	Succeeded int      `json:"succeeded"`
	Examples  []string `json:"examples"` // the ids of the first matched calls

	delays []time.Duration
}

// examples is the number of calls that are named for each rule.
const examples = 3

// Draft judges the calls since a time by other rules, in the order in which they were first claimed, in one read-only
// snapshot. A stopped call counts as not run. A call that waits runs at its start, and a call about which people are
// asked runs at once. The tools are those of the registry that was recorded last, or of other if none was recorded. The
// role must see all rows.
func Draft(ctx context.Context, db Beginner, since time.Time, set *rules.Set, other *registry.Registry) (*DraftReport,
	error) {
	d := &draft{set: set, effects: map[string]*Effect{},
		report: &DraftReport{Since: since, Version: set.Version, Rules: []Effect{}, Unknown: map[string]int{}}}
	err := snapshot(ctx, db, since, func(l *log) error {
		if d.log, d.tools = l, cmp.Or(l.tools[l.latest], other); d.tools == nil {
			return errors.New("this program cannot read a recorded registry, and has none of its own")
		}
		d.judge, d.report.Registry = set.For(d.tools), d.tools.Version
		for _, rule := range set.Rules() {
			d.effects[rule.Name] = &Effect{Rule: rule.Name, Action: rule.Action, Examples: []string{}}
		}
		d.remember()
		if err := l.each(ctx, d.next); err != nil {
			return err
		}
		d.until(time.Time{})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, rule := range set.Rules() {
		if rule.Action == rules.Off {
			continue
		}
		e := d.effects[rule.Name]
		if slices.Sort(e.delays); len(e.delays) > 0 {
			e.MedianDelayMS = e.delays[len(e.delays)/2].Milliseconds()
		}
		d.report.Rules = append(d.report.Rules, *e)
	}
	return d.report, nil
}

// draft judges a log by rules that did not judge it before.
type draft struct {
	log     *log
	set     *rules.Set
	tools   *registry.Registry
	judge   *rules.Judge
	memory  rules.Memory
	coming  comings
	effects map[string]*Effect // by rule
	report  *DraftReport
}

// tried is a call that the draft judges once or twice.
type tried struct {
	*call
	seen    rules.Call
	claimed time.Time
	met     map[string]map[string]bool // the actions of each rule on it
}

// remember replays earlier events: places in counters of the same names, and ends in sessions.
func (d *draft) remember() {
	ours := map[string]bool{}
	for _, id := range d.log.calls {
		ours[id] = true
	}
	for counter, rows := range d.log.runs {
		for _, row := range rows {
			if ours[row.CallID] {
				continue
			}
			d.memory.Counted(counter, row.Place)
			if e, ended := d.log.of[row.CallID]; ended {
				e.SessionID = "" // replayed below
				d.memory.Ended(e)
			}
		}
	}
	for _, ends := range d.log.ends {
		for _, e := range ends {
			if !ours[e.CallID] {
				d.memory.Ended(e)
			}
		}
	}
}

// next judges the next call of the log.
func (d *draft) next(c *call) error {
	t := &tried{call: c, claimed: c.Claims[0].At, met: map[string]map[string]bool{}}
	d.until(t.claimed)
	if c.Receipt != nil && (c.Receipt.Status == "not_configured" ||
		slices.Contains(neverJudged, receipts.Code(c.Receipt.Code))) {
		d.end(t, 0)
		return nil
	}
	tool, found := d.tools.Tool(c.Tool)
	if !found {
		d.report.Unknown[toolLost]++
		d.end(t, 0)
		return nil
	}
	t.seen = rules.Call{ID: c.ID, Tool: tool, Input: c.Input, SessionID: c.Session, CreatedBy: c.Caller,
		SignedIn: c.SignedIn, Child: c.Child}
	d.report.Calls++
	d.gate(t, t.claimed)
	return nil
}

// neverJudged are the ends of calls that no rules judged.
var neverJudged = []receipts.Code{receipts.UnknownTool, receipts.NotAllowed, receipts.ValidationError,
	receipts.KeyReused, receipts.KeyDeadlock}

// gate judges a call at the time of its claim or its start.
func (d *draft) gate(t *tried, now time.Time) {
	judgement := d.judge.Judge(t.seen)
	// a hit on the key precedes the rules' checks
	if t.Receipt != nil && t.Receipt.ReplayOf != "" && len(judgement.Checks) > 0 {
		judgement.Checks, judgement.Verdicts = nil, nil
	}
	answer := rules.Answer{Outcome: rules.Passed}
	for {
		if len(judgement.Checks) > 0 {
			answer = d.memory.Gate(now, t.atGate(), judgement.Checks)
		}
		d.note(t, judgement, answer)
		if answer.Outcome != rules.Asked {
			break
		}
		for _, met := range answer.Met {
			if digest := judgement.Checks[met.Check].Digest; digest != "" {
				d.memory.Decided(rules.Decision{Digest: digest, Outcome: rules.Passed, At: now})
			}
		}
	}
	switch {
	case judgement.Rule(d.set.Version, answer).Code != "":
		d.report.Stopped++
	case answer.Outcome == rules.Delayed:
		for _, met := range answer.Met {
			if check := judgement.Checks[met.Check]; check.Action == rules.Wait {
				d.effects[check.Rule].delays = append(d.effects[check.Rule].delays, answer.StartsAt.Sub(now))
			}
		}
		d.later(answer.StartsAt, func() { d.gate(t, answer.StartsAt) })
	case d.blocksResult(t):
		d.report.Stopped++
	default:
		d.end(t, now.Sub(t.claimed))
	}
}

// note counts each verdict on a call once.
func (d *draft) note(t *tried, judgement rules.Judgement, answer rules.Answer) {
	for _, v := range judgement.Verdicts {
		d.count(t, v.Rule, string(v.Action))
	}
	for _, met := range answer.Met {
		check := judgement.Checks[met.Check]
		action := check.Action
		if met.Seen.NotInTime {
			action = rules.Block
		}
		d.count(t, check.Rule, string(action))
	}
}

// count counts a rule's action on a call.
func (d *draft) count(t *tried, rule, action string) {
	e := d.effects[rule]
	switch {
	case t.met[rule] == nil:
		t.met[rule] = map[string]bool{}
		if e.Met++; len(e.Examples) < examples {
			e.Examples = append(e.Examples, t.ID)
		}
		if t.Status == "succeeded" {
			e.Succeeded++
		}
	case t.met[rule][action]:
		return
	}
	t.met[rule][action] = true
	switch rules.Action(action) {
	case rules.Warn:
		e.Warned++
	case rules.Block:
		e.Blocked++
	case rules.Ask:
		e.Asked++
	case rules.Wait:
		e.Delayed++
	}
}

// blocksResult judges the handler's result and effects, and reports whether a rule blocks them.
func (d *draft) blocksResult(t *tried) (blocked bool) {
	if t.Receipt == nil || t.Receipt.Status != "succeeded" || t.Receipt.ReplayOf != "" {
		return false
	}
	for _, v := range d.judge.JudgeResult(t.seen, t.Receipt.Result, t.Receipt.effects()) {
		d.count(t, v.Rule, string(v.Action))
		blocked = blocked || v.Action == rules.Block
	}
	return blocked
}

// effects returns the effects that the handler recorded.
func (r *receipt) effects() json.RawMessage {
	var effects receipts.HandlerEffects
	if json.Unmarshal(r.Effects, &effects) == nil {
		if text, err := json.Marshal(effects); err == nil {
			return text
		}
	}
	return json.RawMessage("{}")
}

// end records how a call ended, later by the time that the call waited. The end of a call that other rules had stopped
// is unknown.
func (d *draft) end(t *tried, later time.Duration) {
	if t.Receipt == nil || slices.Contains(stopped, receipts.Code(t.Receipt.Code)) {
		return
	}
	at := t.Receipt.CreatedAt.Add(later)
	d.later(at, func() {
		d.memory.Ended(rules.CallEnd{CallID: t.ID, Tool: t.Tool, Status: t.Receipt.Status, Code: t.Receipt.Code,
			ReceiptID: t.Receipt.ID, SessionID: t.Session,
			CreatedBy: t.Caller, At: at})
	})
}

// stopped are the ends of calls that rules stopped without asking people.
var stopped = []receipts.Code{receipts.RuleBlocked, receipts.LimitReached, receipts.RuleError}

// futureEvent is a future event: the start of a call, or its end.
type futureEvent struct {
	at     time.Time
	number int // orders events of the same time
	do     func()
}

func (d *draft) later(at time.Time, do func()) {
	d.coming.made++
	heap.Push(&d.coming, futureEvent{at, d.coming.made, do})
}

// until applies the events before a time, or all if the time is zero.
func (d *draft) until(at time.Time) {
	for len(d.coming.all) > 0 && (at.IsZero() || !d.coming.all[0].at.After(at)) {
		heap.Pop(&d.coming).(futureEvent).do()
	}
}

// comings are sorted by time.
type comings struct {
	all  []futureEvent
	made int
}

func (c *comings) Len() int { return len(c.all) }
func (c *comings) Less(i, j int) bool {
	a, b := c.all[i], c.all[j]
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.number, b.number)) < 0
}
func (c *comings) Swap(i, j int) { c.all[i], c.all[j] = c.all[j], c.all[i] }
func (c *comings) Push(x any)    { c.all = append(c.all, x.(futureEvent)) }
func (c *comings) Pop() any {
	last := c.all[len(c.all)-1]
	c.all = c.all[:len(c.all)-1]
	return last
}
