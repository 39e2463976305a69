package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	maxMessage = 4 << 20 // bytes of a line: room for an input of 1 MiB, however it is escaped
	maxDepth   = 1_000   // levels of nesting: the SDK reads no more
)

// filter passes a client's messages to the SDK, one per line. It answers messages on which the SDK would close the
// connection: invalid JSON, invalid messages, and messages that are too long or too deeply nested.
type filter struct {
	from    *bufio.Reader
	answers *lines
	passing []byte // the rest of a message that is being passed on
	// atEnd is called after the last message, before the SDK reads the end of the input: from then on the SDK sends no
	// answers.
	atEnd func()
	over  sync.Once
	// closing means that new messages are not read.
	closing atomic.Bool
	// idle returns memory to the system while the client sends nothing: the client may keep the process for days.
	idle *time.Timer
}

const idleAfter = 30 * time.Second

func newFilter(from io.Reader, answers *lines, atEnd func()) *filter {
	return &filter{from: bufio.NewReaderSize(from, 64<<10), answers: answers, atEnd: atEnd,
		idle: time.AfterFunc(idleAfter, debug.FreeOSMemory)}
}

// Read returns the messages that pass.
func (f *filter) Read(p []byte) (int, error) {
	for len(f.passing) == 0 {
		line, about, err := f.line()
		f.idle.Reset(idleAfter)
		if line = bytes.TrimSpace(line); len(line) > 0 || about.long {
			messages, answer := about.check(line)
			if f.closing.Load() {
				continue
			}
			for _, message := range messages {
				one := &about
				if line[0] == '[' {
					one = new(outline)
					one.read(message)
				}
				f.answers.asked(one)
				f.passing = append(append(f.passing, message...), '\n')
			}
			if answer != nil { // nobody waits for an answer to a notification
				if _, err := f.answers.Write(append(answer, '\n')); err != nil {
					return 0, err
				}
			}
		}
		if err != nil && len(f.passing) == 0 {
			f.idle.Stop()
			f.over.Do(f.atEnd)
			return 0, err
		}
	}
	n := copy(p, f.passing)
	f.passing = f.passing[n:]
	return n, nil
}

// Close does nothing: the owner of the reader closes it.
func (f *filter) Close() error { return nil }

// line reads up to the next end of a line. It reads a line that is too long to its end, and discards it.
func (f *filter) line() (line []byte, about outline, err error) {
	for {
		part, err := f.from.ReadSlice('\n')
		about.read(part)
		if !about.long {
			line = append(line, part...)
		}
		if about.long = about.long || len(line) > maxMessage; about.long {
			line = nil
		}
		if err != bufio.ErrBufferFull { //nolint:errorlint // it is never wrapped
			return line, about, err
		}
	}
}

// outline is the part of a message that can be seen without decoding it.
type outline struct {
	long    bool
	deepest int
	id      json.RawMessage
	method  string

	depth             int
	quoted, escaped   bool
	key, value        []byte // of the member of the outermost object that is being read
	inValue, tooLarge bool
}

// read processes the next bytes of the message.
func (o *outline) read(part []byte) {
	for _, b := range part {
		switch {
		case o.escaped:
			o.escaped = false
		case o.quoted && b == '\\':
			o.escaped = true
		case b == '"':
			o.quoted = !o.quoted
		case o.quoted:
		case b == '{' || b == '[':
			o.depth++
			o.deepest = max(o.deepest, o.depth)
			if o.depth == 1 {
				continue
			}
		case b == '}' || b == ']':
			if o.depth == 1 {
				o.member()
			}
			o.depth--
		case b == ':' && o.depth == 1:
			o.inValue = true
			continue
		case b == ',' && o.depth == 1:
			o.member()
			continue
		}
		if o.depth != 1 {
			continue
		}
		at := &o.key
		if o.inValue {
			at = &o.value
		}
		if o.tooLarge = o.tooLarge || len(*at) > 1024; !o.tooLarge {
			*at = append(*at, b)
		}
	}
}

// member ends a member of the outermost object.
func (o *outline) member() {
	switch key := string(bytes.TrimSpace(o.key)); {
	case o.tooLarge:
	case key == `"id"` && json.Valid(o.value):
		o.id = bytes.Clone(bytes.TrimSpace(o.value))
	case key == `"method"`:
		_ = json.Unmarshal(o.value, &o.method)
	}
	o.key, o.value, o.inValue, o.tooLarge = o.key[:0], o.value[:0], false, false
}

// check returns the messages of a line, or the answer to a line that is rejected. The messages of a batch pass one by
// one: the SDK would close the connection on most batches.
func (o *outline) check(line []byte) (messages []json.RawMessage, answer []byte) {
	switch {
	case o.long:
		return nil, o.tooMuch(fmt.Sprintf("the message takes more than %d bytes. An input may take 1 MiB: store large "+
			"content elsewhere, and send its id or a link to it.", maxMessage))
	case o.deepest > maxDepth:
		return nil, o.tooMuch(fmt.Sprintf("the message is nested %d levels deep; the limit is %d.", o.deepest, maxDepth))
	case !json.Valid(line):
		return nil, o.answer("error", map[string]any{"code": jsonrpc.CodeParseError, "message": "the message is not JSON"})
	case line[0] != '[':
		messages = []json.RawMessage{line}
	default:
		if _ = json.Unmarshal(line, &messages); len(messages) == 0 {
			return nil, o.answer("error", map[string]any{"code": jsonrpc.CodeInvalidRequest, "message": "the batch is empty"})
		}
	}
	for _, m := range messages {
		if _, err := jsonrpc.DecodeMessage(m); err != nil {
			return nil, o.answer("error", map[string]any{"code": jsonrpc.CodeInvalidRequest, "message": err.Error()})
		}
	}
	return messages, nil
}

// tooMuch returns an error that a model can read if it called a tool.
func (o *outline) tooMuch(why string) []byte {
	if o.method != "tools/call" {
		return o.answer("error", map[string]any{"code": jsonrpc.CodeInvalidRequest, "message": why})
	}
	return o.answer("result", map[string]any{"resultType": "complete", "isError": true,
		"content": []any{map[string]any{"type": "text", "text": "The call was not made: " + why}}})
}

func (o *outline) answer(member string, value any) []byte {
	id := o.id
	if id == nil && o.method != "" {
		return nil
	} else if id == nil {
		id = json.RawMessage("null")
	}
	return encode(map[string]any{"jsonrpc": "2.0", "id": id, member: value})
}

// lines writes whole lines, for several goroutines at once. It tracks the requests without an answer.
type lines struct {
	to io.Writer

	mu   sync.Mutex
	open map[string]bool // requests without an answer, by their ids
	none chan struct{}   // closed once there are none
}

func (l *lines) Write(p []byte) (int, error) {
	var about outline
	about.read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.to.Write(p)
	if about.method == "" {
		delete(l.open, string(about.id))
	}
	if len(l.open) == 0 && l.none != nil {
		close(l.none)
		l.none = nil
	}
	return n, err
}

// asked records each message of the client.
func (l *lines) asked(about *outline) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if about.method == "" || about.id == nil {
		return
	}
	if l.open == nil {
		l.open = map[string]bool{}
	}
	l.open[string(about.id)] = true
}

// answered waits until each request has its answer, or until the time is over.
func (l *lines) answered(within time.Duration) {
	l.mu.Lock()
	if len(l.open) == 0 {
		l.mu.Unlock()
		return
	}
	if l.none == nil {
		l.none = make(chan struct{})
	}
	none := l.none
	l.mu.Unlock()
	select {
	case <-none:
	case <-time.After(within):
	}
}

// Close does nothing: the owner of the writer closes it.
func (l *lines) Close() error { return nil }
