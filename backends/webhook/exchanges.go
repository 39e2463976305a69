package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/exchange"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/receipts"
)

// Limits of an exchange.
const (
	maxExchange   = 4 << 20 // bytes, of a request and of an answer
	maxOperations = 1000    // of an answer
)

// protocol is the version of the requests and answers.
const protocol = 1

// dialogue is one attempt of a durable call. It sends requests with the journal, and gets answers with operations.
type dialogue struct {
	*webhook
	call    *handlers.Call
	attempt exchange.Attempt
	number  int             // of the exchange
	token   string          // for SQL, or empty
	mayRun  []string        // steps that must not run twice, and that this attempt has just recorded as begun
	codes   []string        // the codes of the errors in the last request
	ended   map[string]bool // the names of the entries in the last request that have ended
}

// converse runs one attempt of a durable call.
func (w *webhook) converse(_ context.Context, call *handlers.Call, attempt exchange.Attempt) (json.RawMessage, error) {
	d := &dialogue{webhook: w, call: call, attempt: attempt}
	if w.missing != nil && attempt.State().Steps > 0 {
		attempt.DoesNotFit("", w.missing.Reason)
	}
	if w.missing != nil {
		return nil, w.missing
	}
	if w.sql && !attempt.State().Replay {
		var err error
		if d.token, err = attempt.Token(); err != nil {
			return nil, err
		}
	}
	for {
		d.number++
		answer, err := d.exchange()
		if err != nil {
			return nil, err
		}
		result, done, err := d.take(answer)
		if err != nil || done {
			return result, err
		}
	}
}

// exchangeBody is the body of a request.
type exchangeBody struct {
	GEM      int              `json:"gem"`
	Call     about            `json:"call"`
	Input    json.RawMessage  `json:"input"`
	Exchange exchangeState    `json:"exchange"`
	Journal  []exchange.Entry `json:"journal"`
}

type exchangeState struct {
	Number    int      `json:"number"`
	LeftMS    int64    `json:"left_ms"`
	Cancelled bool     `json:"cancelled"`
	Replay    bool     `json:"replay"`
	MayRun    []string `json:"may_run"`
	Steps     int      `json:"steps"`
	Token     string   `json:"token,omitempty"`
}

// exchangeAnswer is the body of an answer.
type exchangeAnswer struct {
	GEM           int             `json:"gem"`
	Steps         *int            `json:"steps"`
	Unsure        bool            `json:"unsure"` // the service may have written a step that is also among the operations
	Operations    []operation     `json:"ops"`
	Wait          *wait           `json:"wait"`
	Result        json.RawMessage `json:"result"`
	Error         *failure        `json:"error"`
	NotConfigured json.RawMessage `json:"not_configured"`
	Misfit        *misfit         `json:"misfit"`
	Stopped       string          `json:"stopped"`
	Unread        []string        `json:"unread"`
	Effects       json.RawMessage `json:"effects"`
	isEmpty       bool            // it has neither operations nor an end
}

type operation struct {
	Do            exchange.Verb   `json:"op"`
	Name          string          `json:"name"`
	Kind          exchange.Kind   `json:"kind"`
	Result        json.RawMessage `json:"result"`
	Error         *failure        `json:"error"`
	NotConfigured json.RawMessage `json:"not_configured"`
	Transient     bool            `json:"transient"`
	AfterMS       int64           `json:"after_ms"`
	Effects       json.RawMessage `json:"effects"`
	Tool          string          `json:"tool"`
	Input         json.RawMessage `json:"input"`
	Approved      string          `json:"approved"`
	By            []string        `json:"by"`
	Text          string          `json:"text"`
	OwnerToo      bool            `json:"owner_too"`
	Until         time.Time       `json:"until"`
	CleanUp       bool            `json:"cleanup"`
}

type wait struct {
	Need    int     `json:"need"`
	For     []await `json:"for"`
	CleanUp bool    `json:"cleanup"`
}

type await struct {
	Name     string     `json:"name"`
	WithinMS int64      `json:"within_ms"`
	Until    *time.Time `json:"until"`
}

type failure struct {
	Code    string          `json:"error_code"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details"`
}

type misfit struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// exchange makes one request and returns the answer. Without a valid answer, the attempt ends.
func (d *dialogue) exchange() (*exchangeAnswer, error) {
	entries, complete := d.attempt.Entries()
	if !complete {
		return nil, journalFull
	}
	state := d.attempt.State()
	d.codes, d.ended = d.codes[:0], map[string]bool{}
	for _, e := range entries {
		d.ended[e.Name] = e.Ended != nil
		if e.Error != nil {
			d.codes = append(d.codes, string(e.Error.Code))
		}
		if e.TimedOut && e.Kind != exchange.Time {
			d.codes = append(d.codes, string(receipts.Timeout))
		}
	}
	if state.Cancelled {
		d.codes = append(d.codes, string(receipts.Cancelled))
	}
	// The service has a little less time than the attempt, so that the attempt can still record that the service did not
	// answer.
	left := state.Left - min(state.Left/10, time.Second)
	body, err := plainjson.Encode(exchangeBody{GEM: protocol, Call: aboutCall(d.call), Input: d.call.Input,
		Exchange: exchangeState{d.number, left.Milliseconds(), state.Cancelled, state.Replay,
			append([]string{}, d.mayRun...), state.Steps, d.token},
		Journal: append([]exchange.Entry{}, entries...)})
	if err != nil {
		return nil, err
	}
	if len(body) > maxExchange {
		return nil, journalFull
	}
	ctx, cancel := context.WithTimeout(d.attempt.Life(), left)
	defer cancel()
	status, header, answer, err := d.post(ctx, body)
	if err != nil {
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		if late && d.token != "" { // a transaction of the service may still commit
			select {
			case <-d.attempt.Life().Done():
			case <-time.After(d.attempt.State().Left - 100*time.Millisecond):
			}
		}
		err = d.withoutAnswer(err)
		if late {
			<-d.attempt.Life().Done() // so that the attempt ends with `timeout`
		}
		return nil, err
	}
	switch {
	case status == http.StatusOK:
		read, err := decodeAnswer(answer)
		if err != nil {
			return nil, d.misfit(fmt.Sprintf("%s answered 200, and not as a durable handler does (%s): %s", d.domain,
				value.OneLine(err.Error(), d.secrets...), d.quote(answer)))
		}
		return read, nil
	case status == http.StatusNotImplemented && state.Steps == 0:
		return nil, d.unconfigured(d.call, answer)
	case mayPass(status):
		return nil, d.withoutAnswer(handlers.TransientAfter(fmt.Errorf("%s answered %d: %s", d.domain, status,
			d.quote(answer)), retryAfter(header.Get("Retry-After"), time.Now())))
	}
	return nil, d.misfit(fmt.Sprintf("%s answered %d: %s", d.domain, status, d.quote(answer)))
}

// journalFull ends a call whose journal is too large for a request.
var journalFull = &handlers.Failure{Code: string(receipts.JournalFull), Message: "The journal of the call is too " +
	"large for a request to the service, which takes at most 4 MiB: let steps return less, or make calls, which have " +
	"journals of their own."}

// withoutAnswer ends the attempt without a valid answer. It first reads the journal again, because the service may have
// written steps.
func (d *dialogue) withoutAnswer(err error) error {
	if d.token != "" {
		if err := d.attempt.Reread(); err != nil {
			return d.misfit(err.Error())
		}
	}
	return d.attempt.Unanswered(err)
}

// misfit makes the call wait for code.
func (d *dialogue) misfit(why string) error {
	d.attempt.DoesNotFit("", why)
	return errors.New(why)
}

// post sends a request. If no byte of it could be sent, and a step would never run if the attempt ended now, it tries
// again while there is time.
func (d *dialogue) post(ctx context.Context, body []byte) (status int, header http.Header, answer []byte, err error) {
	id := fmt.Sprintf("%s-%d-%d", d.call.ID, d.call.Attempt, d.number)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		req, err := d.request(ctx, id, body)
		if err != nil {
			return 0, nil, nil, err
		}
		resp, sent, err := d.send(req)
		if err == nil {
			answer, err = io.ReadAll(io.LimitReader(resp.Body, maxExchange+1))
			_ = resp.Body.Close()
			if err == nil && len(answer) > maxExchange {
				return 0, nil, nil, d.misfit(fmt.Sprintf("%s answered %d with more than %d bytes (4 MiB).", d.domain,
					resp.StatusCode, maxExchange))
			}
			if err == nil {
				return resp.StatusCode, resp.Header, d.withoutSecrets(answer), nil
			}
		}
		if sent || len(d.mayRun) == 0 || ctx.Err() != nil {
			return 0, nil, nil, handlers.Transient(fmt.Errorf("no answer from %s: %s", d.domain,
				value.OneLine(err.Error(), d.secrets...)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// decodeAnswer reads the body of a 200.
func decodeAnswer(body []byte) (*exchangeAnswer, error) {
	answer := &exchangeAnswer{}
	if err := decodeStrictly(body, answer); err != nil {
		return nil, err
	}
	ends := 0
	for _, has := range []bool{answer.Wait != nil, answer.Result != nil, answer.Error != nil, answer.NotConfigured != nil,
		answer.Misfit != nil, answer.Stopped != ""} {
		if has {
			ends++
		}
	}
	switch {
	case answer.GEM != protocol:
		return nil, fmt.Errorf(`it has "gem": %d, and this worker speaks %d`, answer.GEM, protocol)
	case ends > 1:
		return nil, errors.New("it has more than one end")
	case len(answer.Operations) > maxOperations:
		return nil, fmt.Errorf("it has %d operations, and can have %d", len(answer.Operations), maxOperations)
	}
	answer.isEmpty = ends == 0 && len(answer.Operations) == 0
	return answer, nil
}

// take records the operations of an answer and acts on its end. done means that the handler has returned.
func (d *dialogue) take(answer *exchangeAnswer) (result json.RawMessage, done bool, err error) {
	state := d.attempt.State()
	switch {
	case state.Replay && answer.Stopped != "":
		d.attempt.Finished(answer.Unread)
		d.attempt.Stopped(answer.Stopped)
	case answer.Stopped != "" || state.Replay && len(answer.Operations) > 0:
		return nil, false, d.misfit(d.domain + " mistook a replay for a run, or a run for a replay.")
	}
	unsure := answer.Unsure || slices.ContainsFunc(answer.Operations,
		func(op operation) bool { return op.Kind == exchange.Tx })
	counted := state.Steps
	said := counted // the service's count
	if answer.Steps != nil {
		said = *answer.Steps
	}
	if d.token != "" && (said != counted || unsure) {
		if err := d.attempt.Reread(); err != nil {
			return nil, false, d.misfit(err.Error())
		}
		state = d.attempt.State()
	}
	allowed := d.mayRun
	d.mayRun = nil // these steps may have run, so no later request may run them

	if unsure && state.Steps > said { // the transaction of the step has committed after all
		return nil, false, d.keepEnds(allowed, answer.Operations)
	}
	if answer.isEmpty && state.Steps == counted {
		return nil, false, d.misfit(fmt.Sprintf("%s answered with neither operations nor an end. A stepTx must end with "+
			"keep_tool_step, and its transaction must commit.", d.domain))
	}
	if said != state.Steps {
		return nil, false, d.misfit(fmt.Sprintf("%s counted %d steps in the journal, and there are %d.", d.domain, said,
			state.Steps))
	}
	if err := d.record(answer.Operations); err != nil {
		return nil, false, err
	}
	if len(answer.Effects) > 0 {
		if err := backends.AddEffects(d.call, answer.Effects); err != nil {
			return nil, false, err
		}
	}
	switch {
	case answer.Wait != nil:
		return nil, false, d.wait(answer.Wait)
	case answer.Misfit != nil:
		d.attempt.DoesNotFit(answer.Misfit.Name, receipts.Shorten(answer.Misfit.Message, 500))
	case answer.Result == nil && answer.Error == nil && answer.NotConfigured == nil:
		return nil, false, nil
	}
	d.attempt.Finished(answer.Unread)
	switch {
	case answer.Error != nil:
		err = d.failure(answer.Error)
	case answer.NotConfigured != nil:
		err = backends.NotConfigured(answer.NotConfigured, handlers.NotConfigured{
			Reason: fmt.Sprintf("%s lacks what %s needs.", d.domain, d.call.Tool)})
	}
	return answer.Result, true, err
}

// keepEnds records the ends of the StepOnces that this exchange was allowed to run. It drops the other operations of
// the answer: their steps run again if the journal lacks them.
func (d *dialogue) keepEnds(allowed []string, answered []operation) error {
	entries, _ := d.attempt.Entries()
	var ends []operation
	for _, op := range answered {
		if op.Do == exchange.End && op.Kind == exchange.Once && slices.Contains(allowed, op.Name) &&
			!slices.ContainsFunc(entries, func(e exchange.Entry) bool { return e.Name == op.Name && e.Ended != nil }) {
			ends = append(ends, op)
		}
	}
	return d.record(ends)
}

// record records operations of an answer. It notes which steps the next exchange may run.
func (d *dialogue) record(answered []operation) (err error) {
	operations := make([]exchange.Operation, len(answered))
	for i, op := range answered {
		if operations[i], err = d.operation(op); err != nil {
			return d.misfit(err.Error())
		}
		if op.Do == exchange.Begin {
			d.mayRun = append(d.mayRun, op.Name)
		}
	}
	if len(operations) > 0 {
		if err := d.attempt.Record(operations); err != nil {
			return d.misfit(fmt.Sprintf("%s answered what cannot be recorded: %v.", d.domain, err))
		}
	}
	return nil
}

// wait waits as the service asks.
func (d *dialogue) wait(w *wait) error {
	names, have := make([]handlers.Await, len(w.For)), 0
	for i, one := range w.For {
		if d.ended[one.Name] {
			have++
		}
		names[i] = handlers.Await{Name: one.Name, Until: one.Until,
			Within: time.Duration(min(max(one.WithinMS, 0), maxWaitMS)) * time.Millisecond}
	}
	switch {
	case w.Need < 1 || w.Need > len(names):
		return d.misfit(fmt.Sprintf("%s waits for %d of %d names.", d.domain, w.Need, len(names)))
	case have >= w.Need: // the service would ask for it forever
		return d.misfit(fmt.Sprintf("%s waits for what has arrived.", d.domain))
	}
	if err := d.attempt.Wait(w.Need, names, w.CleanUp); err != nil {
		return d.misfit(fmt.Sprintf("%s asked for a wait that Postgres rejects: %v.", d.domain, err))
	}
	return nil
}

// maxWaitMS is the longest time of a wait: 366 days.
const maxWaitMS = 366 * 24 * 60 * 60 * 1000

// operation converts an operation of an answer.
func (d *dialogue) operation(op operation) (exchange.Operation, error) {
	read := exchange.Operation{Do: op.Do, Name: op.Name, Kind: op.Kind, Result: op.Result, Tool: op.Tool, Input: op.Input,
		Approved: op.Approved, CleanUp: op.CleanUp,
		Approval: handlers.Approval{By: op.By, Text: op.Text, OwnerToo: op.OwnerToo, Until: op.Until}}
	if op.Do == exchange.End && !slices.Contains([]exchange.Kind{exchange.Step, exchange.Once, exchange.Tx}, op.Kind) {
		return read, fmt.Errorf("the kind of the step %.100q is %.50q, and may be step, once or tx", op.Name, op.Kind)
	}
	switch {
	case op.Error != nil && op.Kind == exchange.Once && op.Error.Code == string(receipts.OutcomeUnknown):
		read.Err = handlers.ErrUnknown
	case op.Error != nil:
		read.Err = d.failure(op.Error)
	case op.NotConfigured != nil:
		read.Err = backends.NotConfigured(op.NotConfigured, handlers.NotConfigured{
			Reason: fmt.Sprintf("%s lacks what the step %s needs.", d.domain, op.Name)})
	case op.Do == exchange.End && op.Result == nil:
		read.Result = json.RawMessage("null")
	}
	if op.Transient && read.Err != nil {
		read.Err = handlers.TransientAfter(read.Err, time.Duration(min(max(op.AfterMS, 0), maxPauseMS))*time.Millisecond)
	}
	if len(op.Effects) > 0 {
		effects, err := backends.ReadEffects(fmt.Sprintf("the step %.100s of %s", op.Name, d.call.Tool), op.Effects)
		if err != nil && read.Err == nil { // the step has run, so it must end
			read.Result, read.Err = nil, err
		}
		read.Effects = effects
	}
	return read, nil
}

// maxPauseMS limits after_ms to a day. An error with a pause above [handlers.MaxPause] is not transient.
const maxPauseMS = 24 * 60 * 60 * 1000

// failure returns the error that the service reports. The error may have one of GEM's codes only if an error in the
// request had the same code, or if it is about the service's own output.
func (d *dialogue) failure(said *failure) error {
	if said.Code == string(receipts.OutputInvalid) || slices.Contains(d.codes, said.Code) {
		return &handlers.Failure{Code: said.Code, Message: said.Message, Details: said.Details}
	}
	return backends.Failure(said.Code, said.Message, said.Details)
}
