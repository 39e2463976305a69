package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
)

// ask is an open question that the user may answer, for lists and for the call's page: template ask.
type ask struct {
	client.Question
	Known *view.Question // nil if it is not in the views; the page then only links to it
	About *approval      // of an approval; nil if its arguments cannot be read
	// Back is the page to return to, a list or a call. Decided are the ids that the list then shows.
	Back, Decided string
	InputShown    bool // the page shows the arguments elsewhere
}

// mostInList is the number of bytes of arguments that a list shows. An approval with more can only be decided on its
// own page, where the person sees all of them.
const mostInList = 2000

// asksOf joins the user's questions with their rows in the views. others are the remaining questions.
func asksOf(yours []client.Question, open []view.Question) (asks []ask, others []view.Question) {
	mine := map[string]bool{}
	for _, q := range yours {
		a := ask{Question: q}
		if q.Tool == approvalTool {
			a.About = readApproval(q.Input, mostInList)
		}
		for i := range open {
			if open[i].CallID == q.ID {
				a.Known = &open[i]
			}
		}
		mine[q.ID] = true
		asks = append(asks, a)
	}
	for _, q := range open {
		if !mine[q.CallID] {
			others = append(others, q)
		}
	}
	return asks, others
}

// mostLinesInList is the number of lines of a question in a list: more could push its arguments out of sight.
const mostLinesInList = 6

// Asked returns the question in words.
func (a ask) Asked() string {
	switch {
	case a.Text != "":
		return firstLines(mostLinesInList, cut(1000, a.Text))
	case a.About != nil:
		return "Run " + oneline.Value(a.About.Tool) + "?"
	}
	return waitingFor(a.Tool)
}

// Who describes the asker.
func (a ask) Who() string { return prose.AskerOf(&a.Question) }

// Repeats reports whether the question already contains a rule's message.
func (a ask) Repeats(r askingRule) bool { return r.repeatedIn(a.Text) }

// Rules returns the rules that ask. It returns none for other askers, whose rules would only be the caller's claim.
func (a ask) Rules() []askingRule {
	if a.About == nil || a.AskedFor != client.AskerRule {
		return nil
	}
	return a.About.Rules
}

// Decides reports whether the question can be decided in the list: everything that the approval is bound to is shown.
func (a ask) Decides() bool { return a.About != nil && a.About.Whole && a.Known != nil }

// readApproval reads the input of wait.approval, with at most most bytes of its arguments. It returns nil if the
// input has another form.
func readApproval(input json.RawMessage, most int) *approval {
	a := &approval{}
	if json.Unmarshal(input, a) != nil || len([]rune(a.Tool)) > 200 {
		return nil
	}
	a.Rules, a.Before = first(a.Rules), first(a.Before)
	a.Shown = indented(a.Input)
	if a.Whole = len(a.Shown) <= most; !a.Whole {
		a.Shown = cutBytes(a.Shown, most)
	}
	return a
}

// asksAbout returns the questions among some calls that the user may answer, and the others.
func (r *request) asksAbout(ctx context.Context, ids []string) (asks []ask, others []view.Question, err error) {
	if len(ids) == 0 {
		return nil, nil, nil
	}
	var yours []client.Question
	if r.mayAnswer() {
		err = r.asks(ctx, func(db client.DB) (err error) {
			yours, err = client.OpenQuestionsAmong(ctx, db, ids)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	var open []view.Question
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		open, err = view.QuestionsAmong(ctx, db, ids)
		return err
	})
	asks, others = asksOf(yours, open)
	return asks, others, err
}

// answeredQuestion is an answered question, and the outcome of the call that waited for it.
type answeredQuestion struct {
	*view.Question
	About string     // operators: the tool to approve
	Given string     // operators: approved, denied, or the answer
	Call  *view.Call // the call that waited, or the question itself
}

// readDecided reads the result of a question. It returns nil if there is none.
func (r *request) readDecided(ctx context.Context, id string) (d *answeredQuestion, err error) {
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) error {
		q, err := view.OneQuestion(ctx, db, id)
		if err != nil || q == nil {
			return err
		}
		d = &answeredQuestion{Question: q}
		of := q.ParentID
		if of == "" || !q.OfHandler {
			of = id
		}
		if d.Call, err = view.Get(ctx, db, of); err != nil || !r.operates() {
			return err
		}
		return d.readAnswer(ctx, db)
	})
	if none := (*client.NotFoundError)(nil); errors.As(err, &none) {
		return nil, nil
	}
	return d, err
}

// readAnswer reads, for an operator, the answer and the tool of the question.
func (d *answeredQuestion) readAnswer(ctx context.Context, db view.DB) error {
	c, err := client.Get(ctx, db, d.CallID)
	if err != nil {
		return err
	}
	if a := readApproval(c.Input, 0); a != nil && d.Tool == approvalTool {
		d.About = a.Tool
	}
	p := questionPage{ID: d.CallID, State: d.Question}
	if err := p.readAnswer(ctx, db); err != nil {
		return err
	}
	d.Given = cmp.Or(decisionOf(p.Given), p.Given)
	return nil
}
