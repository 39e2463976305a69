package extract

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gemworker/gem/grounding"
	"github.com/gemworker/gem/handlers"
)

// request is the input of extract.run: a text, or a document's id.
type request struct {
	Text       string            `json:"text,omitempty"`
	DocumentID string            `json:"document_id,omitempty"`
	Program    grounding.Program `json:"program"`
	Route      string            `json:"route,omitempty"`
	Offsets    grounding.Unit    `json:"offsets,omitempty"`
	// AllowPartial accepts a result from the shards that were read, even if others were not.
	AllowPartial bool `json:"allow_partial,omitempty"`
	Chunk        struct {
		Size    int  `json:"size,omitempty"`    // of a body, in characters; 0 means 4,000
		Context *int `json:"context,omitempty"` // before and after it, in characters; nil means 200
	} `json:"chunk"`
	MaxCalls int `json:"max_llm_calls,omitempty"` // answers of models; 0 means unlimited
}

// The codes of failures of a run.
const (
	documentTooLarge = "document_too_large"
	programTooLarge  = "program_too_large"
	incomplete       = "extraction_incomplete"
	ungrounded       = "extraction_ungrounded"
	resultTooLarge   = "result_too_large"
)

const (
	defaultSize    = 4000
	defaultContext = 200
)

// mostDepth is how often a text is halved if its answer is cut off.
const mostDepth = 2

// Run is extract.run: it cuts a text into shards, requests a model's answer for each in a separate call, and finds the
// quotes of the answers in the text. The plan follows from the input and is made again whenever the call continues.
func (e *Extract) Run(ctx context.Context, call *handlers.Durable, in request) (output, error) {
	given, err := e.text(ctx, call, &in)
	if err != nil {
		return output{}, err
	}
	r := &run{Extract: e, call: call, in: &in, given: given, text: grounding.Normalise(given),
		size: cmp.Or(in.Chunk.Size, defaultSize), context: defaultContext}
	if in.Chunk.Context != nil {
		r.context = *in.Chunk.Context
	}
	in.Route = cmp.Or(in.Route, "default")
	if r.program, err = compile(&in.Program); err != nil {
		return output{}, err
	}
	shards, err := grounding.Cut(r.text, r.size, r.context)
	if large, ok := errors.AsType[*grounding.TooLarge](err); ok {
		return output{}, tooLarge(large)
	} else if err != nil {
		return output{}, err
	}
	if err := r.fits(len(shards)); err != nil {
		return output{}, err
	}
	for _, s := range shards {
		r.pieces = append(r.pieces, &piece{Shard: s, name: fmt.Sprint(s.Index)})
	}
	if err := r.ask(ctx); err != nil {
		return output{}, err
	}
	return r.result()
}

// mostPrograms is the maximum size of the programs of all shards, in bytes: each shard has the whole program in its
// input and its prompt.
const mostPrograms = 64 << 20

// fits returns an error if a program is too large for the number of shards.
func (r *run) fits(shards int) error {
	encoded, err := json.Marshal(r.in.Program)
	if err != nil || len(encoded)*shards <= mostPrograms {
		return err
	}
	return &handlers.Failure{Code: programTooLarge,
		Message: fmt.Sprintf("The program takes %d bytes, and each of the %d shards is asked with it: together they may "+
			"take %d. Shorten it, or set a larger chunk.size.",
			len(encoded), shards, mostPrograms)}
}

func tooLarge(e *grounding.TooLarge) error {
	remedy := "Divide it into several documents."
	if e.Fits > 0 {
		remedy = fmt.Sprintf("A chunk.size of %d fits.", e.Fits)
	}
	return &handlers.Failure{Code: documentTooLarge, Message: fmt.Sprintf("The document has more than %d shards of %d "+
		"characters. %s", grounding.MaxShards, e.Size, remedy),
		Details: map[string]int{"size": e.Size, "fits": e.Fits}}
}

// run is a run of extract.run.
type run struct {
	*Extract
	call          *handlers.Durable
	in            *request
	given         string
	text          *grounding.Text
	program       *grounding.CompiledProgram
	models        string // the models of the route
	size, context int
	pieces        []*piece // in the order of the text: a piece that was divided, and then its halves
	spent         int      // requested answers
}

// piece is a shard, or a part of a shard whose answer was cut off.
type piece struct {
	grounding.Shard
	name    string // in the journal: 3, and 3.1 and 3.2 for its halves
	depth   int
	child   *handlers.Child[shardOutput]
	may     int // answers that the child may request
	out     shardOutput
	code    string // why it was not read
	divided bool
	cached  bool
	reading grounding.Reading
	usage   usage
}

// ask has all pieces read, the pieces of one turn in parallel. There is one turn, unless answers are cut off, or the
// limit on answers is too low for each shard to have its repair.
func (r *run) ask(ctx context.Context) error {
	pending := r.pieces
	for len(pending) > 0 {
		now, err := r.start(pending)
		if err != nil {
			return err
		}
		var children []*handlers.Child[shardOutput]
		for _, p := range now {
			if p.child != nil {
				children = append(children, p.child)
			}
		}
		if err := handlers.All(ctx, children...); err != nil {
			return r.stopped(ctx, now, err)
		}
		pending = pending[len(now):]
		for _, p := range now {
			if err := r.take(ctx, p); err != nil {
				return err
			}
			if p.divided {
				pending = append(pending[:len(pending):len(pending)], r.divide(p)...)
			}
		}
	}
	return nil
}

// start makes the calls of the first pieces, as many as the limit on answers allows, and returns those pieces. These
// include pieces that need no call and, if no call may be made, all remaining pieces.
func (r *run) start(pending []*piece) ([]*piece, error) {
	left := 2 * len(pending)
	if r.in.MaxCalls > 0 {
		left = r.in.MaxCalls - r.spent
	}
	begun := false
	for i, p := range pending {
		switch {
		case p.Blank():
			continue
		case left == 0 && !begun:
			p.code = budgetExhausted
			continue
		case left == 0, left == 1 && begun: // the next turn knows how many answers remain
			return pending[:i], nil
		}
		p.may = min(left, 2)
		left -= p.may
		begun = true
		if err := r.begin(p); err != nil {
			return nil, err
		}
	}
	return pending, nil
}

// begin makes the call of a piece. Its name has the request's hash, so that a changed program with another plan or
// other models makes other calls.
func (r *run) begin(p *piece) error {
	if r.models == "" {
		m, err := r.asked()
		if err != nil {
			return err
		}
		if r.models, err = m.Names(r.in.Route); err != nil {
			return err
		}
	}
	q := question{Request: r.program.Request(p.Window, r.scope(r.call.CreatedBy), r.in.Route, r.models,
		json.RawMessage("{}")), Whole: p.depth == mostDepth}
	if p.may < 2 {
		q.Answers = p.may
	}
	p.child = handlers.Start[shardOutput](r.call, fmt.Sprintf("shard %s %.12s", p.name, q.Hash), "extract.shard", q)
	return nil
}

// take records the result of a piece. It returns only errors of ctx.
func (r *run) take(ctx context.Context, p *piece) error {
	if p.child == nil {
		return nil
	}
	out, err := p.child.Wait(ctx)
	if err != nil {
		if ctx.Err() != nil && usageOf(err) == nil { // it has not arrived
			return err
		}
		p.failed(err)
		r.spent += p.usage.LLMCalls
		return nil
	}
	p.out = out
	if p.cached = out.CallID != p.child.ID(); !p.cached {
		p.usage = out.Usage
		r.spent += p.usage.LLMCalls
	}
	p.reading = out.read(r.program, p.Window)
	p.out.Answer, p.out.First = "", "" // the answers of all pieces together may be large
	p.code = p.reading.Failure
	p.divided = p.code == grounding.Truncated && p.depth < mostDepth
	return nil
}

// stopped returns the error of a run that must not continue, with the usage of the pieces that have arrived.
func (r *run) stopped(ctx context.Context, now []*piece, err error) error {
	for _, p := range now {
		_ = r.take(ctx, p)
	}
	used := output{Models: []string{}}
	for _, p := range r.pieces {
		used.count(p, &shard{Status: p.status()})
	}
	used.Usage.settle()
	return &handlers.Failure{Code: "cancelled", Message: err.Error(),
		Details: map[string]any{"models": used.Models, "usage": used.Usage}}
}

// failed records why a piece was not read, and the answers that it used: if its receipt does not
// contain them, the maximum.
func (p *piece) failed(err error) {
	p.code = "execution_error"
	if f, ok := errors.AsType[*handlers.Failure](err); ok {
		p.code = f.Code
	}
	if _, ok := errors.AsType[*handlers.NotConfigured](err); ok {
		p.code = "not_configured"
		return
	}
	if u := usageOf(err); u != nil {
		p.usage = *u
	} else if p.code != hashMismatch && p.code != scopeMismatch {
		p.usage.LLMCalls = p.may
	}
}

// divide inserts the halves of a piece after it, and returns them.
func (r *run) divide(p *piece) (halves []*piece) {
	for i, s := range p.Halves(r.text, r.context) {
		halves = append(halves, &piece{Shard: s, name: fmt.Sprintf("%s.%d", p.name, i+1), depth: p.depth + 1})
	}
	if len(halves) == 0 { // it is one character
		p.divided = false
		return nil
	}
	i := slices.Index(r.pieces, p) + 1
	r.pieces = slices.Concat(r.pieces[:i], halves, r.pieces[i:])
	return halves
}
