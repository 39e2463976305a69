package servers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// askedFor is the request for a tool, or for the tools, that an HTTP request carries; nil for others. The SDK connects with those, and decides by
// their answers how.
func askedFor(req *http.Request) *jsonrpc.Request {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(body)
	msg, _ := jsonrpc.DecodeMessage(text)
	if asked, ok := msg.(*jsonrpc.Request); ok && asked.IsCall() && strings.HasPrefix(asked.Method, "tools/") {
		return asked
	}
	return nil
}

// answer leaves in the answer to a request what the SDK can read. It would take anything else for the end of the connection, and of all calls on it.
// The error is that of an answer which says by its status that it is none.
func (r *requests) answer(asked *jsonrpc.Request, resp *http.Response) error {
	resp.Header.Del("Mcp-Session-Id") // which is agreed on when the connection is made
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400: // see refuseRedirect
		return nil
	case resp.StatusCode == http.StatusNotFound && resp.Request.Header.Get("Mcp-Session-Id") != "": // the SDK knows what that means
		return nil
	case resp.StatusCode >= 300:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_ = resp.Body.Close()
		msg, _ := jsonrpc.DecodeMessage(text)
		if said, ok := msg.(*jsonrpc.Response); !ok || said.ID != asked.ID || said.Error == nil {
			return &statusError{code: resp.StatusCode, text: string(text[:min(len(text), 2000)])}
		}
		resp.Body = io.NopCloser(bytes.NewReader(text))
	case kind == "text/event-stream":
		resp.Body = &events{Closer: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), asked: asked, skip: r.skip}
	default:
		resp.Header.Set("Content-Type", "application/json")
		resp.Body = &only{ReadCloser: resp.Body, asked: asked, skip: r.skip}
	}
	return nil
}

// only is a body that has the answer to one request, or an error in its place.
type only struct {
	io.ReadCloser
	asked *jsonrpc.Request
	skip  func(text []byte)
	ready io.Reader // once the body was read
}

func (o *only) Read(p []byte) (int, error) {
	if o.ready == nil {
		text, err := io.ReadAll(o.ReadCloser)
		if err != nil {
			text = nil
		}
		found := pick(text, o.asked, false, o.skip)
		if len(found) == 0 {
			found = [][]byte{unreadable(encodedID(o.asked.ID))}
		}
		o.ready = bytes.NewReader(found[0])
	}
	return o.ready.Read(p)
}

// pick returns those messages of a text that belong to the answer to a request: the answer itself, and others if they may come with it.
func pick(text []byte, asked *jsonrpc.Request, others bool, skip func(text []byte)) (messages [][]byte) {
	found, skipped := readable(text)
	for _, message := range found {
		msg, _ := jsonrpc.DecodeMessage(message)
		said, isAnswer := msg.(*jsonrpc.Response)
		var short bytes.Buffer
		if isAnswer && said.ID != asked.ID || !isAnswer && !others || json.Compact(&short, message) != nil {
			skipped = append(skipped, message)
			continue
		}
		messages = append(messages, short.Bytes())
	}
	for _, one := range skipped {
		skip(one)
	}
	return messages
}

func encodedID(id jsonrpc.ID) json.RawMessage {
	encoded, err := json.Marshal(id.Raw())
	if err != nil {
		return json.RawMessage("null")
	}
	return encoded
}

// events is a body that has the events of another which the SDK can read.
type events struct {
	io.Closer
	lines *bufio.Reader
	asked *jsonrpc.Request
	skip  func(text []byte)
	ready []byte
	err   error
}

func (e *events) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.next()
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// next reads the next event.
func (e *events) next() {
	var data [][]byte
	name := "message"
	for e.err == nil {
		var text []byte
		text, e.err = line(e.lines, maxMessage)
		text = bytes.TrimRight(text, "\r\n")
		field, value, ok := bytes.Cut(text, []byte(":"))
		switch {
		case len(text) == 0 && (e.err == nil || errors.Is(e.err, io.EOF)):
			e.emit(name, data)
			return
		case !ok:
			e.skip(text)
		case string(field) == "data":
			data = append(data, bytes.TrimPrefix(value, []byte(" ")))
		default:
			if string(field) == "event" {
				name = string(bytes.TrimSpace(value))
			}
			e.ready = append(append(e.ready, text...), '\n')
		}
	}
	if errors.Is(e.err, io.EOF) {
		e.emit(name, data)
	}
}

// emit ends an event with the messages in its data.
func (e *events) emit(name string, data [][]byte) {
	text := bytes.Join(data, []byte("\n"))
	if name != "message" && name != "" {
		text = nil // the SDK would pass over it
	}
	for i, message := range pick(text, e.asked, true, e.skip) {
		if i > 0 {
			e.ready = append(e.ready, '\n')
		}
		e.ready = append(append(append(e.ready, "data: "...), message...), '\n')
	}
	if len(e.ready) > 0 {
		e.ready = append(e.ready, '\n')
	}
}
