package rules

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// SequenceResult is the result of a sequence.
type SequenceResult struct {
	Name string
	// Differs is the first step whose outcome differs from the expected one; nil if there is none.
	Differs *Difference
}

// Difference is an outcome that differs from the file's expectation.
type Difference struct {
	Step  int    // from 1
	Tool  string // of the step's call; empty for an event of a coding agent
	Field string // expect, then or question
	// Want and Got are the expected and the actual outcome, in the words of expect. Outcomes of ask name the people who
	// decide.
	Want, Got string
	Message   string // for the caller; it may be empty
}

// Play plays the sequences with the tools of a registry. An error is a mistake in the file, such as a tool that the
// registry lacks.
func (s *Scenario) Play(r *registry.Registry) ([]SequenceResult, error) {
	judge := s.Set.For(r)
	var all []SequenceResult
	for _, q := range s.sequences {
		p := &player{judge: judge, registry: r, begin: s.Hook, now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
			calls: map[string]*stepCall{}}
		err := p.play(q)
		if p.hook != nil {
			err = errors.Join(err, p.hook.Close())
		}
		if err != nil {
			return nil, fmt.Errorf("the sequence %s: %w", schema.Show(q.Name), err)
		}
		all = append(all, SequenceResult{q.Name, p.differs})
	}
	return all, nil
}

// player plays one sequence. The sequence's steps and the events between them move the clock.
type player struct {
	judge    *Judge
	registry *registry.Registry
	memory   Memory
	begin    func(Coding) (Hook, error)
	hook     Hook // nil until the first step that needs it
	now      time.Time
	calls    map[string]*stepCall
	coming   []futureEvent // in the order of time
	receipts int
	differs  *Difference
}

// futureEvent is a future event of a call: its start, its end, or the deadline of its questions.
type futureEvent struct {
	at time.Time
	do func()
}

// stepCall is a call of a step.
type stepCall struct {
	Call
	step    step
	number  int // of the step, from 1
	made    time.Time
	came    string // its last outcome, in the words of expect
	message string
	asked   []string // digests of open questions
	texts   []string // the texts of the questions that were asked
}

func (p *player) play(q sequence) error {
	began := p.now
	for i, s := range q.Steps {
		number := i + 1
		at := p.now
		if s.At != nil {
			at = began.Add(time.Duration(*s.At))
		}
		p.runUntil(at)
		if err := p.step(number, s, at); err != nil {
			return fmt.Errorf("step %d: %w", number, err)
		}
	}
	p.runUntil(p.now.AddDate(100, 0, 0))
	for _, c := range p.calls {
		p.compare(c, "then", c.step.Then)
	}
	return nil
}

// later schedules an event after all others that are earlier or at the same time.
func (p *player) later(at time.Time, do func()) {
	i := slices.IndexFunc(p.coming, func(c futureEvent) bool { return c.at.After(at) })
	if i < 0 {
		i = len(p.coming)
	}
	p.coming = slices.Insert(p.coming, i, futureEvent{at, do})
}

// runUntil applies the events until a time.
func (p *player) runUntil(at time.Time) {
	for len(p.coming) > 0 && !p.coming[0].at.After(at) {
		next := p.coming[0]
		p.coming = p.coming[1:]
		p.now = latest(p.now, next.at)
		next.do()
	}
}

func (p *player) step(number int, s step, at time.Time) error {
	if at.Before(p.now) {
		return fmt.Errorf("at is earlier than in a previous step: sort the steps by time")
	}
	p.now = at
	if s.Hook != nil || s.Files != nil {
		return p.event(number, s)
	}
	if (s.Call != nil) == (s.Of != "") || s.Of != "" && (s.Answer == "" || s.Expect+s.Question+s.Then+s.End != "") {
		return fmt.Errorf("a step has either call with its expectations, or of and answer, or hook and files")
	}
	if s.Of != "" {
		c, ok := p.calls[s.Of]
		if !ok {
			return fmt.Errorf("of names no earlier call%s", schema.DidYouMean(s.Of, p.ids()))
		}
		return p.answer(c, s)
	}
	c, err := p.make(number, s)
	if err != nil {
		return err
	}
	p.gate(c)
	p.compare(c, "expect", s.Expect)
	if s.Question != "" && p.differs == nil && !slices.Contains(c.texts, s.Question) {
		p.differs = &Difference{Step: number, Tool: c.Tool.Name, Field: "question", Want: s.Question,
			Got: strings.Join(c.texts, "\n")}
	}
	if s.Answer != "" && p.differs == nil { // if the outcome differs, nobody is asked
		return p.answer(c, s)
	}
	return nil
}

// event passes a step's event to the hook of a coding agent.
func (p *player) event(number int, s step) error {
	if s.Call != nil || s.Of+s.Question+s.Then+s.End+s.Answer+s.Reason != "" || s.Takes != 0 || s.Result != nil ||
		s.Effects != nil || s.Hook == nil && s.Expect != "" {
		return errors.New("a step with hook or files can also have expect, and nothing else")
	}
	if p.hook == nil {
		if p.begin == nil {
			return errors.New("this program cannot judge hook events")
		}
		begun, err := p.begin(p.judge.set.coding)
		if err != nil {
			return err
		}
		p.hook = begun
	}
	if err := p.hook.Write(s.Files); err != nil || s.Hook == nil {
		return err
	}
	event := []byte(s.Hook)
	var text string
	if json.Unmarshal(event, &text) == nil {
		event = []byte(text)
	}
	came, message, unread, err := p.hook.Judge(context.Background(), event)
	switch {
	case err != nil:
		return err
	case unread != nil && s.Expect == "":
		return fmt.Errorf("%w; gem hook lets it through: expect error if that is meant", unread)
	}
	p.compare(&stepCall{step: s, number: number, came: came, message: message}, "expect", s.Expect)
	return nil
}

// make makes the call of a step.
func (p *player) make(number int, s step) (*stepCall, error) {
	tool, ok := p.registry.Tool(s.Call.Tool)
	if !ok {
		return nil, fmt.Errorf("the registry has no tool %s%s", schema.Show(s.Call.Tool), p.registry.DidYouMean(s.Call.Tool))
	}
	c := &stepCall{step: s, number: number, made: p.now,
		Call: Call{ID: cmp.Or(s.Call.ID, fmt.Sprint("step ", number)), Tool: tool, Input: orEmpty(s.Call.Input),
			SessionID: s.Call.Session, CreatedBy: s.Call.Caller, SignedIn: s.Call.SignedIn, Child: s.Call.Child}}
	if faults := tool.ValidateInput(c.Input); len(faults) > 0 {
		return nil, fmt.Errorf("the input does not fit %s: %s", tool.Name, cmp.Or(faults[0].Path+" ", " ")+faults[0].Message)
	}
	if p.calls[c.ID] != nil {
		return nil, fmt.Errorf("there is another call %s: give it another id", schema.Show(c.ID))
	}
	p.calls[c.ID] = c
	return c, nil
}

func (p *player) ids() (ids []string) {
	for id := range p.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// answer answers all questions about a call, which is then judged again.
func (p *player) answer(c *stepCall, s step) error {
	if len(c.asked) == 0 && p.differs != nil { // the difference explains why nothing is asked
		return nil
	}
	if len(c.asked) == 0 {
		return fmt.Errorf("no question about the call %s is open: its outcome is %s", schema.Show(c.ID), c.came)
	}
	for _, digest := range c.asked {
		d := Decision{Digest: digest, Outcome: Passed, By: "somebody", ID: "the answer to " + c.ID, At: p.now}
		if s.Answer == "denied" {
			d.Outcome, d.Reason = Denied, cmp.Or(s.Reason, "no")
		}
		p.memory.Decided(d)
	}
	c.asked = nil
	p.gate(c)
	return nil
}

// gate judges a call, and schedules the consequences.
func (p *player) gate(c *stepCall) {
	judgement := p.judge.Judge(c.Call)
	var answer Answer
	if len(judgement.Checks) > 0 {
		answer = p.memory.Gate(p.now, MemoryCall{ID: c.ID, SessionID: c.SessionID, CreatedBy: c.CreatedBy, CreatedAt: c.made},
			judgement.Checks)
	}
	ruling := judgement.Rule(p.judge.set.Version, answer)
	c.message = ruling.Message
	if answer.Outcome != Asked {
		c.asked = nil
	}
	switch {
	case ruling.Code != "":
		c.came = fails(ruling)
		p.end(c, "failed", ruling.Code)
	case answer.Outcome == Delayed:
		c.came = said("wait", ruling.Verdicts, func(v Verdict) bool { return v.Action == Wait }) + " " +
			span(answer.StartsAt.Sub(p.now).Milliseconds())
		p.later(answer.StartsAt, func() { p.gate(c) })
	case answer.Outcome == Asked:
		p.ask(c, judgement, answer)
	default:
		p.run(c, ruling)
	}
}

// ask makes a call wait for people until their deadline.
func (p *player) ask(c *stepCall, judgement Judgement, answer Answer) {
	var names []string
	for _, met := range answer.Met {
		check := judgement.Checks[met.Check]
		if check.Action != Ask || answer.approves(check) {
			continue
		}
		names = append(names, check.Rule)
		if slices.Contains(c.asked, check.Digest) {
			continue
		}
		c.asked, c.texts = append(c.asked, check.Digest), append(c.texts, check.asksText())
		p.later(p.now.Add(milliseconds(check.AskMS)), func() { p.expire(c, check.Digest) })
	}
	slices.Sort(names)
	c.came = "ask " + strings.Join(names, " ")
}

// expire ends a question that nobody has answered.
func (p *player) expire(c *stepCall, digest string) {
	i := slices.Index(c.asked, digest)
	if i < 0 {
		return
	}
	c.asked = slices.Delete(c.asked, i, i+1)
	p.memory.Decided(Decision{Digest: digest, Outcome: Expired, Reason: "expired", At: p.now})
	p.gate(c)
}

// run runs a call, and judges its result.
func (p *player) run(c *stepCall, ruling Ruling) {
	status, code := cmp.Or(c.step.End, "succeeded"), ""
	switch status {
	case "succeeded", "not_configured":
	case "failed":
		code = "execution_error"
	default:
		status, code = "failed", status
	}
	if status == "succeeded" {
		after := Judgement{Verdicts: p.judge.JudgeResult(c.Call, orEmpty(c.step.Result), orEmpty(c.step.Effects))}.Rule(
			p.judge.set.Version, Answer{})
		ruling.Verdicts = append(ruling.Verdicts, after.Verdicts...)
		if after.Code != "" {
			ruling.Code, ruling.Message = after.Code, after.Message
			status, code = "failed", after.Code
		}
	}
	c.message = ruling.Message
	if ruling.Code != "" {
		c.came = fails(ruling)
	} else if c.came = said("warn", ruling.Verdicts, func(v Verdict) bool { return v.Action == Warn }); c.came == "warn" {
		c.came = "run"
	}
	if c.step.Takes == 0 {
		p.end(c, status, code)
		return
	}
	p.later(p.now.Add(time.Duration(c.step.Takes)), func() { p.end(c, status, code) })
}

func orEmpty(text json.RawMessage) json.RawMessage {
	if text == nil {
		return json.RawMessage("{}")
	}
	return text
}

func (p *player) end(c *stepCall, status, code string) {
	p.receipts++
	p.memory.Ended(CallEnd{CallID: c.ID, Tool: c.Tool.Name, Status: status, Code: code,
		ReceiptID: fmt.Sprint("receipt ", p.receipts), SessionID: c.SessionID,
		CreatedBy: c.CreatedBy, At: p.now})
}

// fails returns how rules stopped a call, in the words of expect.
func fails(r Ruling) string {
	switch r.Code {
	case codeDenied, codeExpired:
		d, _ := r.Details.(Details)
		return strings.TrimPrefix(r.Code, "approval_") + " " + d.Rule
	case codeFault:
		return said("error", r.Verdicts, func(v Verdict) bool { return v.Undecided })
	}
	return said("block", r.Verdicts, func(v Verdict) bool {
		return v.Action == Block || v.Seen != nil && v.Seen.NotInTime
	})
}

// said lists the rules whose verdicts match, after a word.
func said(word string, verdicts []Verdict, fits func(Verdict) bool) string {
	var names []string
	for _, v := range verdicts {
		if fits(v) {
			names = append(names, v.Rule)
		}
	}
	slices.Sort(names)
	return strings.Join(append([]string{word}, slices.Compact(names)...), " ")
}

// compare records the first step whose outcome differs from the expected one.
func (p *player) compare(c *stepCall, field, want string) {
	if want == "" || expected(want, c.came) || p.differs != nil && p.differs.Step <= c.number {
		return
	}
	p.differs = &Difference{Step: c.number, Field: field, Want: p.withPeople(want), Got: p.withPeople(c.came),
		Message: c.message}
	if c.Tool != nil {
		p.differs.Tool = c.Tool.Name
	}
}

// withPeople adds the roles that decide to an outcome in which rules ask.
func (p *player) withPeople(outcome string) string {
	words := strings.Fields(outcome)
	if len(words) < 2 || words[0] != "ask" {
		return outcome
	}
	var roles []string
	for _, rule := range p.judge.set.Rules() {
		if slices.Contains(words[1:], rule.Name) {
			roles = append(roles, rule.Of...)
		}
	}
	if len(roles) == 0 {
		return outcome
	}
	slices.Sort(roles)
	return outcome + " (approval by " + strings.Join(slices.Compact(roles), " or ") + ")"
}

// expected reports whether the outcome of a call is the expected one. It ignores the order of rules.
func expected(want, got string) bool {
	wants, gots := strings.Fields(want), strings.Fields(got)
	if wants[0] != gots[0] || len(wants) == 1 {
		return wants[0] == gots[0]
	}
	var wait, waits string
	if wants[0] == "wait" {
		gots, waits = gots[:len(gots)-1], gots[len(gots)-1]
		var p period
		if last := wants[len(wants)-1]; p.UnmarshalText([]byte(last)) == nil {
			wants, wait = wants[:len(wants)-1], span(time.Duration(p).Milliseconds())
		}
	}
	slices.Sort(wants[1:])
	return (wait == "" || wait == waits) && (len(wants) == 1 || slices.Equal(wants, gots))
}
