package mcpclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/gemworker/gem/internal/plainjson"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// unreadableCode is the code of the error that replaces an unreadable answer. JSON-RPC does not define it.
const unreadableCode = -32900

// errUnreadable is the error of a request whose answer cannot be read.
var errUnreadable = errors.New("its answer cannot be read")

// refusal is an error that is the server's answer to this request.
type refusal struct {
	wire *jsonrpc.Error
	err  error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// asRefusal marks the error of an answer.
func asRefusal(err error) error {
	wire := (*jsonrpc.Error)(nil)
	switch {
	case !errors.As(err, &wire):
		return err
	case wire.Code == unreadableCode:
		return errUnreadable
	}
	return &refusal{wire: wire, err: err}
}

// inAnswer is asRefusal for the error in an answer. It hides the code, because the SDK would interpret -32003 and
// -32004 as the end of the connection.
func inAnswer(err error) error {
	err = asRefusal(err)
	if no := (*refusal)(nil); errors.As(err, &no) {
		no.err = errors.New(no.wire.Error())
	}
	return err
}

// unreadable returns the replacement for an unreadable answer to the request with an id.
func unreadable(id json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"the answer cannot be read"}}`, id,
		unreadableCode)
}

// readable returns the messages in a text from the server: the messages that the SDK can read, and an error for each
// request whose answer it cannot read. skipped are the other parts. The SDK would interpret any of these as the end of
// the connection, and fail all calls in progress.
func readable(text []byte) (messages, skipped [][]byte) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, nil
	}
	parts := batch(text)
	for _, part := range parts {
		id, ok := shape(part)
		if number, text := numberIn(id); text { // some servers write every id as a text
			part, id = withID(part, number), number
		}
		if !ok || id != nil && !isInteger(id) {
			skipped = append(skipped, part)
			continue
		}
		if !decodes(part) {
			if id == nil || !decodes(unreadable(id)) { // the SDK reads no id such as true
				skipped = append(skipped, part)
				continue
			}
			part = unreadable(id)
		}
		messages = append(messages, part)
	}
	return messages, skipped
}

// maxBatch is the maximum number of messages in a list. A list of millions would take minutes.
const maxBatch = 1000

// batch returns the parts of a list of messages, and any other text as a whole.
func batch(text []byte) (parts []json.RawMessage) {
	whole := []json.RawMessage{text}
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('[') {
		return whole
	}
	for d.More() {
		var part json.RawMessage
		if len(parts) == maxBatch || d.Decode(&part) != nil {
			return whole
		}
		parts = append(parts, part)
	}
	if end, err := d.Token(); err != nil || end != json.Delim(']') || d.More() {
		return whole
	}
	return parts
}

// decodes reports whether the SDK reads a text as a message. A response with both a result and an error is not a
// message.
func decodes(text []byte) bool {
	msg, err := jsonrpc.DecodeMessage(text)
	if err != nil || !json.Valid(text) {
		return false
	}
	said, isResponse := msg.(*jsonrpc.Response)
	return !isResponse || said.Error == nil || len(said.Result) == 0 || string(said.Result) == "null"
}

// shape reports whether a text looks like a message of JSON-RPC 2.0, and not like a log line with an id. id is the id
// of an answer, or nil.
func shape(text []byte) (id json.RawMessage, message bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, false
	}
	var versioned, request, answer, others bool
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		switch key {
		case "method":
			request = true
		case "result", "error":
			answer = true
		case "jsonrpc", "id":
		default:
			others = true
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			break
		}
		switch {
		case key == "jsonrpc":
			versioned = string(value) == `"2.0"`
		case key == "id" && string(value) != "null" && value[0] != '{' && value[0] != '[':
			id = value
		}
	}
	if request {
		return nil, versioned
	}
	return id, versioned && (answer || !others)
}

// numberIn returns the number in an id that is the text of a whole number.
func numberIn(id json.RawMessage) (number json.RawMessage, isText bool) {
	var text string
	if len(id) == 0 || id[0] != '"' || json.Unmarshal(id, &text) != nil {
		return nil, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text {
		return nil, false
	}
	return json.RawMessage(text), true
}

// withID returns a message with another id, if it can be read.
func withID(message []byte, id json.RawMessage) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(message, &fields) != nil {
		return message
	}
	fields["id"] = id
	changed, err := plainjson.Encode(fields)
	if err != nil {
		return message
	}
	return changed
}

// isInteger reports whether an id is not a number with a fraction, which the SDK would cut off.
func isInteger(id json.RawMessage) bool {
	number, err := strconv.ParseFloat(string(id), 64)
	return err != nil || number == math.Trunc(number)
}

// onlyMessages reads the output of a program, a line at a time, and skips everything that is not a message.
type onlyMessages struct {
	io.Closer
	lines *bufio.Reader
	skip  func(text []byte)
	ready []byte
}

func (o *onlyMessages) Read(p []byte) (int, error) {
	for len(o.ready) == 0 {
		line, cut, err := longLine(o.lines, maxMessage)
		messages, skipped := readable(line)
		if cut {
			messages, skipped = beginning(line)
		}
		for _, text := range skipped {
			o.skip(text)
		}
		for _, message := range messages {
			o.ready = append(append(o.ready, message...), '\n')
		}
		if err != nil && len(o.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, o.ready)
	o.ready = o.ready[n:]
	return n, nil
}

// beginning is readable for the beginning of a line that is too long: the message is an error for the request whose
// answer it begins, if the beginning has its id.
func beginning(text []byte) (messages, skipped [][]byte) {
	if id, ok := shape(text); ok && id != nil && isInteger(id) && decodes(unreadable(id)) {
		messages = [][]byte{unreadable(id)}
	}
	return messages, [][]byte{text}
}

// longLine reads a line, with its end. It returns only the beginning of a line that is longer than most, and reports
// that.
func longLine(from *bufio.Reader, most int) (line []byte, cut bool, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if room := most - len(line); len(part) > room {
			part, cut = part[:room], true
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, cut, err
		}
	}
}

// line reads a line of limited length, with its end.
func line(from *bufio.Reader, most int) ([]byte, error) {
	line, cut, err := longLine(from, most)
	if cut {
		return nil, fmt.Errorf("a message has more than %d bytes", most)
	}
	return line, err
}
