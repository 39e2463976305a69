package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
)

// thread is a conversation in order: calls, and the turns of agents before their calls.
type thread struct {
	Items  []item
	Models []string // the models that were asked
}

// item is a call of a thread, or a turn of an agent.
type item struct {
	Depth int
	Call  *view.SessionCall
	Turn  *turn
	// For operators: the input of a call and its outcome.
	Payload *payload
}

// turn is an answer of an agent's model, with the calls that it requested and that were not made.
type turn struct {
	N       int
	CallID  string       // of the agent
	Asked   *view.Turn   // nil if no request is known
	Answer  *modelAnswer // nil for a viewer, and until there is an answer
	NotMade []view.UnmadeCall
}

// Indent returns the indentation of an item. It is limited, so that deep trees stay on the page.
func (i item) Indent() int { return min(i.Depth, 8) }

// Key identifies an item in a thread.
func (i item) Key() string {
	if i.Call != nil {
		return i.Call.ID
	}
	return fmt.Sprintf("%s turn %d", i.Turn.CallID, i.Turn.N)
}

// Took returns how long the call took: its last attempt, or the whole of a durable call, whose attempts are parts of
// it. It is 0 until the call has ended.
func (i item) Took() time.Duration {
	switch {
	case i.Call.EndedAt.IsZero():
		return 0
	case i.Call.Steps > 0:
		return i.Call.EndedAt.Sub(i.Call.CreatedAt)
	case i.Call.DurationMS != nil:
		return time.Duration(*i.Call.DurationMS * float64(time.Millisecond))
	}
	return 0
}

// agentRun is the tool whose steps are turns.
const agentRun = "agent.run"

// turnOf reads the name of an agent's step: turn 3, or turn 3 call 2, where call is 2.
func turnOf(name string) (turn, call int, ok bool) {
	rest, ok := strings.CutPrefix(name, "turn ")
	if !ok {
		return 0, 0, false
	}
	first, second, isCall := strings.Cut(rest, " call ")
	turn, err := strconv.Atoi(first)
	if err != nil || turn < 1 {
		return 0, 0, false
	}
	if isCall {
		if call, err = strconv.Atoi(second); err != nil || call < 1 {
			return 0, 0, false
		}
	}
	return turn, call, true
}

// turns are the turns of some agents, by the agent's id and the number of the turn.
type turns map[string]map[int]*turn

// readTurns reads the turns of agents from their requests to models, and for operators the models' answers, each text
// cut. numbers are those of the turns; nil means all.
func readTurns(ctx context.Context, db view.DB, operates bool, agents []string, asked []view.Turn, numbers []int,
	most int) (turns, error) {
	all := turns{}
	if len(agents) == 0 {
		return all, nil
	}
	at := func(id string, n int) *turn {
		if numbers != nil && !slices.Contains(numbers, n) {
			return &turn{} // of another page
		}
		if all[id] == nil {
			all[id] = map[int]*turn{}
		}
		if all[id][n] == nil {
			all[id][n] = &turn{N: n, CallID: id}
		}
		return all[id][n]
	}
	for i, t := range asked {
		if n, _, ok := turnOf(t.Label); ok && slices.Contains(agents, t.CallID) {
			at(t.CallID, n).Asked = &asked[i]
		}
	}
	refused, err := view.CallsNotMade(ctx, db, agents)
	if err != nil {
		return nil, err
	}
	for _, r := range refused {
		if n, _, ok := turnOf(r.Name); ok {
			t := at(r.CallID, n)
			t.NotMade = append(t.NotMade, r)
		}
	}
	if !operates {
		return all, nil
	}
	var names []string
	for _, n := range numbers {
		names = append(names, fmt.Sprintf("turn %d", n))
	}
	answers, err := readModelAnswers(ctx, db, agents, names, most)
	if err != nil {
		return nil, err
	}
	for key, s := range answers {
		if n, call, ok := turnOf(key[1]); ok && call == 0 {
			at(key[0], n).Answer = &s
		}
	}
	return all, nil
}

// models returns the requested models, without duplicates.
func models(asked []view.Turn) (names []string) {
	for _, t := range asked {
		if !slices.Contains(names, t.Model) {
			names = append(names, t.Model)
		}
	}
	return names
}

// weave inserts the turns of agents into calls, which are ordered with children after their parents. Agents whose
// calls continue on the next page have their other turns there. above are the calls of earlier pages that this page's
// calls belong to: if one is an agent, the turn with which the page begins is on both pages.
func weave(above []view.Call, calls []view.SessionCall, all turns, goesOn []string) []item {
	type open struct {
		id    string
		depth int // of its calls
		next  int // its first turn that is not in the thread yet
	}
	var items []item
	var agents []open // whose call the next one may be, the innermost last
	upto := func(a *open, n int) {
		for ; a.next <= n; a.next++ {
			if t := all[a.id][a.next]; t != nil {
				items = append(items, item{Depth: a.depth, Turn: t})
			}
		}
	}
	leave := func(depth int, parent string) {
		for len(agents) > 0 {
			a := &agents[len(agents)-1]
			if a.depth < depth || a.depth == depth && a.id == parent {
				return
			}
			if !slices.Contains(goesOn, a.id) {
				upto(a, last(all[a.id]))
			}
			agents = agents[:len(agents)-1]
		}
	}
	for i, a := range above {
		below := calls[0].ParentStep
		if i+1 < len(above) {
			below = above[i+1].ParentStep
		}
		if n, m, ok := turnOf(below); ok && m > 0 && all[a.ID] != nil {
			if i+1 < len(above) {
				n++
			}
			agents = append(agents, open{a.ID, 0, n})
		}
	}
	for i := range calls {
		c := &calls[i]
		leave(c.Depth, c.ParentID)
		if n, m, ok := turnOf(c.ParentStep); ok && m > 0 && all[c.ParentID] != nil {
			if k := slices.IndexFunc(agents, func(a open) bool { return a.id == c.ParentID }); k >= 0 {
				upto(&agents[k], n)
			} else { // its agent belongs to another session
				a := open{c.ParentID, c.Depth, n}
				upto(&a, n)
				agents = append(agents, a)
			}
		}
		items = append(items, item{Depth: c.Depth, Call: c})
		if all[c.ID] != nil {
			agents = append(agents, open{c.ID, c.Depth + 1, 1})
		}
	}
	leave(-1, "")
	return items
}

// bound cuts the texts of a thread to the room on the page.
func (t *thread) bound() {
	left := textsShown / 2
	for _, i := range t.Items {
		if p := i.Payload; p != nil {
			p.Input, p.Result = fit(cut(previewed, p.Input), &left), fit(cut(previewed, p.Result), &left)
			for n := range p.Verdicts {
				p.Verdicts[n].Message = fit(cut(previewed, p.Verdicts[n].Message), &left)
			}
		}
		if i.Call != nil {
			i.Call.Message = fit(cut(previewed, i.Call.Message), &left)
			continue
		}
		if said := i.Turn.Answer; said != nil {
			if left <= 0 {
				said.Parts = said.Parts[:min(len(said.Parts), 2)]
			}
			for n := range said.Parts {
				said.Parts[n].Text = fit(cut(previewed, said.Parts[n].Text), &left)
			}
		}
		if left <= 0 {
			i.Turn.NotMade = i.Turn.NotMade[:min(len(i.Turn.NotMade), 2)]
		}
		for n := range i.Turn.NotMade {
			i.Turn.NotMade[n].Message = fit(cut(previewed, i.Turn.NotMade[n].Message), &left)
		}
	}
}

// last returns the highest number of some turns.
func last(of map[int]*turn) (n int) {
	for k := range of {
		n = max(n, k)
	}
	return n
}

// agentsOf returns the agents whose turns belong to some calls: agents among them, and the parents of the others.
func agentsOf(above []view.Call, calls []view.SessionCall) (ids []string) {
	for _, c := range above {
		if c.Tool == agentRun {
			ids = append(ids, c.ID)
		}
	}
	for _, c := range calls {
		id := c.ID
		if _, m, ok := turnOf(c.ParentStep); ok && m > 0 && c.Tool != agentRun {
			id = c.ParentID
		} else if c.Tool != agentRun {
			continue
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
