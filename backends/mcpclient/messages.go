package mcpclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// These are the codes of the errors that replace answers. JSON-RPC does not define them.
const (
	unreadableCode = -32900 - iota
	tooLargeCode   // of a call whose result is too large, with its size
	tooManyCode    // of a list with too many tools
)

var (
	// errUnreadable is the error of a request whose answer cannot be read.
	errUnreadable = errors.New("its answer cannot be read")
	errTooMany    = fmt.Errorf("it lists more than %d tools", maxTools)
)

// tooLargeError is the error of a call whose result has too many bytes.
type tooLargeError struct{ size int }

func (e *tooLargeError) Error() string { return fmt.Sprintf("its result has %d bytes", e.size) }

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
	case wire.Code == tooManyCode:
		return errTooMany
	case wire.Code == tooLargeCode:
		large := &tooLargeError{}
		_ = json.Unmarshal(wire.Data, &large.size)
		return large
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
func unreadable(id json.RawMessage) []byte { return failed(id, unreadableCode, 0) }

func failed(id json.RawMessage, code, size int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"the answer cannot be read","data":%d}}`,
		id, code, size)
}

// tooMuch returns an error in the place of an answer that the call would refuse for its size, or nil. The SDK would
// need many times that much memory to read it.
func tooMuch(answer []byte, id json.RawMessage, result []byte, method string) []byte {
	if len(result) <= maxResult || result[0] != '{' || !json.Valid(answer) ||
		!decodes(replaced(answer, `"result":{}`, "result")) {
		return nil
	}
	if method == "tools/call" {
		size := 0
		for _, r := range string(result) { // each byte that is not UTF-8 counts as the character that would replace it
			size += utf8.RuneLen(r)
		}
		return failed(id, tooLargeCode, size)
	}
	if tools, _ := listed(result, maxTools); method == "tools/list" && len(tools) > maxTools {
		return failed(id, tooManyCode, 0)
	}
	return nil
}

// brief returns a valid answer without what nobody reads: the data of an error, and unknown members.
func brief(answer []byte) []byte {
	short := []byte(`{"jsonrpc":"2.0"`)
	for name, value := range members(answer) {
		switch string(unquoted(name)) {
		case "error":
			if value[0] == '{' {
				value = replaced(value, `"data":null`, "data")
			}
		case "id", "result":
		default:
			continue
		}
		short = append(append(append(append(short, ','), name...), ':'), value...)
	}
	return append(short, '}')
}

// message is a message that the SDK can read.
type message struct {
	text []byte
	id   jsonrpc.ID // of an answer
}

// readable returns the messages in a text from the server: the messages that the SDK can read, and an error for each
// request whose answer it cannot read. skipped are the other parts. The SDK would interpret any of these as the end of
// the connection, and fail all calls in progress. method returns the method of a request.
func readable(text []byte, method func(jsonrpc.ID) string) (messages []message, skipped [][]byte) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, nil
	}
	parts := batch(text)
	for _, part := range parts {
		id, result, ok := shape(part)
		number, isText := numberIn(id) // some servers write every id as a text
		if isText {
			id = number
		}
		of, known := idOf(id)
		if known && isInteger(id) && ok {
			if instead := tooMuch(part, id, result, method(of)); instead != nil {
				messages = append(messages, message{instead, of})
				continue
			}
		}
		if isText && json.Valid(part) {
			part = replaced(part, `"id":`+string(number), "id")
		}
		if !ok || id != nil && !isInteger(id) {
			skipped = append(skipped, part)
			continue
		}
		if id != nil && len(part) > maxResult && json.Valid(part) {
			part = brief(part)
		}
		if !decodes(part) {
			if !known { // the SDK reads no id such as true
				skipped = append(skipped, part)
				continue
			}
			part = unreadable(id)
		}
		messages = append(messages, message{part, of})
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

// idOf returns the id of an answer, if the SDK reads it.
func idOf(id json.RawMessage) (read jsonrpc.ID, known bool) {
	msg, _ := jsonrpc.DecodeMessage(unreadable(id))
	if answer, ok := msg.(*jsonrpc.Response); ok {
		read = answer.ID
	}
	return read, read.IsValid()
}

// shape reports whether a text looks like a message of JSON-RPC 2.0, and not like a log line with an id. id is the id
// of an answer, and result its result, or nil.
func shape(text []byte) (id, result json.RawMessage, message bool) {
	var versioned, request, answer, others bool
	for name, value := range members(text) {
		switch string(unquoted(name)) {
		case "method":
			request = true
		case "result":
			answer, result = true, value
		case "error":
			answer = true
		case "jsonrpc":
			versioned = string(value) == `"2.0"`
		case "id":
			if len(value) > 0 && string(value) != "null" && value[0] != '{' && value[0] != '[' {
				id = value
			}
		default:
			others = true
		}
	}
	if request {
		return nil, nil, versioned
	}
	return id, result, versioned && (answer || !others)
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
	// method returns the method of a request.
	method func(jsonrpc.ID) string
	ready  []byte
}

func (o *onlyMessages) Read(p []byte) (int, error) {
	for len(o.ready) == 0 {
		line, cut, err := longLine(o.lines, maxMessage)
		messages, skipped := readable(line, o.method)
		if cut {
			messages, skipped = beginning(line)
		}
		for _, text := range skipped {
			o.skip(text)
		}
		for _, message := range messages {
			o.ready = append(append(o.ready, message.text...), '\n')
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
func beginning(text []byte) (messages []message, skipped [][]byte) {
	id, _, ok := shape(text)
	if of, known := idOf(id); ok && known && isInteger(id) {
		messages = []message{{unreadable(id), of}}
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
		if len(line)+len(part) > cap(line) {
			line = slices.Grow(line, len(line)+len(part)) // append alone would copy a long line more often
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
