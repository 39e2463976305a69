package provider

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/gemworker/gem/internal/scrub"
)

// maxFailure is the number of bytes of a failed response's body that are read.
const maxFailure = 64 << 10

// Post is a request whose response is a stream of server-sent events.
type Post struct {
	// HTTP sends the request; nil for [NewHTTP] without a proxy. It follows no redirect and keeps no cookies.
	HTTP   *http.Client
	URL    string
	Header http.Header // without Content-Type and Accept
	Body   any         // sent as JSON
	// Key is cut out of messages.
	Key string
	// Failed turns a response that is not a 200 into an error. body is at most its first 64 KiB.
	Failed func(status int, h http.Header, body []byte) *Error
	// Lines: see [Events]. A body of any type is accepted then.
	Lines bool
}

// Send sends the request and waits for the response's header. Its error is an [*Error], or the cause of the context's
// end.
func (p Post) Send(ctx context.Context) (*Events, error) {
	var body bytes.Buffer
	write := json.NewEncoder(&body)
	write.SetEscapeHTML(false)
	if err := write.Encode(p.Body); err != nil {
		return nil, &Error{Kind: BadRequest, Message: Clean("the request cannot be written: "+err.Error(), p.Key)}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(bytes.TrimSpace(body.Bytes())))
	if err != nil {
		return nil, &Error{Kind: BadRequest, Message: Clean(err.Error(), p.Key)}
	}
	if p.Header != nil {
		r.Header = p.Header.Clone()
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "text/event-stream")
	resp, err := p.client().Do(r)
	if err != nil {
		return nil, Broke(ctx, err, false, p.Key)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure+1))
		if len(body) > maxFailure {
			body = []byte(scrub.Beginning(string(body), maxFailure, []string{p.Key}, func(text string) string {
				return cutKeys(text, minKey, []string{p.Key})
			}))
		}
		return nil, p.Failed(resp.StatusCode, resp.Header, body)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "text/event-stream" && !p.Lines {
		resp.Body.Close()
		return nil, &Error{Kind: Garbled, Status: resp.StatusCode, RequestID: RequestID(resp.Header, p.Key),
			Message: "the response is not a stream of events but " + described(kind)}
	}
	return &Events{
		Header: resp.Header, Whole: p.Lines && kind == "application/json",
		body: resp.Body, reader: bufio.NewReader(resp.Body), lines: p.Lines,
	}, nil
}

// described names a media type of a response. Errors do not contain the text of unknown types: ParseMediaType converts
// it to lower case, in which an echoed key would not be found.
func described(kind string) string {
	switch kind {
	case "application/json", "text/html", "text/plain":
		return kind
	case "":
		return "of no type"
	}
	return "of another type"
}

func (p Post) client() *http.Client {
	c := http.Client{}
	if p.HTTP != nil {
		c = *p.HTTP
	}
	if c.Transport == nil {
		c.Transport = NewHTTP(nil).Transport // the default transport takes its proxy from the environment
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.Jar = nil
	return &c
}

// Events reads the server-sent events of one response. Next and Data must not be called concurrently; Close may be
// called at any time.
//
// An event ends with an empty line; an incomplete event is ignored. With Lines each line of data is a separate event,
// even a last line without its end, because servers of some dialects omit the empty lines; a field named error is an
// event of this name; and a body that is one JSON document is one event.
type Events struct {
	Header http.Header
	// Whole: the body is one document.
	Whole bool
	// Torn: the body ended within a line or an event.
	Torn bool

	body   io.ReadCloser
	reader *bufio.Reader
	lines  bool
	err    error

	line, name, data []byte
	has              bool // the event has data
}

// ServerEvent is an event of a response. It is valid until the next one is read.
type ServerEvent struct {
	Name string
	Data []byte // empty for a comment, which only keeps the connection alive
}

// Close ends the response.
func (e *Events) Close() error { return e.body.Close() }

// Drain reads the small rest of a body, so that its connection can be used again.
func (e *Events) Drain() { _, _ = io.CopyN(io.Discard, e.reader, 4096) }

// Next waits for the next event. It returns io.EOF at the end of the body, [*Error] for an event of more than [MaxLine]
// bytes, and otherwise the error of the body.
func (e *Events) Next() (ServerEvent, error) {
	if e.Whole && e.err == nil {
		return e.document()
	}
	for e.err == nil {
		line, err := e.readLine()
		if err != nil {
			e.err = err
			e.Torn = len(line) > 0 || e.has
			if !e.lines || !errors.Is(err, io.EOF) || len(line) == 0 {
				break
			}
		}
		if event, ok := e.take(bytes.TrimRight(line, "\r\n")); ok {
			return event, nil
		}
	}
	return ServerEvent{}, e.err
}

func (e *Events) document() (ServerEvent, error) {
	e.err = io.EOF
	body, err := io.ReadAll(io.LimitReader(e.body, MaxLine+1))
	switch {
	case err != nil:
		e.err = err
	case len(body) > MaxLine:
		e.err = tooBig("a line")
	case !json.Valid(body):
		e.err = &Error{Kind: Cut, Message: "the response is one document, and not a whole one"}
	default:
		return ServerEvent{Data: bytes.TrimSpace(body)}, nil
	}
	return ServerEvent{}, e.err
}

// take reads a line. It reports whether the line ends an event.
func (e *Events) take(line []byte) (ServerEvent, bool) {
	if len(line) == 0 {
		event := ServerEvent{string(e.name), bytes.TrimSpace(e.data)}
		ok := e.has && !e.lines
		e.name, e.data, e.has = e.name[:0], e.data[:0], false
		return event, ok
	}
	field, value, found := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch {
	case len(field) == 0:
		return ServerEvent{}, true
	case string(field) == "event":
		e.name = append(e.name[:0], value...)
	case e.lines && found && string(field) == "error":
		return ServerEvent{"error", bytes.TrimSpace(value)}, true
	case e.lines && found && string(field) == "data":
		return ServerEvent{string(e.name), bytes.TrimSpace(value)}, true
	case string(field) == "data":
		if e.has {
			e.data = append(e.data, ' ') // between two lines of JSON any white space works
		}
		e.data, e.has = append(e.data, value...), true
	}
	return ServerEvent{}, false
}

// readLine returns the next line with its end. With io.EOF it returns the text after the last end.
func (e *Events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		part, err := e.reader.ReadSlice('\n')
		if len(e.line)+len(part)+len(e.data) > MaxLine {
			if e.lines {
				return nil, tooBig("a line")
			}
			return nil, tooBig("an event")
		}
		if len(e.line) == 0 && err == nil {
			return part, nil
		}
		e.line = append(e.line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return e.line, err
		}
	}
}

func tooBig(what string) *Error {
	return &Error{Kind: AnswerTooBig, Message: fmt.Sprintf("%s of the response has more than %d bytes", what, MaxLine)}
}
