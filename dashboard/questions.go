package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/watch"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// mostQuestions is how many of each kind a page lists.
const mostQuestions = 100

// mostShown is how many bytes of arguments a page shows; the rest is in the file of [site.arguments].
const mostShown = 64 << 10

const approvalTool = "wait.approval"

// questionsPage lists what waits for an answer: what the user may answer, with its text, and all of it without.
type questionsPage struct {
	Yours []client.Question `json:"yours"` // those that the user may answer
	Open  []watch.Question  `json:"open"`  // all that are open
	You   string            `json:"you"`   // as whom the user answers; empty if the dashboard takes no answers of the user
	Other string            `json:"-"`     // [User.OtherName]
}

func (s *site) questions(ctx context.Context, r *request) (*view, error) {
	p := &questionsPage{Yours: []client.Question{}, Open: []watch.Question{}, Other: r.user.OtherName}
	var err error
	if r.mayAnswer() {
		if p.You, _, err = r.answersAs(ctx); err != nil {
			return nil, err
		}
		if err = r.asks(ctx, func(db client.DB) error {
			p.Yours, err = client.OpenQuestions(ctx, db, mostQuestions)
			return err
		}); err != nil {
			return nil, err
		}
	}
	err = watch.Read(ctx, r.db(), func(ctx context.Context, db watch.DB) error {
		all, err := watch.Questions(ctx, db, mostQuestions)
		p.Open = append(p.Open, all...)
		return err
	})
	title := "Questions: none is open"
	if n := len(p.Open); n > 0 || len(p.Yours) > 0 {
		title = fmt.Sprintf("Questions: %d open, %d for you", n, len(p.Yours))
	}
	return &view{Title: title, Template: "questions", Data: p, Watch: "list", JSON: p}, err
}

// questionPage is one question.
type questionPage struct {
	ID    string
	State *watch.Question
	// Open says that the user may answer it now, and Fields are its form then, but for an approval.
	Open    bool
	Shown   bool // the user may see what is asked: Text, and Asked of an approval
	Text    string
	Asked   *approval
	Fields  []field
	Digest  string // of what is shown: the form carries it
	You     string
	Roles   []string
	Why     string // why the user may not answer
	Problem string // why what was typed was not taken
	Reason  string // typed
	Typed   string // what was typed, where there is no form for it any more
	Given   string // operators: the answer that was given, as JSON
	Result  string // operators: what the call came to, as JSON

	schema json.RawMessage // of the answer
}

// approval is the input of wait.approval.
type approval struct {
	Tool   string
	Input  json.RawMessage
	Text   string
	Digest string
	CallID string `json:"call_id"`
	Rules  []struct{ Name, Message string }
	Before []struct {
		Tool, Status string
		ErrorCode    string `json:"error_code"`
		At           time.Time
	}
	Permissions []string `json:"-"` // of the tool, by the registry in force
	Destructive bool     `json:"-"`
	Unknown     bool     `json:"-"` // no registry in force has the tool
	Shown       string   `json:"-"` // Input, or its beginning
	Whole       bool     `json:"-"` // Shown is all of it
}

func (s *site) question(ctx context.Context, r *request) (*view, error) {
	p, err := r.readQuestion(ctx)
	if err != nil {
		return nil, err
	}
	return p.view(), nil
}

func (p *questionPage) view() *view {
	kind := map[string]string{approvalTool: "Approval", "wait.event": "Event"}[p.State.Tool]
	return &view{Title: cmp.Or(kind, "Question") + ": " + p.state(), Template: "question", Data: p, Watch: "call:" + p.ID}
}

// state says where the question stands, for the page's title.
func (p *questionPage) state() string {
	switch q := p.State; {
	case q.AnsweredBy != "":
		return "answered"
	case q.Status == "succeeded", q.Status == "failed", q.Status == "not_configured":
		return "ended without an answer"
	case p.Open:
		return "waits for you"
	default:
		return "waits for others"
	}
}

func (r *request) readQuestion(ctx context.Context) (*questionPage, error) {
	p := &questionPage{ID: strings.ToLower(r.PathValue("id"))}
	if !watch.IsID(p.ID) {
		return nil, notFound("There is no such question.")
	}
	var input, schema json.RawMessage
	err := watch.Read(ctx, r.db(), func(ctx context.Context, db watch.DB) (err error) {
		if p.State, err = watch.OneQuestion(ctx, db, p.ID); err != nil || p.State == nil || !r.operates() {
			return err
		}
		c, err := client.Get(ctx, db, p.ID)
		if err != nil {
			return err
		}
		p.Shown, input = true, c.Input
		return p.readAnswer(ctx, db)
	})
	switch {
	case err != nil:
		return nil, err
	case p.State == nil:
		return nil, notFound("There is no such question. It may have been pruned, or this is a call that asks nothing.")
	case r.mayAnswer():
		if p.You, p.Roles, err = r.answersAs(ctx); err != nil {
			return nil, err
		}
		if err := r.asks(ctx, func(db client.DB) error {
			q, err := client.OpenQuestion(ctx, db, p.ID)
			if err == nil && q != nil {
				p.Open, p.Shown, p.Text, schema = true, true, q.Text, q.Asks
				if q.Tool == approvalTool {
					input = q.Input
				}
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	if !p.Open {
		p.Why = p.whyNot(r)
	}
	if !p.Shown {
		return p, nil
	}
	return p, p.show(ctx, r, input, schema)
}

// show fills in what is asked. input is that of the call; schema is that of an answer which the user may give.
func (p *questionPage) show(ctx context.Context, r *request, input, schema json.RawMessage) error {
	if p.State.Tool == approvalTool {
		p.Asked = &approval{}
		if json.Unmarshal(input, p.Asked) != nil || utf8.RuneCountInString(p.Asked.Tool) > 200 {
			*p = questionPage{ID: p.ID, State: p.State, Why: "The call that it asks about cannot be read: the tool wait.approval is about to refuse it."}
			return nil //nolint:nilerr // that is said
		}
		p.Text, p.Digest = p.Asked.Text, p.Asked.Digest
		p.Asked.Rules, p.Asked.Before = first(p.Asked.Rules), first(p.Asked.Before)
		p.Asked.Shown = indented(p.Asked.Input)
		if p.Asked.Whole = len(p.Asked.Shown) <= mostShown; !p.Asked.Whole {
			p.Asked.Shown = strings.ToValidUTF8(p.Asked.Shown[:mostShown], "")
		}
		return p.Asked.readTool(ctx, r)
	}
	if p.Text == "" {
		var asked struct{ Text string }
		_ = json.Unmarshal(input, &asked) // of any form while no worker has looked at it
		p.Text = asked.Text
	}
	if p.Open {
		p.Digest = fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, p.Text, "\x00", string(schema))))
		p.Fields, p.schema = fieldsOf(schema), schema
	}
	return nil
}

// arguments answers with the arguments of the call that is to be approved, as a file.
func (s *site) arguments(w http.ResponseWriter, q *http.Request) {
	r, err := s.request(q)
	var p *questionPage
	if err == nil {
		p, err = r.readQuestion(q.Context())
	}
	if err == nil && p.Asked == nil {
		err = notFound("There is nothing to be approved here that you may see.")
	}
	if err != nil {
		s.fail(w, q, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="arguments-`+p.ID+`.json"`)
	s.send(w, q, http.StatusOK, p.Asked.Input)
}

// readAnswer reads, for an operator, what was answered and what came of it.
func (p *questionPage) readAnswer(ctx context.Context, db watch.DB) error {
	if p.State.AnsweredBy != "" {
		journal, err := client.Journal(ctx, db, p.ID)
		if err != nil {
			return err
		}
		for _, e := range journal {
			var data struct {
				Name  string
				Value json.RawMessage
			}
			if e.Event == "answered" && json.Unmarshal(e.Data, &data) == nil && data.Name == "#answer" {
				p.Given = indented(data.Value)
			}
		}
	}
	receipt, err := client.Receipt(ctx, db, p.ID)
	if errors.Is(err, client.ErrNoReceipt) {
		return nil
	}
	if err == nil {
		p.Result = indented(receipt.Result)
	}
	return err
}

// waitsForOthers reports whether an answer of somebody else would be taken now, and none of the user.
func (p *questionPage) waitsForOthers() bool {
	q := p.State
	return !p.Open && q.Status == "waiting" && q.AnsweredBy == "" && q.Cancelled.IsZero() && (q.Until.IsZero() || q.Until.After(time.Now()))
}

// whyNot says why the user may not answer an open question, and who may.
func (p *questionPage) whyNot(r *request) string {
	q := p.State
	switch {
	case q.AnsweredBy != "" || q.Status == "succeeded" || q.Status == "failed" || q.Status == "not_configured":
		return ""
	case !q.Cancelled.IsZero():
		return "Somebody has asked for the end of this question, and it takes no answer."
	case !q.Until.IsZero() && !q.Until.After(time.Now()):
		return "The time for an answer is over."
	case q.Status != "waiting":
		return "No worker has asked it yet: load this page again in a moment."
	case r.site.Act == nil:
		return "This dashboard is read-only, and takes no answers."
	case !r.mayAnswer():
		return "You may look, and not answer: the dashboard knows no subject of yours."
	}
	if q.Others && r.user.OtherName != "" {
		return "It takes someone other than the person who asked, and these pages cannot tell whether that is you: " +
			text(r.user.OtherName) + ". You would have two names. Answer it where calls are made, such as with gem approve."
	}
	said := "An answer is taken from those whom the question names"
	if q.Others {
		said += ", and not from whoever asked for the call or had it made again"
	}
	said += ". You are " + text(p.You) + rolesInWords(p.Roles) + "."
	if slices.ContainsFunc(q.By, func(who string) bool { return strings.HasPrefix(who, "role:") }) {
		said += " The owner of the database gives roles: gem roles add SUBJECT ROLE."
	}
	return said
}

func rolesInWords(roles []string) string {
	switch len(roles) {
	case 0:
		return ", without a role"
	case 1:
		return ", with the role " + roles[0]
	}
	return ", with the roles " + strings.Join(roles, ", ")
}

// readTool reads what the registry in force says of the tool of the call that is to be approved.
func (a *approval) readTool(ctx context.Context, r *request) error {
	return watch.Read(ctx, r.site.Act, func(ctx context.Context, db watch.DB) error {
		var permissions json.RawMessage
		err := db.QueryRow(ctx, "select coalesce(entry -> 'permissions', '[]')::text, coalesce(entry #> '{hints,destructive}' = 'true', false) from gem.tools where name = $1",
			a.Tool).Scan(&permissions, &a.Destructive)
		if errors.Is(err, pgx.ErrNoRows) {
			a.Unknown = true
			return nil
		}
		if err == nil {
			err = json.Unmarshal(permissions, &a.Permissions)
		}
		return err
	})
}

// answersAs says as whom the user answers, and which roles that subject has.
func (r *request) answersAs(ctx context.Context) (you string, roles []string, err error) {
	err = watch.Read(ctx, r.site.Act, func(ctx context.Context, db watch.DB) error {
		return db.QueryRow(ctx, `select who, array(select g.role from gem.roles g where g.subject = who order by g.role limit 100)
			from coalesce(nullif($1, ''), session_user::text) who`, r.user.Subject).Scan(&you, &roles)
	})
	return you, roles, err
}

// asks reads with the rights of the user who answers, for 2 s at most.
func (r *request) asks(ctx context.Context, do func(client.DB) error) error {
	if r.user.Subject == "" && r.site.Act != nil {
		return watch.Read(ctx, r.site.Act, func(_ context.Context, db watch.DB) error { return do(db) })
	}
	return r.as(ctx, func(db client.DB) error {
		if _, err := db.Exec(ctx, "set local statement_timeout = '2s'; set local jit = off"); err != nil {
			return err
		}
		watch.Count(ctx)
		return do(db)
	})
}

// answers writes with the rights of the user who answers. It waits for a locked call for a moment only.
func (r *request) answers(ctx context.Context, do func(client.DB) error) error {
	within := func(db client.DB) error {
		if _, err := db.Exec(ctx, "set local statement_timeout = '5s'; set local lock_timeout = '500ms'"); err != nil {
			return err
		}
		return do(db)
	}
	if r.user.Subject == "" && r.site.Act != nil {
		return pgx.BeginFunc(ctx, r.site.Act, func(tx pgx.Tx) error { return within(tx) })
	}
	return r.as(ctx, within)
}

// answer takes the form of a question: an answer, or the decision on an approval. What cannot be taken shows the page again, with what was typed.
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
		return "", "", forbidden("This dashboard takes no answers from you.")
	case !p.Open:
		p.Typed = typed(r.PostForm)
		status := http.StatusConflict
		if p.waitsForOthers() {
			status = http.StatusForbidden
		}
		return again(status, "Your answer was not taken: this question does not take one from you now.")
	case r.PostForm.Get("digest") != p.Digest:
		return again(http.StatusConflict, "Your answer was not taken, since it was given to something else than what is asked now. Look at it again, and answer once more.")
	}
	var value json.RawMessage
	decision := r.PostForm.Get("decision")
	if p.Asked != nil {
		if decision != "approve" && decision != "deny" {
			return again(http.StatusUnprocessableEntity, "Choose whether to approve or to deny.")
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
		// It may have been answered, withdrawn or timed out since it was read.
		if now, err := r.readQuestion(ctx); err == nil {
			if now.Fields, now.Reason = p.Fields, p.Reason; !now.Open {
				now.Typed = typed(r.PostForm)
			}
			p = now
		}
		return again(why.Status, "Your answer was not taken. %s", why.Text)
	}
	if err != nil {
		return "", "", err
	}
	return "/questions/" + p.ID, map[string]string{"": "Your answer was taken.", "approve": "You approved it.", "deny": "You denied it."}[decision], nil
}

// refused says in a sentence why an answer was refused, with the status of the page; zero for other errors.
func refused(err error) told {
	switch {
	case errors.Is(err, client.ErrMayNotAnswer):
		return told{Status: http.StatusNotFound, Text: "You may not answer this question any more."}
	case store.HasCode(err, "55P03", "PT503"):
		return told{Status: http.StatusServiceUnavailable, Text: "The call is busy: send the form again."}
	}
	if page := refusalOf(err); page != nil {
		return told{Status: page.status, Text: page.text}
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && slices.Contains([]string{"23514", "22P02", "22P05", "22003"}, pg.Code) { // it is too large, or jsonb refuses it
		return told{Status: http.StatusUnprocessableEntity, Text: sentence(pg.Message)}
	}
	return told{}
}
