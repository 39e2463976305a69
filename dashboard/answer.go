package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// answersAs returns the subject as which the user answers, and the roles of that subject.
func (r *request) answersAs(ctx context.Context) (you string, roles []string, err error) {
	err = view.Read(ctx, r.site.Act, func(ctx context.Context, db view.DB) error {
		return db.QueryRow(ctx, `select who, array(select g.role from gem.roles g where g.subject = who
			order by g.role limit 100)
			from coalesce(nullif($1, ''), session_user::text) who`, r.user.Subject).Scan(&you, &roles)
	})
	return you, roles, err
}

// asks reads with the rights of the answering user, for at most 2 s.
func (r *request) asks(ctx context.Context, do func(client.DB) error) error {
	if r.user.Subject == "" && r.site.Act != nil {
		return view.Read(ctx, r.site.Act, func(_ context.Context, db view.DB) error { return do(db) })
	}
	return r.as(ctx, func(db client.DB) error {
		if _, err := db.Exec(ctx, "set local search_path = pg_catalog, pg_temp; set local statement_timeout = '2s'; set "+
			"local jit = off"); err != nil {
			return err
		}
		view.Count(ctx)
		return do(db)
	})
}

// answers writes with the rights of the answering user. It waits only 500 ms for a locked call.
func (r *request) answers(ctx context.Context, do func(client.DB) error) error {
	within := func(db client.DB) error {
		if _, err := db.Exec(ctx, "set local search_path = pg_catalog, pg_temp; set local statement_timeout = '5s'; set "+
			"local lock_timeout = '500ms'"); err != nil {
			return err
		}
		return do(db)
	}
	if r.user.Subject == "" && r.site.Act != nil {
		return pgx.BeginFunc(ctx, r.site.Act, func(tx pgx.Tx) error { return within(tx) })
	}
	return r.as(ctx, within)
}

// answer handles the form of a question: an answer, or the decision on an approval. If it is rejected, the page is
// shown again, with the typed values.
func (s *site) answer(ctx context.Context, r *request) (to, done string, err error) {
	p, err := r.readQuestion(ctx)
	if err != nil {
		return "", "", err
	}
	p.Reason = r.PostForm.Get("reason")
	fill(p.Fields, r.PostForm)
	again := func(status int, format string, args ...any) (string, string, error) {
		p.Problem = fmt.Sprintf(format, args...)
		v := p.view()
		v.Status = status
		return "", "", &pageAgain{v}
	}
	switch {
	case !r.mayAnswer():
		return "", "", forbidden("You cannot answer questions in this dashboard.")
	case !p.Open:
		p.Typed = typed(r.PostForm)
		status := http.StatusConflict
		if p.waitsForOthers() {
			status = http.StatusForbidden
		}
		return again(status, "Your answer was not accepted: you cannot answer this question now.")
	case r.PostForm.Get("digest") != p.Digest:
		return again(http.StatusConflict, "Your answer was not accepted because the question has changed. Read it again "+
			"before you answer.")
	}
	var value json.RawMessage
	decision := r.PostForm.Get("decision")
	if p.Asked != nil {
		if decision != "approve" && decision != "deny" {
			return again(http.StatusUnprocessableEntity, "Choose Approve or Deny.")
		}
		given := map[string]any{"approved": decision == "approve"}
		if reason := oneKindOfLine(p.Reason); strings.TrimSpace(reason) != "" {
			given["reason"] = reason
		}
		value, err = json.Marshal(given)
	} else {
		var wrong string
		if value, wrong = valueOf(p.schema, p.Fields); wrong != "" {
			return again(http.StatusUnprocessableEntity, "%s", wrong)
		}
	}
	if err == nil {
		err = r.answers(ctx, func(db client.DB) error { return client.Answer(ctx, db, p.ID, value, "") })
	}
	if why := refused(err); why.Status != 0 {
		// The question may have been answered, withdrawn or timed out since it was read.
		if now, err := r.readQuestion(ctx); err == nil {
			if now.Fields, now.Reason = p.Fields, p.Reason; !now.Open {
				now.Typed = typed(r.PostForm)
			}
			p = now
		}
		return again(why.Status, "Your answer was not accepted. %s", why.Text)
	}
	if err != nil {
		return "", "", err
	}
	return r.backFrom(p), map[string]string{"": "Your answer was recorded.", "approve": "You approved it.",
		"deny": "You denied it."}[decision], nil
}

// backFrom returns the page to go back to after an answer: the one with the form.
func (r *request) backFrom(p *questionPage) string {
	switch back := r.PostForm.Get("back"); {
	case back == "list":
		ids := decidedIDs(p.ID + "," + r.PostForm.Get("decided"))
		return "/questions?decided=" + strings.Join(ids, ",")
	case back == "call" && p.State.OfHandler:
		return "/calls/" + p.State.ParentID
	}
	return "/questions/" + p.ID
}

// refused explains why an answer was rejected, with the status of the page. It returns a zero value for other errors.
func refused(err error) shownError {
	switch {
	case errors.Is(err, client.ErrMayNotAnswer):
		return shownError{Status: http.StatusNotFound, Text: "You can no longer answer this question."}
	case store.HasCode(err, "55P03", "PT503"):
		return shownError{Status: http.StatusServiceUnavailable, Text: "The call is busy. Submit the form again."}
	}
	if page := refusalOf(err); page != nil {
		return shownError{Status: page.status, Text: page.text}
	}
	var pg *pgconn.PgError
	// The answer is too large, or not valid jsonb.
	if errors.As(err, &pg) && slices.Contains([]string{"23514", "22P02", "22P05", "22003"}, pg.Code) {
		return shownError{Status: http.StatusUnprocessableEntity, Text: sentence(pg.Message)}
	}
	return shownError{}
}
