package llmtest

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

var quiet = log.New(io.Discard, "", 0)

// event is a piece of a body in the form of the dialect. A delta has content.
type event struct {
	text  string
	delta bool
}

// speaker writes a dialect.
type speaker interface {
	// begin, body and end return the events of an answer, in order. If a.usage is nil, they leave out the usage.
	begin(a *spoken) []event
	body(a *spoken) []event
	end(a *spoken) []event
	// again returns the events of a second end.
	again(a *spoken) []event
	// alive returns a sign of life.
	alive(a *spoken) string
	// failure returns the body of an error response, and failed the error event of a stream.
	failure(a *spoken, status int, message string, f *Fault) string
	failed(a *spoken, status int, message string) string
	// tooLong returns the provider's error for a prompt that does not fit.
	tooLong() string
	// data wraps text that is not JSON in the lines of an event.
	data(text string) string
}

// spoken is an answer in progress.
type spoken struct {
	*Script
	request *Request
	model   string
	id      string
	usage   *provider.Usage
}

var speakers = map[Dialect]speaker{Anthropic: anthropic{}, OpenAI: openAI{}, Gemini: gemini{}}

// player answers one request.
type player struct {
	server  *Server
	request *Request
	w       http.ResponseWriter
	ctx     context.Context
	script  Script
	speaker speaker
	spoken  *spoken
	used    provider.Usage // of the answer

	written int  // bytes of the body
	deltas  int  // number sent
	begun   bool // something was written
	gone    bool // the client has left
}

// left is the panic value of a player when the client has gone or the server is closed.
type left struct{}

func (p *player) play() {
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case left:
			select {
			case <-p.server.closing:
			default:
				p.gone = true
			}
			panic(http.ErrAbortHandler) // an incomplete answer must not look complete
		default:
			panic(fault)
		}
	}()
	r := p.request
	if r.Dialect == "" {
		http.Error(p.w, "llmtest: no dialect has the path "+r.Path, http.StatusNotFound)
		return
	}
	p.speaker = speakers[r.Dialect]
	p.script = Script{}
	p.speak()
	if key := p.server.options.Key; key != "" && r.Key != key {
		p.fail(Status(http.StatusUnauthorized))
		return
	}
	if r.Err != nil {
		f := Status(http.StatusBadRequest)
		f.Message = r.Err.Error()
		p.fail(f)
		return
	}
	p.script = p.server.next(r)
	p.speak()
	p.before(-1)
	switch f := p.script.Fault; f.Kind {
	case FailedStatus, TooLong, Redirected:
		p.fail(f)
	case Silent:
		p.wait(0)
	default:
		if f.Kind == Reset && f.After < 0 {
			p.reset()
			return
		}
		p.stream()
	}
}

// speak prepares the answer of the script.
func (p *player) speak() {
	s, r := &p.script, p.request
	a := &spoken{Script: s, request: r, model: s.Model, id: s.RequestID}
	if a.model == "" {
		a.model = r.Asked.Model
	}
	if a.id == "" {
		a.id = fmt.Sprintf("req_%d", r.N)
	}
	if s.Fault.Kind != NoUsage {
		a.usage = &p.used
	}
	p.spoken = a
}

// headers sends the status and the headers of the response.
func (p *player) headers(status int, contentType string) {
	h := p.w.Header()
	h.Set("Content-Type", contentType)
	switch p.request.Dialect {
	case Anthropic:
		h.Set("Request-Id", p.spoken.id)
	case OpenAI:
		h.Set("X-Request-Id", p.spoken.id)
	}
	for name, values := range p.script.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	p.w.WriteHeader(status)
}

// fail answers with an error status.
func (p *player) fail(f Fault) {
	status, message := f.Status, f.Message
	switch f.Kind {
	case TooLong:
		status = http.StatusBadRequest
		if message == "" {
			message = p.speaker.tooLong()
		}
	case Redirected:
		if status == 0 {
			status = http.StatusTemporaryRedirect
		}
		p.w.Header().Set("Location", f.Location)
	}
	if message == "" {
		message = fmt.Sprintf("scripted failure %d", status)
	}
	h := p.w.Header()
	switch f.RetryForm {
	case InSeconds:
		h.Set("Retry-After", strconv.FormatFloat(math.Ceil(f.Retry.Seconds()), 'f', -1, 64))
	case InMilliseconds:
		h.Set("Retry-After-Ms", strconv.FormatInt(f.Retry.Milliseconds(), 10))
	case AtDate:
		h.Set("Retry-After", time.Now().Add(f.Retry).UTC().Format(http.TimeFormat))
	}
	body := f.Raw
	if body == "" {
		body = p.speaker.failure(p.spoken, status, message, &f)
	}
	p.headers(status, "application/json")
	p.write(body)
	p.record(func(r *Request) { r.Status = status })
}

// stream answers with a stream.
func (p *player) stream() {
	f := p.script.Fault
	p.headers(http.StatusOK, "text/event-stream; charset=utf-8")
	p.record(func(r *Request) { r.Status = http.StatusOK })
	p.flush()
	if f.Kind == ErrorFirst {
		p.errorEvent(f)
		return
	}
	if p.used = p.script.used(&p.request.Asked); p.script.Usage == nil {
		p.server.cache(p.request, &p.used)
	}
	p.record(func(r *Request) { r.Usage = p.used })
	if p.script.Raw != "" {
		p.write(p.script.Raw)
		return
	}
	p.events(p.speaker.begin(p.spoken))
	for range p.script.KeepAlives {
		p.write(p.speaker.alive(p.spoken))
	}
	if f.Kind == Hanging {
		if f.Every == 0 {
			f.Every = 5 * time.Millisecond
		}
		p.wait(f.Every)
		return
	}
	for _, e := range p.speaker.body(p.spoken) {
		if e.delta {
			if p.broke(f) {
				return
			}
			p.before(p.deltas)
		}
		p.write(e.text)
		if e.delta {
			p.deltas++
			p.server.change(func(c *Counts) { c.Deltas++; p.request.Deltas++ })
		}
	}
	if p.broke(f) {
		return
	}
	end := p.speaker.end(p.spoken)
	if f.Kind == FinishedTwice {
		end = append(slices.Clip(end), p.speaker.again(p.spoken)...)
	}
	p.events(end)
	p.record(func(r *Request) { r.Finished = true })
}

func (p *player) events(list []event) {
	for _, e := range list {
		p.write(e.text)
	}
}

// broke makes the fault that belongs to this position, and reports whether it has ended the answer.
func (p *player) broke(f Fault) bool {
	if f.After != p.deltas {
		return false
	}
	switch f.Kind {
	case ErrorLate:
		p.errorEvent(f)
	case Reset:
		p.reset()
	case Broken:
		p.flush()
		panic(http.ErrAbortHandler)
	case CleanCut:
	case Stalled:
		p.wait(f.Every)
	case Garbage:
		raw := f.Raw
		if raw == "" {
			raw = p.speaker.data(`{"this is": no JSON`)
		}
		p.write(raw)
		p.script.Fault.Kind = None
		return false
	case EndlessLine:
		p.write("data: {\"text\":\"")
		for range 64 << 20 >> 16 {
			p.write(strings.Repeat("x", 1<<16))
		}
	default:
		return false
	}
	return true
}

func (p *player) errorEvent(f Fault) {
	status, message := f.Status, f.Message
	if status == 0 {
		status = http.StatusServiceUnavailable
	}
	if message == "" {
		message = fmt.Sprintf("scripted failure %d", status)
	}
	raw := f.Raw
	if raw == "" {
		raw = p.speaker.failed(p.spoken, status, message)
	}
	p.write(raw)
}

// reset ends the connection so that the other side reports an error. Over HTTP/2 it resets the stream.
func (p *player) reset() {
	hijacker, ok := p.w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		panic(left{})
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// before calls the script's hook.
func (p *player) before(delta int) {
	if p.script.Before == nil {
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	stop := make(chan struct{})
	defer close(stop)
	defer cancel()
	go func() {
		select {
		case <-p.server.closing:
			cancel()
		case <-stop:
		}
	}()
	p.script.Before(ctx, delta)
	p.check()
}

// wait waits until the client leaves. It sends signs of life unless every is 0.
func (p *player) wait(every time.Duration) {
	for {
		p.pause(every)
		p.write(p.speaker.alive(p.spoken))
	}
}

// pause waits for d, or forever if d is 0.
func (p *player) pause(d time.Duration) {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-p.ctx.Done():
	case <-p.server.closing:
	}
	p.check()
}

// check panics with left if the client has gone or the server is closed.
func (p *player) check() {
	select {
	case <-p.ctx.Done():
		panic(left{})
	case <-p.server.closing:
		panic(left{})
	default:
	}
}

// write writes a piece of the body, in as many writes as the script requires.
func (p *player) write(text string) {
	for len(text) > 0 {
		n := len(text)
		if c := p.script.Chunk; c > 0 {
			n = min(n, c-p.written%c)
		}
		for _, at := range p.script.Splits {
			if at > p.written {
				n = min(n, at-p.written)
			}
		}
		if p.begun && p.script.Delay > 0 {
			p.pause(p.script.Delay)
		}
		p.check()
		if _, err := io.WriteString(p.w, text[:n]); err != nil {
			panic(left{})
		}
		p.flush()
		p.begun = true
		p.written += n
		text = text[n:]
	}
}

func (p *player) flush() {
	if err := http.NewResponseController(p.w).Flush(); err != nil {
		panic(left{})
	}
}

// record updates the record of the request.
func (p *player) record(f func(*Request)) {
	p.server.change(func(*Counts) { f(p.request) })
}
