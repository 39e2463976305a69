package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/watch"
)

// mostQuestions is how many of each kind a page lists.
const mostQuestions = 100

// questionsPage lists the open questions. It shows the text and arguments only of those that the user may answer.
type questionsPage struct {
	Yours []client.Question `json:"yours"` // those that the user may answer
	Open  []watch.Question  `json:"open"`  // all that are open
	You   string            `json:"you"`   // as whom the user answers; empty if the dashboard takes no answers of the user
	Other string            `json:"-"`     // [User.OtherName]

	Asks    []ask            // Yours as the page shows them
	Others  []watch.Question // those of Open that the user may not answer
	Decided []decided        // what the user has answered on this page
	IDs     string           // of Decided, as the address has them
}

func (s *site) questions(ctx context.Context, r *request) (*view, error) {
	p := &questionsPage{Yours: []client.Question{}, Open: []watch.Question{}, Other: r.user.OtherName}
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
		p.Others = slices.DeleteFunc(p.Others, func(q watch.Question) bool { return q.OfAsker > watch.MostOfAsker })
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
	return &view{Title: title, Template: "questions", Data: p, Watch: "list", JSON: p.forScripts()}, nil
}

// Count returns the number of questions on the page.
func (p *questionsPage) Count() int { return len(p.Asks) + len(p.Others) }

func (p *questionsPage) forScripts() any {
	return map[string]any{"yours": p.Yours, "open": p.Open, "you": p.You}
}

// openQuestions reads the questions that the user may answer, and all open questions without their contents.
func (r *request) openQuestions(ctx context.Context, most int) (yours []client.Question, open []watch.Question,
	err error) {
	yours, open = []client.Question{}, []watch.Question{}
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
	err = watch.Read(ctx, r.db(), func(ctx context.Context, db watch.DB) error {
		found, err := watch.Questions(ctx, db, most)
		open = append(open, found...)
		return err
	})
	return yours, open, err
}

// mostDecided is the number of a user's answers that the list keeps showing.
const mostDecided = 5

// decidedIDs returns the ids in the address of the list.
func decidedIDs(list string) (ids []string) {
	for id := range strings.SplitSeq(list, ",") {
		if watch.IsID(id) && !slices.Contains(ids, id) && len(ids) < mostDecided {
			ids = append(ids, id)
		}
	}
	return ids
}
