package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5/pgconn"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Questions are asked in a form where the client's user may answer them. An approval is never a form, which a program could fill in: it is a link to a
// page that knows who opens it. An event is neither: it is something that happens, and that a system reports.

// maxText and maxLabel bound the characters of a question, and of a title or a description in its form.
const maxText, maxLabel = 4000, 500

// field is the name of the only field of a form whose question takes a value that is no object.
const field = "answer"

// way says how a client can be asked a question: "form", "url", or "" for not at all.
func (q question) way(can abilities, dashboard string) string {
	switch {
	case q.tool == "wait.answer" && q.mine && can.form:
		return "form"
	case q.tool == approval && can.url && dashboard != "":
		return "url"
	}
	return ""
}

// params is how a question is asked. misfit says why the last answer was refused; empty for none.
func (q question) params(dashboard, misfit string) *sdk.ElicitParams {
	if q.tool == approval {
		message := fmt.Sprintf("A call of %s needs an approval. %s", oneline.Value(q.about), q.says())
		message += "\n\nArguments: " + oneline.Text(q.arguments, maxArguments) + "\nAsked " + moment(q.since)
		return &sdk.ElicitParams{Mode: "url", Message: message + q.deadline(), URL: q.link(dashboard), ElicitationID: q.id}
	}
	message := q.says() + q.deadline()
	if misfit != "" {
		message = "The last answer was not taken: " + misfit + ".\n\n" + message
	}
	return &sdk.ElicitParams{Mode: "form", Message: message, RequestedSchema: form(q.schema)}
}

// says returns GEM's statement about who asks, and then the question, in quotes on a line of its own.
func (q question) says() string {
	if q.text == "" {
		return q.who() + "."
	}
	return q.who() + ":\n\n" + prose.Said(q.text, maxText)
}

// deadline returns a line with the time until which the question accepts an answer; empty if it has no deadline.
func (q question) deadline() string {
	if q.until.IsZero() {
		return ""
	}
	return "\nIt can be answered until " + moment(q.until)
}

// flat is the schema of a question, or of a field of one.
type flat struct {
	Type        string          `json:"type"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Enum        []any           `json:"enum,omitempty"`
	MinLength   *int            `json:"minLength,omitempty"`
	MaxLength   *int            `json:"maxLength,omitempty"`
	Minimum     *json.Number    `json:"minimum,omitempty"`
	Maximum     *json.Number    `json:"maximum,omitempty"`
	Properties  map[string]flat `json:"properties,omitempty"`
	Required    []string        `json:"required,omitempty"`
}

// form is the schema of a form for an answer that fits a question's schema: an object of fields, each with the keywords that forms know for its type.
// The database checks the answer against the question's own.
func form(schema json.RawMessage) formSchema {
	f := flat{Type: "string"}
	_ = json.Unmarshal(schema, &f) // null, or the schema that wait.answer has checked
	if f.Type != "object" {
		return formSchema{"object", map[string]flat{field: f.forForm()}, []string{field}}
	}
	out := formSchema{"object", map[string]flat{}, f.Required}
	for name, p := range f.Properties {
		out.Properties[name] = p.forForm()
	}
	return out
}

// formSchema is the schema of a form.
type formSchema struct {
	Type       string          `json:"type"`
	Properties map[string]flat `json:"properties"`
	Required   []string        `json:"required,omitempty"`
}

func (f flat) forForm() flat {
	out := flat{Type: f.Type, Title: oneline.Text(f.Title, maxLabel), Description: oneline.Text(f.Description, maxLabel)}
	switch f.Type {
	case "string":
		out.MinLength, out.MaxLength = f.MinLength, f.MaxLength
		for _, v := range f.Enum {
			if s, ok := v.(string); ok {
				out.Enum = append(out.Enum, s)
			}
		}
	case "number", "integer":
		out.Minimum, out.Maximum = f.Minimum, f.Maximum
		if len(f.Enum) > 0 { // forms know lists of texts alone
			listed, _ := json.Marshal(f.Enum)
			out.Description = strings.TrimSpace(out.Description + " One of " + strings.Trim(string(listed), "[]"))
		}
	}
	return out
}

// reply is what a user said to a question.
type reply struct {
	Action  string          `json:"action"` // accept, decline or cancel
	Content json.RawMessage `json:"content"`
}

// replies reads those that come with a tools/call.
func replies(responses sdk.InputResponseMap) map[string]reply {
	all := map[string]reply{}
	for key, response := range responses {
		if r, ok := response.(*sdk.ElicitResult); ok {
			all[key] = replyOf(r)
		}
	}
	return all
}

func replyOf(r *sdk.ElicitResult) reply {
	content, _ := json.Marshal(r.Content)
	return reply{r.Action, content}
}

// answer is the value that a form was filled in with.
func (r reply) answer(schema json.RawMessage) json.RawMessage {
	var asked struct{ Type string }
	_ = json.Unmarshal(schema, &asked)
	if asked.Type == "object" && len(r.Content) > 0 {
		return r.Content
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(r.Content, &fields)
	if value, ok := fields[field]; ok {
		return value
	}
	return json.RawMessage("null") // which fits nothing, and is refused with the reason
}

// replied is what came of replies, by the ids of their questions.
type replied struct {
	declined map[string]bool   // the user does not want to answer, or has seen the link
	misfits  map[string]string // why an answer was refused
}

// open are the questions that the client is to be asked.
func (g replied) open(questions []question, can abilities, dashboard string) (ask []question) {
	for _, q := range questions {
		if q.way(can, dashboard) != "" && !g.declined[q.id] {
			ask = append(ask, q)
		}
	}
	return ask
}

// give answers those of a call's open questions that replies name, one at a time. Other keys, and questions that somebody has answered, are
// passed over. The same answer may come again.
func (d *Door) give(ctx context.Context, c caller, questions []question, replies map[string]reply) (replied, error) {
	came := replied{map[string]bool{}, map[string]string{}}
	byID := map[string]question{}
	for _, q := range questions {
		byID[q.id] = q
	}
	for _, id := range slices.Sorted(maps.Keys(replies)) {
		q, open := byID[id]
		r := replies[id]
		switch {
		case !open:
			continue
		case q.tool != "wait.answer" || !q.mine || r.Action != "accept":
			came.declined[id] = true
			continue
		}
		err := d.as(ctx, c, func(db client.DB) error {
			_, err := db.Exec(ctx, "select public.answer_tool_call($1, $2::text::jsonb)", id, string(r.answer(q.schema)))
			return err
		})
		var refused *pgconn.PgError
		switch {
		case err == nil:
		case !errors.As(err, &refused):
			return came, err
		case refused.Code == "PT404", refused.Code == "PT409", refused.Code == "PT410": // it is answered, over, or no longer the user's
		case refused.Code == "PT422" || strings.HasPrefix(refused.Code, "22"): // the second is Postgres's, for what is no jsonb
			came.misfits[id] = refused.Message
		default:
			return came, err
		}
	}
	return came, nil
}

// requests are those that a result carries.
func (d *Door) requests(ask []question, came replied) sdk.InputRequestMap {
	all := sdk.InputRequestMap{}
	for _, q := range ask {
		all[q.id] = q.params(d.o.DashboardURL, came.misfits[q.id])
	}
	return all
}

// asked reports whether the client's user is being asked one of a call's questions, and whether the user did not answer one when asked.
func (d *Door) asked(came replied, can abilities, questions []question) (asked, declined bool) {
	for _, q := range questions {
		switch {
		case q.way(can, d.o.DashboardURL) == "":
		case came.declined[q.id] || d.prompts.declined(can.session, q.id):
			declined = true
		default:
			asked = true
		}
	}
	return asked, declined
}

// prompts are the questions that sessions of earlier versions were asked, by requests of ours. A session is asked each once, however often its client
// asks about the call.
type prompts struct {
	mu  sync.Mutex
	all map[prompt]*prompted
}

type prompt struct {
	session *sdk.ServerSession
	id      string
}

type prompted struct{ declined bool }

func (p *prompts) declined(session *sdk.ServerSession, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.all[prompt{session, id}]
	return asked != nil && asked.declined
}

// begin reports whether the session has not been asked yet.
func (p *prompts) begin(session *sdk.ServerSession, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[prompt{session, id}] != nil {
		return false
	}
	if p.all == nil {
		p.all = map[prompt]*prompted{}
	}
	p.all[prompt{session, id}] = &prompted{}
	return true
}

func (p *prompts) end(session *sdk.ServerSession, id string, declined bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[prompt{session, id}].declined = declined
}

// asking are the questions that one request of a client has its user asked.
type asking struct {
	d       *Door
	c       caller
	session *sdk.ServerSession
	cancel  []context.CancelFunc
}

// promptFor bounds how long a question stays before a user, and tries how often it is asked when the answer does not fit.
const promptFor, tries = time.Hour, 3

// begin asks what was not asked yet.
func (a *asking) begin(ctx context.Context, ask []question) {
	for _, q := range ask {
		if !a.d.prompts.begin(a.session, q.id) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promptFor)
		a.cancel = append(a.cancel, cancel)
		go func() {
			defer cancel()
			a.d.prompts.end(a.session, q.id, !a.d.prompt(ctx, a.c, a.session, q))
		}()
	}
}

// stop takes back what is still before the user: the call has ended, or the client has given up. After leave it stays.
func (a *asking) stop() {
	for _, cancel := range a.cancel {
		cancel()
	}
}

// leave lets the user go on with what was asked though the request ends: the answer is as good later.
func (a *asking) leave() { a.cancel = nil }

// prompt asks the user of a session, and reports whether the question is answered.
func (d *Door) prompt(ctx context.Context, c caller, session *sdk.ServerSession, q question) bool {
	misfit := ""
	for range tries {
		said, err := session.Elicit(ctx, q.params(d.o.DashboardURL, misfit))
		if err != nil {
			return false
		}
		came, err := d.give(ctx, c, []question{q}, map[string]reply{q.id: replyOf(said)})
		if err != nil || came.declined[q.id] {
			return false
		}
		if misfit = came.misfits[q.id]; misfit == "" {
			return true
		}
	}
	return false
}
