package dashboard

import (
	"context"
	"fmt"
	"html"
	"strconv"

	"github.com/gemworker/gem/client/view"
)

const (
	turnsShown = 10
	// Limits of a page: characters of one text, and bytes of HTML of all texts.
	textShown  = 4000
	textsShown = 80 << 10
	mostWanted = 32 // calls of an agent in a turn
)

// conversationPage is the work of an agent, turn by turn.
type conversationPage struct {
	Call    *view.Call
	Task    *agentTask // nil for a viewer
	Turns   []conversationTurn
	Of      int // turns so far
	First   int // of this page
	Earlier int // the first turn of the previous page, or 0
	Later   int
	Usage   view.Usage // of all turns
	Models  []string
	Unknown int // requests of unknown cost
}

// conversationTurn is a turn with all calls that it requested.
type conversationTurn struct {
	turn
	Texts []answerPart
	Calls []wantedCall
}

// wantedCall is a call that a model requested, whether it was made or not.
type wantedCall struct {
	Wants *answerPart // nil for a viewer
	Made  *item
	Not   *view.UnmadeCall
}

// conversation shows a call to agent.run turn by turn. Its /conversation.json has no payloads.
func (s *site) conversation(ctx context.Context, r *request) (*content, error) {
	id := r.PathValue("id")
	if !view.IsID(id) {
		return nil, notFound("This call does not exist.")
	}
	p := conversationPage{First: 1}
	if from := r.URL.Query().Get("from"); from != "" {
		n, err := strconv.Atoi(from)
		if err != nil || n < 1 || n > 1000 {
			return nil, badRequest("from is the number of a turn.")
		}
		p.First = n
	}
	var asked []view.Turn
	err := view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.Call, err = view.Get(ctx, db, id); err != nil {
			return err
		}
		if p.Call.Tool != agentRun {
			return notFound("This is not a call to agent.run, so it has no conversation.")
		}
		if asked, err = view.Turns(ctx, db, []string{id}); err != nil {
			return err
		}
		p.sum(asked)
		return p.read(ctx, db, r.operates(), asked)
	})
	if err != nil {
		return nil, err
	}
	return &content{Title: "Conversation: " + p.Call.Status, Template: "conversation", Data: p, Watch: untilEnded(p.Call),
		JSON: map[string]any{"call": p.Call, "turns": asked}}, nil
}

// untilEnded returns the watch of a page on a call: a finished call does not change.
func untilEnded(c *view.Call) string {
	if c.EndedAt.IsZero() {
		return "call:" + c.ID
	}
	return ""
}

// sum adds up the usage of the turns, and selects those of the page.
func (p *conversationPage) sum(asked []view.Turn) {
	p.Models = models(asked)
	for _, t := range asked {
		if n, _, ok := turnOf(t.Label); ok {
			p.Of = max(p.Of, n)
		}
		p.Usage.Requests += t.Requests
		p.Usage.InputTokens += t.InputTokens
		p.Usage.OutputTokens += t.OutputTokens
		p.Usage.Cost += t.Cost
		p.Unknown += t.Unknown
	}
	if p.First > 1 {
		p.Earlier = max(1, p.First-turnsShown)
	}
	if p.First+turnsShown <= p.Of {
		p.Later = p.First + turnsShown
	}
}

// read reads the turns of the page.
func (p *conversationPage) read(ctx context.Context, db view.DB, operates bool, asked []view.Turn) error {
	var numbers []int
	var names []string
	for n := p.First; n < p.First+turnsShown && n <= p.Of; n++ {
		numbers = append(numbers, n)
		for m := 1; m <= mostWanted; m++ {
			names = append(names, fmt.Sprintf("turn %d call %d", n, m))
		}
	}
	if numbers == nil {
		numbers = []int{} // empty, since nil means all
	}
	all, err := readTurns(ctx, db, operates, []string{p.Call.ID}, asked, numbers, textShown)
	if err != nil {
		return err
	}
	calls, err := view.StepCalls(ctx, db, p.Call.ID, names)
	if err != nil {
		return err
	}
	var t thread
	for _, c := range calls {
		t.Items = append(t.Items, item{Call: &view.SessionCall{Call: c}})
	}
	if operates {
		if p.Task, err = readTask(ctx, db, p.Call.ID); err != nil {
			return err
		}
		if err = t.fill(ctx, db, previewed); err != nil {
			return err
		}
	}
	t.bound()
	left := textsShown
	for _, n := range numbers {
		if one := all[p.Call.ID][n]; one != nil {
			p.Turns = append(p.Turns, one.whole(t.Items, &left))
		}
	}
	return nil
}

// whole combines the texts and the calls of a turn. left is the room for texts on the page.
func (t *turn) whole(calls []item, left *int) conversationTurn {
	w := conversationTurn{turn: *t}
	wanted := map[int]*wantedCall{}
	at := func(m int) *wantedCall {
		if wanted[m] == nil {
			wanted[m] = &wantedCall{}
		}
		return wanted[m]
	}
	most := 0
	note := func(name string) *wantedCall {
		n, m, ok := turnOf(name)
		if !ok || n != t.N || m == 0 {
			return nil
		}
		most = max(most, m)
		return at(m)
	}
	for i := range calls {
		if c := note(calls[i].Call.ParentStep); c != nil {
			c.Made = &calls[i]
		}
	}
	for i := range t.NotMade {
		if c := note(t.NotMade[i].Name); c != nil {
			c.Not = &t.NotMade[i]
		}
	}
	if t.Answer != nil {
		calls := 0
		for _, part := range t.Answer.Parts {
			part.Text = fit(part.Text, left)
			if part.Type == "tool_call" {
				calls++
				most = max(most, calls)
				at(calls).Wants = &part
			} else {
				w.Texts = append(w.Texts, part)
			}
		}
	}
	for m := 1; m <= most; m++ {
		if wanted[m] != nil {
			w.Calls = append(w.Calls, *wanted[m])
		}
	}
	return w
}

// fit cuts a text to the room on the page, but not to nothing.
func fit(text string, left *int) string {
	if *left <= 0 {
		text = cut(40, text)
	}
	*left -= len(html.EscapeString(text))
	return text
}
