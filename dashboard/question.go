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

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5"
)

// mostShown is the number of bytes of arguments that a page shows; [site.arguments] returns all of them.
const mostShown = 64 << 10

const approvalTool = "wait.approval"

// questionPage is the data of a question's page.
type questionPage struct {
	ID    string
	State *view.Question
	// Open means that the user may answer now. Fields are then its form, except for an approval.
	Open    bool
	Shown   bool // the user may see the question: Text, and for an approval Asked
	Text    string
	Asked   *approval
	Fields  []field
	Digest  string // of the shown contents: the form carries it
	You     string
	Roles   []string
	Why     string // why the user may not answer
	Problem string // why the typed answer was rejected
	Reason  string // typed
	Typed   string // the typed answer, if its form no longer exists
	Given   string // operators: the given answer, as JSON
	Result  string // operators: the result of the call, as JSON

	Waiting *view.Call // the call that waits for it; nil if no call does

	schema json.RawMessage // of the answer
}

// approval is the input of wait.approval.
type approval struct {
	Tool   string
	Input  json.RawMessage
	Text   string
	Digest string
	CallID string `json:"call_id"`
	Rules  []askingRule
	Before []struct {
		Tool, Status string
		ErrorCode    string `json:"error_code"`
		At           time.Time
	}
	Permissions []string `json:"-"` // of the tool, in the registry in force
	Destructive bool     `json:"-"`
	Unknown     bool     `json:"-"` // no registry in force has the tool
	Shown       string   `json:"-"` // Input, or its beginning
	Whole       bool     `json:"-"` // Shown is all of it
}

// askingRule is a rule that asks.
type askingRule struct{ Name, Message string }

// repeatedIn reports whether a question contains the rule's message, or was generated from the rule: then it names
// the rule and the reason.
func (r askingRule) repeatedIn(question string) bool {
	return strings.Contains(question, r.Message) || strings.Contains(question, "Rule "+r.Name+":")
}

func (s *site) question(ctx context.Context, r *request) (*content, error) {
	p, err := r.readQuestion(ctx)
	if err != nil {
		return nil, err
	}
	return p.view(), nil
}

func (p *questionPage) view() *content {
	kind := map[string]string{approvalTool: "Approval", "wait.event": "Event"}[p.State.Tool]
	return &content{Title: cmp.Or(kind, "Question") + ": " + p.StateText(), Template: "question", Data: p,
		Watch: "call:" + p.ID}
}

// StateText describes the state of the question for the page's title.
func (p *questionPage) StateText() string {
	switch q := p.State; {
	case q.AnsweredBy != "":
		return cmp.Or(p.Decision(), "answered")
	case q.Status == "succeeded", q.Status == "failed", q.Status == "not_configured":
		return "ended without an answer"
	case p.Open:
		return "waiting for you"
	default:
		return "waiting for others"
	}
}

// Decision returns approved or denied for an approval whose answer the user sees, and "" otherwise.
func (p *questionPage) Decision() string {
	if p.State.Tool != approvalTool {
		return ""
	}
	return decisionOf(p.Given)
}

// StateClass returns the class of the state's badge.
func (p *questionPage) StateClass() string {
	if p.Decision() == "denied" {
		return "refused"
	}
	return p.State.Status
}

// decisionOf reads the answer to an approval. It returns "" for any other text.
func decisionOf(answer string) string {
	var given struct{ Approved *bool }
	switch {
	case json.Unmarshal([]byte(answer), &given) != nil || given.Approved == nil:
		return ""
	case *given.Approved:
		return "approved"
	}
	return "denied"
}

// Repeats reports whether the question already contains a rule's message.
func (p *questionPage) Repeats(r askingRule) bool { return r.repeatedIn(p.Text) }

// Who describes the asker.
func (p *questionPage) Who() string {
	return prose.Asker(client.Asker(p.State.AskedFor), p.State.CreatedBy, p.State.OfHandler)
}

// ByUser reports whether a user asks, or a model on a user's behalf.
func (p *questionPage) ByUser() bool { return p.State.AskedFor == string(client.AskerUser) }

// ByRule reports whether a rule asks.
func (p *questionPage) ByRule() bool { return p.State.AskedFor == string(client.AskerRule) }

func (r *request) readQuestion(ctx context.Context) (*questionPage, error) {
	p := &questionPage{ID: strings.ToLower(r.PathValue("id"))}
	if !view.IsID(p.ID) {
		return nil, notFound("This question does not exist.")
	}
	var input, schema json.RawMessage
	err := view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.State, err = view.OneQuestion(ctx, db, p.ID); err != nil || p.State == nil {
			return err
		}
		if p.State.OfHandler {
			if p.Waiting, err = view.Get(ctx, db, p.State.ParentID); err != nil {
				return err
			}
		}
		if !r.operates() {
			return nil
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
		return nil, notFound("This question does not exist. It may have been pruned, or the call is not a question.")
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

// show fills in the question. input is the input of the call; schema is the schema of the user's answer.
func (p *questionPage) show(ctx context.Context, r *request, input, schema json.RawMessage) error {
	if p.State.Tool == approvalTool {
		p.Asked = readApproval(input, mostShown)
		if p.Asked == nil {
			*p = questionPage{ID: p.ID, State: p.State,
				Why: "This approval cannot be read: wait.approval is about to reject its input."}
			return nil
		}
		p.Text, p.Digest = p.Asked.Text, p.Asked.Digest
		return p.Asked.readTool(ctx, r)
	}
	if p.Text == "" {
		var asked struct{ Text string }
		_ = json.Unmarshal(input, &asked) // it may have any form until a worker validates it
		p.Text = asked.Text
	}
	if p.Open {
		p.Digest = fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, p.Text, "\x00", string(schema))))
		p.Fields, p.schema = fieldsOf(schema), schema
	}
	return nil
}

// arguments returns the arguments of the call to approve as a file.
func (s *site) arguments(w http.ResponseWriter, q *http.Request) {
	r, err := s.request(q)
	var p *questionPage
	if err == nil {
		p, err = r.readQuestion(q.Context())
	}
	if err == nil && p.Asked == nil {
		err = notFound("There is nothing to approve here that you may see.")
	}
	if err != nil {
		s.fail(w, q, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="arguments-`+p.ID+`.json"`)
	s.send(w, q, http.StatusOK, oneline.JSON(p.Asked.Input))
}

// readAnswer reads, for an operator, the answer and the result.
func (p *questionPage) readAnswer(ctx context.Context, db view.DB) error {
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

// waitsForOthers reports whether someone other than the user could answer now.
func (p *questionPage) waitsForOthers() bool {
	q := p.State
	return !p.Open && q.Status == "waiting" && q.AnsweredBy == "" && q.Cancelled.IsZero() &&
		(q.Until.IsZero() || q.Until.After(time.Now()))
}

// whyNot explains why the user may not answer an open question, and who may.
func (p *questionPage) whyNot(r *request) string {
	q := p.State
	switch {
	case q.AnsweredBy != "" || q.Status == "succeeded" || q.Status == "failed" || q.Status == "not_configured":
		return ""
	case !q.Cancelled.IsZero():
		return "This question is being cancelled and takes no answer."
	case !q.Until.IsZero() && !q.Until.After(time.Now()):
		return "The deadline for an answer has passed."
	case q.Status != "waiting":
		return "No worker has asked this question yet. Reload the page in a moment."
	case r.site.Act == nil:
		return "This dashboard is read-only and takes no answers."
	case !r.mayAnswer():
		return "You can view this question but not answer it: the dashboard does not know your subject."
	}
	if q.Others && r.user.OtherName != "" {
		return "It needs someone other than the person who asked, and the dashboard cannot tell whether that is you: " +
			r.user.OtherName + ". You may have a different name there. Answer it where calls are made, for example with gem " +
			"approve."
	}
	said := "Only the people named in the question may answer it"
	if q.Others {
		said += ", but not the people who made the call or repeated it"
	}
	said += ". You are " + p.You + rolesInWords(p.Roles) + "."
	if slices.ContainsFunc(q.By, func(who string) bool { return strings.HasPrefix(who, "role:") }) {
		said += " The owner of the database grants roles: gem roles add SUBJECT ROLE."
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

// readTool reads the entry, in the registry in force, of the tool of the call to approve.
func (a *approval) readTool(ctx context.Context, r *request) error {
	return view.Read(ctx, r.site.Act, func(ctx context.Context, db view.DB) error {
		var permissions json.RawMessage
		err := db.QueryRow(ctx, "select coalesce(entry -> 'permissions', '[]')::text, coalesce(entry #> "+
			"'{hints,destructive}' = 'true', false) from gem.tools where name = $1",
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
