package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/grounding"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/router"
)

// question is the input of extract.shard. Its hash is the tool's key, so that the same question is asked once: a
// success with the key answers all later questions. Fields that do not change the answer are not part of the hash.
type question struct {
	grounding.Request
	// Answers is the maximum number of answers to request from the model, 1 or 2. 0 means 2.
	Answers int `json:"answers,omitempty"`
	// Whole means that an answer which is cut off is a failure, because nobody will divide the text.
	Whole bool `json:"whole,omitempty"`
}

// shardOutput is the output of extract.shard: the model's words without their interpretation. The parent has the
// program and reads them again.
type shardOutput struct {
	// CallID is the call that asked the model; for a hit it is the earlier call.
	CallID string `json:"call_id"`
	Answer string `json:"answer"` // the last
	// First is the answer before the last, if there was one.
	First  string        `json:"first_answer,omitempty"`
	Finish provider.Stop `json:"finish"` // the reason for the end of the last answer
	Passes int           `json:"passes"` // answers
	Items  int           `json:"items"`  // that count
	Models []string      `json:"models"` // who answered
	Usage  usage         `json:"usage"`
}

// The codes of failures, in addition to the codes of readings.
const (
	hashMismatch    = "request_hash_mismatch"
	scopeMismatch   = "scope_mismatch"
	programInvalid  = "program_invalid"
	refused         = "refused"
	budgetExhausted = "budget_exhausted"
)

// Shard is extract.shard: it asks a model about a piece of a document, and again if the answer cannot be read or has
// claims without support in the text.
func (e *Extract) Shard(ctx context.Context, call *handlers.Durable, in question) (shardOutput, error) {
	m, err := e.modelsOf(call, &in)
	if err != nil {
		return shardOutput{}, err
	}
	program, err := compile(&in.Program)
	if err != nil {
		return shardOutput{}, err
	}
	s := &shardRun{Extract: e, models: m, call: call, program: program, window: in.Window(), route: in.Route,
		out: shardOutput{CallID: call.ID}}
	if err := s.ask(ctx, "answer.1", program.Prompt(s.window)); err != nil {
		return shardOutput{}, err
	}
	reading := s.out.read(program, s.window)
	if reading.AskAgain() {
		if in.Answers == 1 {
			return shardOutput{}, s.unusable(budgetExhausted,
				"The answer needs a repair, and no further answer may be asked for.")
		}
		err := s.ask(ctx, "answer.2", program.Repair(s.window, reading.Rejected, s.out.Answer))
		if err != nil && (reading.Failure != "" || !final(err)) {
			return shardOutput{}, err
		}
		reading = s.out.read(program, s.window)
	}
	s.out.Items = len(reading.Items)
	switch reading.Failure {
	case "":
		return s.out, s.fits()
	case grounding.Truncated:
		if !in.Whole { // a success, because the same question would get the same answer
			return s.out, s.fits()
		}
		return shardOutput{}, s.unusable(grounding.Truncated,
			"The answer was cut off, and the text is not to be divided further.")
	case refused:
		return shardOutput{}, s.unusable(refused, "The model refused to answer.")
	}
	return shardOutput{}, s.unusable(reading.Failure, "The model's answer cannot be read as a list of extractions.")
}

// Check refuses a request that does not match its hash, so that no caller can get the answer to another question, or
// store an answer for it.
func (q *question) Check(call *handlers.Call) error {
	switch {
	case q.Sum() != q.Hash:
		return mismatch("request_hash is not the hash of the input")
	case q.Scope != "" && q.Scope != call.CreatedBy:
		return otherScope()
	}
	return nil
}

// modelsOf returns the models to ask, or an error if they differ from the request's.
func (e *Extract) modelsOf(call *handlers.Durable, in *question) (*router.Models, error) {
	if in.Scope != e.scope(call.CreatedBy) {
		return nil, otherScope()
	}
	if in.Prompt != grounding.PromptNumber { // another worker may have another wording
		return nil, handlers.Transient(mismatch(fmt.Sprintf("this worker has prompt %d, and not %d", grounding.PromptNumber,
			in.Prompt)))
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
	return &handlers.Failure{Code: scopeMismatch, Message: "Nothing was asked: the scope is not that of the call's " +
		"user. See EXTRACT_CACHE_SCOPE."}
}

// compile compiles a program. Its error names the defective place.
func compile(p *grounding.Program) (*grounding.CompiledProgram, error) {
	c, err := p.Compile()
	if fault, ok := errors.AsType[*grounding.Fault](err); ok {
		return nil, &handlers.Failure{Code: programInvalid, Message: "The program cannot be used: " + fault.Error() + ".",
			Details: map[string]string{"pointer": fault.Pointer, "message": fault.Message}}
	}
	return c, err
}

// shardRun is a run of extract.shard.
type shardRun struct {
	*Extract
	models  *router.Models
	call    *handlers.Durable
	program *grounding.CompiledProgram
	window  grounding.Window
	route   string
	out     shardOutput
}

// ask asks the model, as the step of that name.
func (s *shardRun) ask(ctx context.Context, step string, p grounding.Prompt) error {
	s.out.Usage.LLMCalls++
	a, err := s.models.Ask(ctx, s.call, step, router.Question{Route: s.route, System: p.System, Schema: s.program.Schema(),
		SchemaName: "extractions",
		Messages: []provider.Message{{Role: provider.User,
			Content: provider.Content{{Type: provider.Text, Text: p.User}}}}})
	if err != nil {
		return s.out.Usage.fail(err)
	}
	s.out.Usage.answered(&a.Usage)
	s.out.First, s.out.Answer, s.out.Finish = s.out.Answer, textOf(&a), a.Stop
	s.out.Passes++
	s.out.Models = append(s.out.Models, a.Model)
	return nil
}

// final reports whether no later attempt would get the second answer, so that only the correct part of the first answer
// counts.
func final(err error) bool {
	failure, ok := errors.AsType[*handlers.Failure](err)
	return ok && slices.Contains([]string{router.ProviderRefused, router.RequestTooLarge, router.ContextTooLong,
		router.AnswerTooLarge}, failure.Code)
}

// textOf returns a model's answer: its text or, if it called a tool despite its instructions, the arguments of the
// call.
func textOf(a *router.Answer) string {
	answer := provider.Answer{Parts: a.Parts}
	text := answer.Text()
	if strings.TrimSpace(text) != "" {
		return text
	}
	for _, p := range a.Parts {
		if p.Type == provider.ToolCall {
			text += string(p.Arguments) + p.RawArguments
		}
	}
	return text
}

// read reads the answers. With two answers it combines their valid parts. If the second cannot be read, the first still
// counts.
func (a *shardOutput) read(c *grounding.CompiledProgram, w grounding.Window) grounding.Reading {
	last := grounding.Reading{Failure: refused}
	if a.Finish != provider.Refusal {
		last = c.Read(w, a.Answer, a.Finish == provider.MaxTokens)
	}
	if a.Passes < 2 {
		return last
	}
	return grounding.MergeAnswers(c.Read(w, a.First, false), last)
}

// mostResult is the maximum size of a result, in bytes of JSON.
const mostResult = 1 << 20

// fits returns the error of answers that are too large for a result.
func (s *shardRun) fits() error {
	if value.Size(s.out) > mostResult {
		return s.unusable(router.AnswerTooLarge, fmt.Sprintf(
			"The answers take more than %d bytes as a result: use smaller shards.", mostResult))
	}
	return nil
}

// mostShown is the maximum number of an answer's bytes in a failure.
const mostShown = 4000

// unusable returns the failure for an unusable answer.
func (s *shardRun) unusable(code, message string) error {
	return &handlers.Failure{Code: code, Message: message, Details: map[string]any{
		"usage": s.out.Usage, "models": s.out.Models, "finish": s.out.Finish, "answer": oneline.Cut(s.out.Answer, mostShown)}}
}
