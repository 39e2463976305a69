package mcp

import (
	"bytes"
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

// Questions are asked in a form if the client's user may answer them. An approval is never a form, which a program
// could fill in; it is a link to a page that identifies the person. An event is neither: a system reports it.

// maxText and maxLabel limit the characters of a question, and of a title or a description in its form.
const maxText, maxLabel = 4000, 500

// field is the name of the only field of a form if the answer is not an object.
const field = "answer"

// way returns how a client can be asked a question: "form", "url", or "" if it cannot.
func (q question) way(can abilities, dashboard string) string {
	switch {
	case q.tool == "wait.answer" && q.mine && can.form:
		return "form"
	case q.tool == approval && can.url && dashboard != "":
		return "url"
	}
	return ""
}

// params returns the request that asks a question. misfit is why the last answer was rejected; it may be empty.
func (q question) params(dashboard, misfit string) *sdk.ElicitParams {
	if q.tool == approval {
		message := fmt.Sprintf("A call to %s needs an approval. %s", oneline.Value(q.about), q.says())
		message += "\n\nArguments: " + oneline.Text(q.arguments, maxArguments) + "\nAsked " + moment(q.since)
		return &sdk.ElicitParams{Mode: "url", Message: message + q.deadline(), URL: q.link(dashboard), ElicitationID: q.id}
	}
	message := q.says() + q.deadline()
	if misfit != "" {
		message = "The last answer was rejected: " + misfit + ".\n\n" + message
	}
	return &sdk.ElicitParams{Mode: "form", Message: message, RequestedSchema: form(q.schema)}
}

// says returns GEM's statement about the asker, and then the question, in quotes on its own line.
func (q question) says() string {
	if q.text == "" {
		return q.who() + "."
	}
	return q.who() + ":\n\n" + prose.Said(q.text, maxText)
}

// deadline returns a line with the time until which the question accepts an answer, or "" if it has no deadline.
func (q question) deadline() string {
	if q.until.IsZero() {
		return ""
	}
	return "\nIt can be answered until " + moment(q.until)
}

// flat is the part of a schema of a question, or of one of its fields, that forms can use.
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

// flatOf reads the schema of a question. Numbers keep their digits.
func flatOf(schema json.RawMessage) flat {
	f := flat{Type: "string"}
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	_ = d.Decode(&f) // null, or the schema that wait.answer has checked
	return f
}

// form returns the schema of a form for an answer: an object of fields, each with the keywords that forms allow for
// its type. The database checks the answer against the question's own schema.
func form(schema json.RawMessage) formSchema {
	f := flatOf(schema)
	if f.Type != "object" {
		return formSchema{"object", map[string]flat{field: f.forForm()}, []string{field}}
	}
	out := formSchema{"object", map[string]flat{}, nil}
	shown, names := f.names()
	for _, name := range shown {
		out.Properties[name] = f.Properties[names[name]].forForm()
		if slices.Contains(f.Required, names[name]) {
			out.Required = append(out.Required, name)
		}
	}
	return out
}

// formSchema is the schema of a form.
type formSchema struct {
	Type       string          `json:"type"`
	Properties map[string]flat `json:"properties"`
	Required   []string        `json:"required,omitempty"`
}

// maxDigits limits a number in a form: Postgres allows 100,000 digits.
const maxDigits = 40

func (f flat) forForm() flat {
	out := flat{Type: f.Type, Title: oneline.Text(f.Title, maxLabel), Description: oneline.Text(f.Description, maxLabel)}
	switch f.Type {
	case "string":
		out.MinLength, out.MaxLength = f.MinLength, f.MaxLength
		shown, _ := f.choices()
		for _, s := range shown {
			out.Enum = append(out.Enum, s)
		}
	case "number", "integer":
		out.Minimum, out.Maximum = short(f.Minimum), short(f.Maximum)
		var listed []string
		for _, v := range f.Enum {
			if n, ok := v.(json.Number); ok && short(&n) != nil {
				listed = append(listed, n.String())
			}
		}
		if len(listed) > 0 { // forms allow only lists of texts
			out.Description += " One of " + oneline.Text(strings.Join(listed, ","), maxLabel)
			out.Description = strings.TrimSpace(out.Description)
		}
	}
	return out
}

// short returns a number if it is short enough for a form, otherwise nil.
func short(n *json.Number) *json.Number {
	if n == nil || len(*n) > maxDigits {
		return nil
	}
	return n
}

// names returns the labels of the fields in a form, and the field of each.
func (f flat) names() (shown []string, behind map[string]string) {
	return labels(slices.Sorted(maps.Keys(f.Properties)))
}

// choices returns the labels of the enum in a form, and the text of each.
func (f flat) choices() (shown []string, behind map[string]string) {
	var texts []string
	for _, v := range f.Enum {
		if s, ok := v.(string); ok {
			texts = append(texts, s)
		}
	}
	return labels(texts)
}

// labels makes others' texts fit for a form. It leaves out texts that would be empty, or look like an earlier one.
func labels(texts []string) (shown []string, behind map[string]string) {
	behind = map[string]string{}
	for _, text := range texts {
		label := oneline.Text(text, maxLabel)
		if _, has := behind[label]; label != "" && !has {
			shown, behind[label] = append(shown, label), text
		}
	}
	return shown, behind
}

// reply is a user's reply to a question.
type reply struct {
	Action  string          `json:"action"` // accept, decline or cancel
	Content json.RawMessage `json:"content"`
}

// replies reads the replies that a tools/call carries.
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

// answer returns the value of a filled form, with the question's own names and texts instead of the form's labels.
func (r reply) answer(schema json.RawMessage) json.RawMessage {
	f := flatOf(schema)
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(r.Content, &fields)
	if value, ok := fields[field]; ok && f.Type != "object" {
		return f.meant(value)
	} else if f.Type != "object" || fields == nil {
		return json.RawMessage("null") // fits no schema, so the database rejects it with a reason
	}
	_, names := f.names()
	out := map[string]json.RawMessage{}
	for label, value := range fields {
		name, known := names[label]
		if !known {
			name = label // the database rejects it with a reason
		}
		out[name] = f.Properties[name].meant(value)
	}
	return encode(out)
}

// meant returns the text of the enum for a label of the form; it returns any other value unchanged.
func (f flat) meant(value json.RawMessage) json.RawMessage {
	var label string
	if f.Type != "string" || json.Unmarshal(value, &label) != nil {
		return value
	}
	_, texts := f.choices()
	if text, ok := texts[label]; ok {
		return encode(text)
	}
	return value
}

// replyOutcome is the outcome of replies, by the ids of their questions.
type replyOutcome struct {
	declined map[string]bool   // the user declined, or has seen the link
	misfits  map[string]string // why an answer was rejected
}

// open returns the questions to ask the client.
func (g replyOutcome) open(questions []question, can abilities, dashboard string) (ask []question) {
	for _, q := range questions {
		if q.way(can, dashboard) != "" && !g.declined[q.id] {
			ask = append(ask, q)
		}
	}
	return ask
}

// give answers those open questions of a call that replies name, one at a time. It ignores other keys and answered
// questions. The same answer may be given again.
func (d *Server) give(ctx context.Context, c caller, questions []question, replies map[string]reply) (
	replyOutcome, error) {
	came := replyOutcome{map[string]bool{}, map[string]string{}}
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
		case refused.Code == "PT404", refused.Code == "PT409", refused.Code == "PT410":
			// the question is answered, over, or no longer the user's
		case refused.Code == "PT422" || strings.HasPrefix(refused.Code, "22"):
			// Postgres raises the second if the answer is not valid jsonb.
			came.misfits[id] = refused.Message
		default:
			return came, err
		}
	}
	return came, nil
}

// requests returns the questions that a result carries.
func (d *Server) requests(ask []question, came replyOutcome) sdk.InputRequestMap {
	all := sdk.InputRequestMap{}
	for _, q := range ask {
		all[q.id] = q.params(d.o.DashboardURL, came.misfits[q.id])
	}
	return all
}

// asked reports whether the client's user is being asked one of a call's questions, and whether the user left one
// unanswered.
func (d *Server) asked(came replyOutcome, can abilities, questions []question) (asked, declined bool) {
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

// prompts are the questions that sessions of earlier versions were asked, by our requests. Each session is asked each
// question once, however often its client asks about the call.
type prompts struct {
	mu  sync.Mutex
	all map[prompt]*promptOutcome
}

type prompt struct {
	session *sdk.ServerSession
	id      string
}

type promptOutcome struct{ declined bool }

func (p *prompts) declined(session *sdk.ServerSession, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.all[prompt{session, id}]
	return asked != nil && asked.declined
}

// begin reports whether the session has not been asked yet, and marks it as asked.
func (p *prompts) begin(session *sdk.ServerSession, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[prompt{session, id}] != nil {
		return false
	}
	if p.all == nil {
		p.all = map[prompt]*promptOutcome{}
	}
	p.all[prompt{session, id}] = &promptOutcome{}
	return true
}

func (p *prompts) end(session *sdk.ServerSession, id string, declined bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[prompt{session, id}].declined = declined
}

// asking holds the questions that the client's user is being asked during one request.
type asking struct {
	d       *Server
	c       caller
	session *sdk.ServerSession
	cancel  []context.CancelFunc
}

// promptFor limits how long a user sees a question, and tries how often it is asked again if the answer does not fit.
const promptFor, tries = time.Hour, 3

// begin asks the questions that have not been asked yet.
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

// stop withdraws the open prompts: the call has ended, or the client has cancelled. After leave it does nothing.
func (a *asking) stop() {
	for _, cancel := range a.cancel {
		cancel()
	}
}

// leave keeps the prompts open after the request ends: a later answer is still valid.
func (a *asking) leave() { a.cancel = nil }

// prompt asks the user of a session, and reports whether the question has an answer.
func (d *Server) prompt(ctx context.Context, c caller, session *sdk.ServerSession, q question) bool {
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
