package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
)

// mostQuestions limits the questions of each kind on a page.
const mostQuestions = 100

// questionsPage lists the open questions. It shows text and arguments only if the user may answer.
type questionsPage struct {
	Yours []client.Question `json:"yours"` // the questions that the user may answer
	Open  []view.Question   `json:"open"`  // all open questions
	You   string            `json:"you"`   // the name under which the user answers; empty if the user cannot answer
	Other string            `json:"-"`     // [User.OtherName]

	Asks    []ask              // Yours, for the page
	Others  []view.Question    // the questions of Open that the user may not answer
	Decided []answeredQuestion // the user's answers on this page
	IDs     string             // of Decided, for the address
}

func (s *site) questions(ctx context.Context, r *request) (*content, error) {
	p := &questionsPage{Yours: []client.Question{}, Open: []view.Question{}, Other: r.user.OtherName}
	var err error
	if r.mayAnswer() {
		if p.You, _, err = r.answersAs(ctx); err != nil {
			return nil, err
		}
	}
	if p.Yours, p.Open, err = r.openQuestions(ctx, mostQuestions); err != nil {
		return nil, err
	}
	ids := decidedIDs(r.URL.Query().Get("decided"))
	p.IDs = strings.Join(ids, ",")
	p.Asks, p.Others = asksOf(p.Yours, p.Open)
	if r.URL.Query().Get("all") == "" {
		p.Others = slices.DeleteFunc(p.Others, func(q view.Question) bool { return q.OfAsker > view.MaxPerAsker })
	}
	for i := range p.Asks {
		p.Asks[i].Back, p.Asks[i].Decided = "list", p.IDs
	}
	for _, id := range ids {
		if d, err := r.readDecided(ctx, id); err != nil {
			return nil, err
		} else if d != nil {
			p.Decided = append(p.Decided, *d)
		}
	}
	title := "Questions: none open"
	if n := p.Count(); n > 0 {
		title = fmt.Sprintf("Questions: %d open, %d for you", n, len(p.Asks))
	}
	return &content{Title: title, Template: "questions", Data: p, Watch: "list", JSON: p.forScripts()}, nil
}

// Count returns the number of questions on the page.
func (p *questionsPage) Count() int { return len(p.Asks) + len(p.Others) }

func (p *questionsPage) forScripts() any {
	return map[string]any{"yours": p.Yours, "open": p.Open, "you": p.You}
}

// openQuestions reads the questions that the user may answer, and all open questions without their contents.
func (r *request) openQuestions(ctx context.Context, most int) (yours []client.Question, open []view.Question,
	err error) {
	yours, open = []client.Question{}, []view.Question{}
	if r.mayAnswer() {
		err = r.asks(ctx, func(db client.DB) error {
			read := client.FirstQuestions
			if r.URL.Query().Get("all") != "" {
				read = client.OpenQuestions
			}
			found, err := read(ctx, db, most)
			yours = append(yours, found...)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) error {
		found, err := view.Questions(ctx, db, most)
		open = append(open, found...)
		return err
	})
	return yours, open, err
}

// mostDecided is the number of a user's answers that stay in the list.
const mostDecided = 5

// decidedIDs returns the ids in the address of the list.
func decidedIDs(list string) (ids []string) {
	for id := range strings.SplitSeq(list, ",") {
		if view.IsID(id) && !slices.Contains(ids, id) && len(ids) < mostDecided {
			ids = append(ids, id)
		}
	}
	return ids
}
