package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/gemworker/gem/internal/llm"
)

// maxErrorBody is how many bytes of an error's body are read.
const maxErrorBody = 64 << 10

// door stands between the library and the network, for one request. It sends our body, turns failures into errors that keep the response's
// headers, and gives the library a stream in which it can lose nothing.
type door struct {
	endpoint llm.Endpoint
	body     []byte
	lines    *lines
}

// Do implements the library's HTTPDoer.
func (d *door) Do(r *http.Request) (*http.Response, error) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(d.body)), int64(len(d.body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(d.body)), nil }
	resp, err := d.endpoint.HTTP.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, d.failed(resp)
	}
	d.lines = &lines{body: resp.Body, reader: bufio.NewReaderSize(resp.Body, 4096)}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "application/json" {
		d.lines.whole = true
	}
	resp.Body = d.lines
	return resp, nil
}

// failed reads what the provider says of its failure.
func (d *door) failed(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	said := complaintOf(body)
	e := llm.Failed(said.statusOf(resp.StatusCode), resp.Header, said.String(), d.endpoint.Key, time.Now())
	e.Status = resp.StatusCode
	if resp.StatusCode < http.StatusMultipleChoices {
		e.Kind = llm.Garbled
	}
	if said.isUnauthorized() {
		e.Kind, e.Message = llm.Unauthorized, ""
	}
	e.Final = e.Final || said.isFinal()
	return e
}

// lines reads the server's stream and gives the library another, which has only lines of data:
//   - a comment, such as OpenRouter's keep-alive, becomes an empty object. The library keeps all of them until the stream ends, and an error
//     that comes after one is lost.
//   - an error, be it a field of this name, an event of this name, or an object that begins with it, becomes an object that the library lets
//     through. It would wait for another line first, or find no error at all.
//   - a last line without its end counts. The library drops it.
//   - a whole document in place of a stream becomes one line.
//
// Fields that nobody knows are left out. A line has at most [llm.MaxLine] bytes.
type lines struct {
	body   io.ReadCloser
	reader *bufio.Reader
	whole  bool // the body is one document
	long   []byte
	out    []byte // what has not been read yet of ready
	ready  []byte
	event  string // the name of the event that is being read
	torn   bool   // the last line had no end
	err    error
}

func (l *lines) Close() error { return l.body.Close() }

func (l *lines) Read(p []byte) (int, error) {
	for len(l.out) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		l.ready = l.ready[:0]
		if l.whole {
			l.document()
		} else {
			l.line()
		}
		l.out = l.ready
	}
	n := copy(p, l.out)
	l.out = l.out[n:]
	return n, nil
}

var errLongLine = &llm.Error{Kind: llm.AnswerTooBig, Message: fmt.Sprintf("a line of the response has more than %d bytes", llm.MaxLine)}

func (l *lines) document() {
	body, err := io.ReadAll(io.LimitReader(l.body, llm.MaxLine+1))
	switch {
	case err != nil:
		l.err = err
		return
	case len(body) > llm.MaxLine:
		l.err = errLongLine
		return
	}
	l.err = io.EOF
	out := bytes.NewBuffer(l.ready)
	out.WriteString("data: ")
	if json.Compact(out, body) != nil {
		l.err = &llm.Error{Kind: llm.Cut, Message: "the response is one document, and no whole one"}
		return
	}
	out.WriteByte('\n')
	l.ready = unhide(out.Bytes())
}

// line reads one line and prepares what the library gets for it, if anything.
func (l *lines) line() {
	line, err := l.read()
	if err != nil {
		l.err = err
		if !errors.Is(err, io.EOF) || len(line) == 0 {
			return
		}
		l.torn = true
	}
	line = bytes.TrimRight(line, "\r\n")
	name, value, found := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case len(line) == 0:
		l.event = ""
	case !found:
	case len(name) == 0:
		l.ready = append(l.ready, "data: {}\n"...)
	case string(name) == "data" && l.event == "error", string(name) == "error":
		if !json.Valid(value) {
			value, _ = json.Marshal(string(value))
		}
		l.ready = append(l.ready, `data: {"object":"error","error":`...)
		l.ready = append(append(l.ready, value...), "}\n"...)
	case string(name) == "data":
		l.ready = append(append(append(l.ready, "data: "...), value...), '\n')
		l.ready = unhide(l.ready)
	case string(name) == "event":
		l.event = string(value)
	}
}

// unhide keeps the library from taking the line for an error itself: it looks for these very characters.
func unhide(line []byte) []byte {
	const hides = `data: {"error":`
	if !bytes.HasPrefix(line, []byte(hides)) {
		return line
	}
	return append([]byte(`data: { "error":`), line[len(hides):]...)
}

// read returns the next line with its end, valid until the next call. With io.EOF it returns what came after the last end.
func (l *lines) read() ([]byte, error) {
	line, err := l.reader.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	l.long = l.long[:0]
	for errors.Is(err, bufio.ErrBufferFull) {
		if l.long = append(l.long, line...); len(l.long) > llm.MaxLine {
			return nil, errLongLine
		}
		line, err = l.reader.ReadSlice('\n')
	}
	l.long = append(l.long, line...)
	return l.long, err
}
