// Package progress shows answers while they arrive, in the table core_tool_progress: see
// migrations/functions/progress.sql. Progress is only for display. An answer is valid even if its progress cannot be
// written: its receipt is authoritative.
package progress

import (
	"context"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"go.uber.org/zap"
)

// Kind is the kind of a row, and determines its data.
type Kind string

// The kinds. Texts, thoughts and arguments are pieces: the next row of the kind, and of the index, continues where the
// last one ended.
const (
	Text     Kind = "text"      // {text}
	Thinking Kind = "thinking"  // {text}
	ToolCall Kind = "tool_call" // {index, id, name, arguments}: id and name in its first row
	Status   Kind = "status"    // {state, step, target, outcome, why}: see State
)

// State is the state of a status row.
type State string

// The states.
const (
	Asked   State = "asked"   // the target was asked, in a step
	Failed  State = "failed"  // the target did not answer: outcome has the reason
	Stopped State = "stopped" // nothing more is shown for this call: why is rows or behind
)

const (
	// mostPending is the maximum number of a call's unwritten bytes. Beyond it, nothing more is shown for the call.
	mostPending = 64 << 10
	// mostInRow is the maximum number of bytes of text in a row.
	mostInRow = 8 << 10
	// mostInStatement limits the bytes of one statement, not counting its last call. Other calls wait for the next
	// statement.
	mostInStatement = 1 << 20
	// rowSize is the size of a row without its text.
	rowSize = 64
	// flushPatience is how long the end of an answer waits for its last rows.
	flushPatience = time.Second
	// statementTimeout limits a statement.
	statementTimeout = 5 * time.Second
)

// Writer writes the progress of all calls of a process: one statement per interval, and none if there is nothing to
// write. The end of an answer does not wait for the interval. It is safe for concurrent use.
type Writer struct {
	db    handlers.DB
	every time.Duration
	log   *zap.Logger
	keys  []string

	mu      sync.Mutex
	streams map[attempt]*Stream
	queue   []*Stream // with something to write
	running bool      // a goroutine writes
	failing bool      // the last statement failed
	urgent  chan struct{}
}

// NewWriter returns a writer. It holds a connection only while it writes. It cuts the given keys out of all texts.
func NewWriter(db handlers.DB, every time.Duration, log *zap.Logger, keys ...string) *Writer {
	return &Writer{db: db, every: every, log: log, keys: keys, streams: map[attempt]*Stream{},
		urgent: make(chan struct{}, 1)}
}

// attempt is an attempt at a call.
type attempt struct {
	call   string
	number int
}

// Stream is the progress of one attempt at a call. A nil Stream shows nothing.
type Stream struct {
	*Writer
	attempt

	// The writer's mu guards the following fields.
	rows    []row // to be written, without the rows of sending
	sending []row // were sent, but may not have arrived: they are sent again unchanged
	size    int   // of both
	queued  bool
	hurried bool // too many bytes wait for the interval
	closed  bool // accepts nothing more
	after   *int // the seq of the last written row; null without one
	waiting []chan struct{}
	tracks  []*track
}

// track is the text of the rows of a kind and an index, which a reader joins.
type track struct {
	*provider.Cutter
	kind  Kind
	index int
}

// row is a growing row.
type row struct {
	kind         Kind
	text         []byte // or arguments
	index        int
	id, name     string
	state        State
	step, target string
	outcome      string
	why          string
}

// Open returns the stream of an attempt. ctx is the context of the attempt: at its end, everything unwritten is
// dropped. A nil writer shows nothing.
func (w *Writer) Open(ctx context.Context, call string, number int) *Stream {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a := attempt{call, number}
	s := w.streams[a]
	if s == nil {
		s = &Stream{Writer: w, attempt: a}
		w.streams[a] = s
		context.AfterFunc(ctx, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.streams, a)
			s.drop()
		})
	}
	return s
}

// Seen shows a piece of an answer. It does not wait.
func (s *Stream) Seen(e *provider.Event) {
	if s == nil {
		return
	}
	switch e.Kind {
	case provider.TextDelta:
		s.add(Text, 0, e.Delta)
	case provider.ThinkingDelta:
		if !e.Redacted {
			s.add(Thinking, 0, e.Delta)
		}
	case provider.CallBegan:
		s.begin(row{kind: ToolCall, index: e.Index, id: e.ID, name: e.Name})
	case provider.ArgumentsDelta:
		s.add(ToolCall, e.Index, e.Delta)
	}
}

// Asked shows that a target was asked.
func (s *Stream) Asked(step, target string) {
	s.begin(row{kind: Status, state: Asked, step: step, target: target})
}

// Failed shows that a target did not answer.
func (s *Stream) Failed(step, target string, outcome provider.ErrorKind) {
	s.begin(row{kind: Status, state: Failed, step: step, target: target, outcome: string(outcome)})
}

// begin adds a row.
func (s *Stream) begin(r row) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.kind == Status { // another answer begins
		s.letGo()
	}
	whole := provider.NewCutter(s.keys...).Whole
	if r.id, r.name = whole(r.id), whole(r.name); s.room() {
		s.grow(r)
		s.enqueue()
	}
}

// add adds to the last row, or begins another.
func (s *Stream) add(kind Kind, index int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(kind, index, s.track(kind, index).Add(text))
}

func (s *Stream) track(kind Kind, index int) *track {
	for _, t := range slices.Backward(s.tracks) {
		if t.kind == kind && t.index == index {
			return t
		}
	}
	t := &track{provider.NewCutter(s.keys...), kind, index}
	s.tracks = append(s.tracks, t)
	return t
}

// letGo adds the held back ends of texts that are complete.
func (s *Stream) letGo() {
	for _, t := range s.tracks {
		s.put(t.kind, t.index, t.Rest())
	}
	s.tracks = nil
}

func (s *Stream) put(kind Kind, index int, text string) {
	for text != "" && s.room() {
		n := len(s.rows)
		if n == 0 || s.rows[n-1].kind != kind || s.rows[n-1].index != index || len(s.rows[n-1].text) >= mostInRow {
			s.grow(row{kind: kind, index: index})
		}
		last := &s.rows[len(s.rows)-1]
		piece := head(text, mostInRow-len(last.text))
		text = text[len(piece):]
		last.text = append(last.text, piece...)
		s.size += len(piece)
		s.enqueue()
	}
}

// grow adds a row.
func (s *Stream) grow(r row) {
	s.rows = append(s.rows, r)
	s.size += r.size()
}

// size returns the size of a row within pending.
func (r *row) size() int { return rowSize + len(r.id) + len(r.name) + len(r.text) }

// head returns the beginning of a text, of limited size, without splitting a character.
func head(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most < len(text) && !utf8.RuneStart(text[most]) {
		most++
	}
	return text[:most]
}

// room reports whether more is accepted. If too much waits for Postgres, a last row reports that nothing more follows.
func (s *Stream) room() bool {
	if !s.closed && s.size >= mostPending {
		s.grow(row{kind: Status, state: Stopped, why: "behind"})
		s.closed = true
	}
	return !s.closed
}

// enqueue adds the rows to the next statement.
func (s *Stream) enqueue() {
	if !s.queued {
		s.queued = true
		s.queue = append(s.queue, s)
	}
	if s.size > mostPending/2 && !s.hurried { // once, and not repeatedly while Postgres is unavailable
		s.hurried = true
		s.hurry()
	}
	s.start()
}

// drop drops everything unwritten, and accepts nothing more.
func (s *Stream) drop() {
	s.rows, s.sending, s.size, s.closed = nil, nil, 0, true
	s.release()
}

func (s *Stream) release() {
	for _, w := range s.waiting {
		close(w)
	}
	s.waiting = nil
}

// Flush writes the existing rows before the end of the interval. It waits for one statement after the current one, for
// at most a second. Answers that end at the same time share the statement.
func (s *Stream) Flush(ctx context.Context) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.letGo()
	if len(s.rows)+len(s.sending) == 0 {
		s.mu.Unlock()
		return
	}
	written := make(chan struct{})
	s.waiting = append(s.waiting, written)
	if at := slices.Index(s.queue, s); at > 0 { // first
		copy(s.queue[1:], s.queue[:at])
		s.queue[0] = s
	}
	s.hurry()
	s.mu.Unlock()
	patience := time.NewTimer(flushPatience)
	defer patience.Stop()
	select {
	case <-written:
	case <-patience.C:
	case <-ctx.Done():
	}
}
