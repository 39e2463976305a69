package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/extract"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/models"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/schema"
)

// question is the input of extract.shard. Its hash is the tool's key, so that the same question is asked once: a success under it answers all
// later ones. What does not change the answer is not part of it.
type question struct {
	extract.Request
	// Answers is how many answers the model may be asked for, 1 or 2. 0 means 2.
	Answers int `json:"answers,omitempty"`
	// Whole: an answer that is cut off is a failure, since nobody will divide the text.
	Whole bool `json:"whole,omitempty"`
}

// answered is the output of extract.shard: what the model said, and not what it means. Whoever has the program reads it again.
type answered struct {
	// CallID is the call that asked: another one than its own where the answer is an earlier one's.
	CallID string `json:"call_id"`
	Answer string `json:"answer"` // the last
	// First is the answer before the last, if there was one.
	First  string   `json:"first_answer,omitempty"`
	Finish llm.Stop `json:"finish"` // why the last one ended
	Passes int      `json:"passes"` // answers
	Items  int      `json:"items"`  // that count
	Models []string `json:"models"` // who answered
	Usage  usage    `json:"usage"`
}

// The codes of failures, besides those of readings.
const (
	hashMismatch    = "request_hash_mismatch"
	scopeMismatch   = "scope_mismatch"
	programInvalid  = "program_invalid"
	refused         = "refused"
	budgetExhausted = "budget_exhausted"
)

// Shard is extract.shard: it asks a model about a piece of a document, and once more if the answer cannot be read or claims what does not stand
// there.
func (e *Extract) Shard(ctx context.Context, call *handlers.Durable, in question) (answered, error) {
	m, err := e.modelsOf(call, &in)
	if err != nil {
		return answered{}, err
	}
	program, err := compile(&in.Program)
	if err != nil {
		return answered{}, err
	}
	s := &asking{Extract: e, models: m, call: call, program: program, window: in.Window(), route: in.Route, out: answered{CallID: call.ID}}
	if err := s.ask(ctx, "answer.1", program.Prompt(s.window)); err != nil {
		return answered{}, err
	}
	reading := s.out.read(program, s.window)
	if reading.AskAgain() {
		if in.Answers == 1 {
			return answered{}, s.unusable(budgetExhausted, "The answer needs a repair, and no further answer may be asked for.")
		}
		err := s.ask(ctx, "answer.2", program.Repair(s.window, reading.Rejected, s.out.Answer))
		if err != nil && (reading.Failure != "" || !final(err)) {
			return answered{}, err
		}
		reading = s.out.read(program, s.window)
	}
	s.out.Items = len(reading.Items)
	switch reading.Failure {
	case "":
		return s.out, s.fits()
	case extract.Truncated:
		if !in.Whole { // a success, since the same question would be answered so again
			return s.out, s.fits()
		}
		return answered{}, s.unusable(extract.Truncated, "The answer was cut off, and the text is not to be divided further.")
	case refused:
		return answered{}, s.unusable(refused, "The model refused to answer.")
	}
	return answered{}, s.unusable(reading.Failure, "The model's answer cannot be read as a list of extractions.")
}

// Check refuses a request that is not what its hash says, so that nobody is given the answer to another question, or puts one there.
func (q *question) Check(call *handlers.Call) error {
	switch {
	case q.Sum() != q.Hash:
		return mismatch("request_hash is not the hash of the input")
	case q.Scope != "" && q.Scope != call.CreatedBy:
		return otherScope()
	}
	return nil
}

// modelsOf returns the models to ask, or why they would not be those of the request.
func (e *Extract) modelsOf(call *handlers.Durable, in *question) (*models.Models, error) {
	if in.Scope != e.scope(call.CreatedBy) {
		return nil, otherScope()
	}
	if in.Prompt != extract.PromptNumber { // the worker beside this one may have the other wording
		return nil, handlers.Transient(mismatch(fmt.Sprintf("this worker has prompt %d, and not %d", extract.PromptNumber, in.Prompt)))
	}
	m, err := e.asked()
	if err != nil {
		return nil, err
	}
	names, err := m.Names(in.Route)
	if err == nil && names != in.Model {
		err = mismatch(fmt.Sprintf("the route %s has the models %s, and not %s", in.Route, names, in.Model))
	}
	return m, err
}

func mismatch(why string) error {
	return &handlers.Failure{Code: hashMismatch, Message: "Nothing was asked: " + why + ". Let extract.run make the call."}
}

func otherScope() error {
	return &handlers.Failure{Code: scopeMismatch, Message: "Nothing was asked: the scope is not that of the call's user. See EXTRACT_CACHE_SCOPE."}
}

// compile compiles a program. Its error names the place in it that is wrong.
func compile(p *extract.Program) (*extract.Compiled, error) {
	c, err := p.Compile()
	if fault, ok := errors.AsType[*extract.Fault](err); ok {
		return nil, &handlers.Failure{Code: programInvalid, Message: "The program cannot be used: " + fault.Error() + ".",
			Details: map[string]string{"pointer": fault.Pointer, "message": fault.Message}}
	}
	return c, err
}

// asking is a run of extract.shard.
type asking struct {
	*Extract
	models  *models.Models
	call    *handlers.Durable
	program *extract.Compiled
	window  extract.Window
	route   string
	out     answered
}

// ask asks the model, as the step of that name.
func (s *asking) ask(ctx context.Context, step string, p extract.Prompt) error {
	s.out.Usage.LLMCalls++
	a, err := s.models.Ask(ctx, s.call, step, models.Question{Route: s.route, System: p.System, Schema: s.program.Schema(), SchemaName: "extractions",
		Messages: []llm.Message{{Role: llm.User, Content: llm.Content{{Type: llm.Text, Text: p.User}}}}})
	if err != nil {
		return s.out.Usage.fail(err)
	}
	s.out.Usage.answered(&a.Usage)
	s.out.First, s.out.Answer, s.out.Finish = s.out.Answer, textOf(&a), a.Stop
	s.out.Passes++
	s.out.Models = append(s.out.Models, a.Model)
	return nil
}

// final reports whether no later attempt would get the second answer: what is right in the first one then counts alone.
func final(err error) bool {
	failure, ok := errors.AsType[*handlers.Failure](err)
	return ok && slices.Contains([]string{models.ProviderRefused, models.RequestTooLarge, models.ContextTooLong, models.AnswerTooLarge}, failure.Code)
}

// textOf is what a model answered: a text, or, from one that calls tools whatever it was told, the arguments of its call.
func textOf(a *models.Answer) string {
	answer := llm.Answer{Parts: a.Parts}
	text := answer.Text()
	if strings.TrimSpace(text) != "" {
		return text
	}
	for _, p := range a.Parts {
		if p.Type == llm.ToolCall {
			text += string(p.Arguments) + p.RawArguments
		}
	}
	return text
}

// read reads the answers: what counts of both, where there are two. A second one that cannot be read takes nothing from the first.
func (a *answered) read(c *extract.Compiled, w extract.Window) extract.Reading {
	last := extract.Reading{Failure: refused}
	if a.Finish != llm.Refusal {
		last = c.Read(w, a.Answer, a.Finish == llm.MaxTokens)
	}
	if a.Passes < 2 {
		return last
	}
	return extract.MergeAnswers(c.Read(w, a.First, false), last)
}

// mostResult is how many bytes of JSON a result may have.
const mostResult = 1 << 20

// fits returns the error of answers that are too large for a result.
func (s *asking) fits() error {
	if value.Size(s.out) > mostResult {
		return s.unusable(models.AnswerTooLarge, fmt.Sprintf("The answers take more than %d bytes as a result: use smaller shards.", mostResult))
	}
	return nil
}

// mostShown is how much of an answer a failure shows, in bytes.
const mostShown = 4000

// unusable is the failure of an answer that came.
func (s *asking) unusable(code, message string) error {
	return &handlers.Failure{Code: code, Message: message, Details: map[string]any{
		"usage": s.out.Usage, "models": s.out.Models, "finish": s.out.Finish, "answer": schema.Cut(s.out.Answer, mostShown)}}
}
