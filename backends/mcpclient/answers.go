package mcpclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// askedFor returns the request for a tool, or for the list of tools, in an HTTP request, or nil for other requests. The
// SDK uses the others to connect, and decides by their answers how.
func askedFor(req *http.Request) *jsonrpc.Request {
	asked, ok := messageIn(req).(*jsonrpc.Request)
	if !ok || !asked.IsCall() || !strings.HasPrefix(asked.Method, "tools/") {
		return nil
	}
	return asked
}

// expectsNothing reports whether an HTTP request contains a notification, or an answer to the server.
func expectsNothing(req *http.Request) bool {
	switch msg := messageIn(req).(type) {
	case *jsonrpc.Request:
		return !msg.IsCall()
	case *jsonrpc.Response:
		return true
	}
	return false
}

// messageIn returns the message in an HTTP request, or nil if there is none.
func messageIn(req *http.Request) jsonrpc.Message {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(body)
	msg, _ := jsonrpc.DecodeMessage(text)
	return msg
}

// answer reduces the answer to a request to the parts that the SDK can read. The SDK would interpret anything else as
// the end of the connection and of all its calls. The error is for an answer whose status is an error.
func (r *requests) answer(asked *jsonrpc.Request, resp *http.Response) error {
	resp.Header.Del("Mcp-Session-Id") // which is agreed on when the connection is made
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch {
	case resp.StatusCode < 200: // another protocol: the request may have been carried out
		_ = resp.Body.Close()
		return errUnreadable
	case resp.StatusCode >= 300:
		return r.failed(asked, resp, kind)
	case kind == "text/event-stream":
		resp.Body = &events{Closer: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), asked: asked, skip: r.skip}
	default:
		resp.Header.Set("Content-Type", "application/json")
		resp.Body = &only{ReadCloser: resp.Body, asked: asked, skip: r.skip}
	}
	return nil
}

// maxError is the maximum size of an error's body, in bytes.
const maxError = 2 << 20

// failed reads an answer whose status is an error. Its body decides first: with a result, or without its end, the
// request may have been carried out.
func (r *requests) failed(asked *jsonrpc.Request, resp *http.Response, kind string) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxError+1))
	_ = resp.Body.Close()
	refusal, attempted := about(text, asked)
	inSession := resp.StatusCode == http.StatusNotFound && resp.Request.Header.Get("Mcp-Session-Id") != ""
	if inSession {
		r.forgotten() // later calls get a new session, with any body
	}
	switch {
	case err != nil || len(text) > maxError || attempted:
		return errUnreadable
	case inSession && saysForgotten(kind, text, asked.ID):
		return errForgotten
	case refusal != nil && resp.StatusCode < 500 && !slices.Contains(deciding, resp.StatusCode):
		// The SDK reads it as an answer, and not as an error of its own whose code it shares.
		resp.StatusCode, resp.Body = http.StatusOK, io.NopCloser(bytes.NewReader(refusal))
		resp.Header.Set("Content-Type", "application/json")
		return nil
	case inSession:
		return errUnreadable
	case resp.StatusCode < 400 && resp.Header.Get("Location") != "":
		return errRedirect
	}
	return r.statusError(resp, text)
}

// about returns the refusal of a request in a text, as JSON or as an event, or nil if there is none. attempted reports
// whether the text has a result or an unreadable answer, so that the request may have been carried out.
func about(text []byte, asked *jsonrpc.Request) (refusal []byte, attempted bool) {
	for _, part := range batch(text) {
		if hasResult(part) {
			return nil, true
		}
	}
	none := func([]byte) {}
	answers := pick(text, asked, false, none)
	stream, _ := io.ReadAll(&events{lines: bufio.NewReaderSize(bytes.NewReader(text), 64<<10), asked: asked, skip: none})
	for line := range bytes.Lines(stream) {
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			answers = append(answers, data)
		}
	}
	for _, one := range answers {
		msg, _ := jsonrpc.DecodeMessage(one)
		answer, ok := msg.(*jsonrpc.Response)
		wire := (*jsonrpc.Error)(nil)
		switch {
		case !ok: // a request of the server
		case hasResult(one), !errors.As(answer.Error, &wire), wire.Code <= unreadableCode && wire.Code >= tooManyCode:
			return nil, true
		default:
			refusal = one
		}
	}
	return refusal, false
}

// hasResult reports whether a message has a result, for any request.
func hasResult(message []byte) bool {
	var said struct {
		Version string          `json:"jsonrpc"`
		Result  json.RawMessage `json:"result"`
		Error   any             `json:"error"`
	}
	return json.Unmarshal(message, &said) == nil && said.Version == "2.0" && len(said.Result) > 0 &&
		(said.Error == nil || string(said.Result) != "null")
}

// sessionGone are the messages with which the SDKs of MCP report an unknown session. Some add the prefix "Not Found: ".
var sessionGone = []string{"session not found", "session not found or expired", "invalid or expired session id",
	"session has been terminated"}

func saysGone(message string) bool {
	message = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(message)), ".")
	return slices.Contains(sessionGone, strings.TrimPrefix(message, "not found: "))
}

// saysForgotten reports whether the body of a 404 reports an unknown session, in the words of MCP's SDKs: as a JSON-RPC
// error for this request or (in the SDK of Ruby) for none, or as a plain text. With any other body the request may have
// been carried out.
func saysForgotten(kind string, text []byte, id jsonrpc.ID) bool {
	var said map[string]json.RawMessage
	if json.Unmarshal(text, &said) != nil {
		return (kind == "" || kind == "text/plain") && saysGone(string(text))
	}
	var message string
	if json.Unmarshal(said["error"], &message) == nil {
		return len(said) == 1 && saysGone(message)
	}
	var fault struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
	}
	var version string
	var of any
	_ = json.Unmarshal(said["jsonrpc"], &version)
	_ = json.Unmarshal(said["id"], &of)
	for name := range said {
		if name != "jsonrpc" && name != "id" && name != "error" {
			return false
		}
	}
	mine := of == nil || of == "server-error" || fmt.Sprint(of) == fmt.Sprint(id.Raw())
	return version == "2.0" && mine && json.Unmarshal(said["error"], &fault) == nil &&
		(fault.Code == -32001 || fault.Code == -32600) && saysGone(fault.Message)
}

// only is a body with the answer to one request, or an error instead.
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

// pick returns the messages in a text that belong to the answer to a request: the answer itself, and others if they are
// allowed with it.
func pick(text []byte, asked *jsonrpc.Request, others bool, skip func(text []byte)) (messages [][]byte) {
	var short bytes.Buffer
	if json.Compact(&short, text) == nil {
		text = short.Bytes()
	}
	found, skipped := readable(text, func(id jsonrpc.ID) string {
		if id == asked.ID {
			return asked.Method
		}
		return ""
	})
	for _, message := range found {
		if isAnswer := message.id.IsValid(); isAnswer && message.id != asked.ID || !isAnswer && !others {
			skipped = append(skipped, message.text)
			continue
		}
		messages = append(messages, message.text)
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

// events is a body with the events of another body that the SDK can read. They have no ids: with them, the SDK would
// resume a stream whose rest could end the connection.
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
		case string(field) == "event":
			name = string(bytes.TrimSpace(value))
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
		text = nil // the SDK would ignore it
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
