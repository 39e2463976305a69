package servers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// unreadableCode is the code of the error that takes the place of an answer which cannot be read. It is none of JSON-RPC's own.
const unreadableCode = -32900

// errUnreadable is the error of a request whose answer cannot be read.
var errUnreadable = errors.New("its answer cannot be read")

// refusal is an error with which a server answered this very request.
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

// unreadable is the answer to the request of an id, in place of one that cannot be read.
func unreadable(id json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"the answer cannot be read"}}`, id, unreadableCode)
}

// readable returns the messages in a text of the server's: those that the SDK can read, and an error for the request whose answer it could not read.
// skipped are the parts that are neither. The SDK would take any of these for the end of the connection, and of all that is in flight.
func readable(text []byte) (messages, skipped [][]byte) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, nil
	}
	parts := []json.RawMessage{text}
	if text[0] == '[' && json.Unmarshal(text, &parts) != nil {
		parts = []json.RawMessage{text}
	}
	for _, part := range parts {
		if !decodes(part) {
			id := idOf(part)
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

// decodes reports whether the SDK reads a text as a message.
func decodes(text []byte) bool {
	_, err := jsonrpc.DecodeMessage(text)
	return err == nil && json.Valid(text)
}

// idOf returns the id of an answer that cannot be read; nil if it has none, or is a request.
func idOf(text []byte) (id json.RawMessage) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			break
		}
		switch {
		case key == "method":
			return nil
		case key == "id" && string(value) != "null" && value[0] != '{' && value[0] != '[':
			id = value
		}
	}
	return id
}

// onlyMessages reads the output of a program, a line at a time, and leaves out what is no message.
type onlyMessages struct {
	io.Closer
	lines *bufio.Reader
	skip  func(text []byte)
	ready []byte
}

func (o *onlyMessages) Read(p []byte) (int, error) {
	for len(o.ready) == 0 {
		line, err := line(o.lines, maxMessage)
		messages, skipped := readable(line)
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

// line reads a line of at most so many bytes, with its end.
func line(from *bufio.Reader, most int) (line []byte, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if line = append(line, part...); len(line) > most {
			return nil, fmt.Errorf("a message has more than %d bytes", most)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
