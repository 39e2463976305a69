package llm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// maxFailure is how many bytes of the body of a failed response are read.
const maxFailure = 64 << 10

// Watch stands below a vendor's SDK, for what an SDK hides or takes for granted: the headers and the body of a failed response, a
// redirect, an endless event, a broken connection. Above it an SDK sees only streams of well-formed server-sent events.
type Watch struct {
	// Prepare, if not nil, changes the request before it is sent.
	Prepare func(*http.Request)
	// Failed turns a response that is no success into an error. body is the beginning of its body.
	Failed func(status int, h http.Header, body []byte) *Error
	// Alive is the data of an event that stands for a comment, which an SDK would not pass on. Its type is Ping.
	Alive, Ping string
	// Typed: events keep their type. The SDK of Gemini takes it for an error.
	Typed bool
	// Key is cut out of messages.
	Key string
}

// Exchange is one request and its response, as seen below the SDK.
type Exchange struct {
	// Header is the response's, nil before it has begun.
	Header http.Header
	// Keep: the data of each event is kept for Data, in the order of the events.
	Keep bool
	data [][]byte
	err  error
}

type exchangeKey struct{}

// In returns a context for the one request that x is to see.
func (x *Exchange) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// Err returns why the body ended before its end: the SDK has been told that it ended well. It is nil after a whole body, and also after
// one that was cut between two writes of the server, which only the lack of the terminal event shows.
func (x *Exchange) Err() error { return x.err }

// Data returns the data of the next event, nil if there is none.
func (x *Exchange) Data() []byte {
	if len(x.data) == 0 {
		return nil
	}
	d := x.data[0]
	x.data = x.data[1:]
	return d
}

// Client returns c, watched. It asks for one response and follows no redirect.
func (w Watch) Client(c *http.Client) *http.Client {
	if c == nil {
		c = NewHTTP(nil)
	}
	watched := *c
	if watched.Transport == nil {
		watched.Transport = NewHTTP(nil).Transport // the default one takes its proxy from the environment
	}
	watched.Transport = watch{w, watched.Transport}
	watched.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	watched.Jar = nil
	return &watched
}

type watch struct {
	Watch
	next http.RoundTripper
}

func (w watch) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.Prepare != nil {
		r = r.Clone(r.Context())
		w.Prepare(r)
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	x, _ := r.Context().Value(exchangeKey{}).(*Exchange)
	if x == nil {
		x = &Exchange{}
	}
	x.Header = resp.Header
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
		resp.Body.Close()
		return nil, w.Failed(resp.StatusCode, resp.Header, body)
	}
	if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); t != "text/event-stream" {
		resp.Body.Close()
		return nil, &Error{Kind: Garbled, Status: resp.StatusCode, RequestID: RequestID(resp.Header, w.Key),
			Message: "the response is no stream of events but " + Clean(fmt.Sprintf("%q", t), w.Key)}
	}
	resp.Body = &events{Closer: resp.Body, src: bufio.NewReader(resp.Body), watch: w.Watch, x: x}
	return resp, nil
}

// CloseIdleConnections lets [http.Client.CloseIdleConnections] through.
func (w watch) CloseIdleConnections() {
	if c, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// events reads server-sent events and writes them anew: one line of data each, no comments, LF. An event that has not ended with an empty
// line is none. It keeps errors to itself, since SDKs write them to logs.
type events struct {
	io.Closer
	src   *bufio.Reader
	watch Watch
	x     *Exchange
	out   []byte // not read yet
	ended bool

	line, name, data []byte
	has              bool // the event has data
}

func (e *events) Read(p []byte) (int, error) {
	for len(e.out) == 0 {
		if e.ended {
			return 0, io.EOF
		}
		if err := e.next(); err != nil {
			e.ended = true
			if !errors.Is(err, io.EOF) {
				e.x.err = err
			}
		}
	}
	n := copy(p, e.out)
	e.out = e.out[n:]
	return n, nil
}

// next reads a line.
func (e *events) next() error {
	e.line = e.line[:0]
	for {
		part, err := e.src.ReadSlice('\n')
		if len(e.line)+len(part)+len(e.data) > MaxLine {
			return &Error{Kind: AnswerTooBig, Message: fmt.Sprintf("an event of the response has more than %d bytes", MaxLine)}
		}
		e.line = append(e.line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err // the event has not ended
		}
		break
	}
	line := bytes.TrimSuffix(e.line[:len(e.line)-1], []byte("\r"))
	if len(line) == 0 {
		e.dispatch()
		return nil
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "":
		e.emit([]byte(e.watch.Ping), []byte(e.watch.Alive))
	case "event":
		e.name = append(e.name[:0], value...)
	case "data":
		if e.has {
			// Between two lines of JSON any space will do.
			e.data = append(e.data, ' ')
		}
		e.data, e.has = append(e.data, value...), true
	}
	return nil
}

func (e *events) dispatch() {
	if e.has {
		e.emit(e.name, e.data)
	}
	e.name, e.data, e.has = e.name[:0], e.data[:0], false
}

func (e *events) emit(name, data []byte) {
	if len(bytes.TrimSpace(data)) == 0 {
		name, data = []byte(e.watch.Ping), []byte(e.watch.Alive)
	}
	if e.x.Keep {
		e.x.data = append(e.x.data, bytes.Clone(data))
	}
	e.out = e.out[:0]
	if e.watch.Typed && len(name) > 0 {
		e.out = append(append(append(e.out, "event: "...), name...), '\n')
	}
	e.out = append(append(append(e.out, "data: "...), data...), '\n', '\n')
}
