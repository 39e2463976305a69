// Package progress shows answers while they come, in the table core_tool_progress: see migrations/functions/progress.sql. It is for the eye.
// An answer whose progress cannot be written is no worse: its receipt is the truth.
package progress

import (
	"context"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/llm"
	"go.uber.org/zap"
)

// Kind is the kind of a row, and says what its data has.
type Kind string

// The kinds. Texts, thoughts and arguments are pieces: the next row of the kind, and of the index, goes on where the last one ended.
const (
	Text     Kind = "text"      // {text}
	Thinking Kind = "thinking"  // {text}
	ToolCall Kind = "tool_call" // {index, id, name, arguments}: id and name in its first row
	Status   Kind = "status"    // {state, step, arm, outcome, why}: see State
)

// State is the state of a status row.
type State string

// The states.
const (
	Asked   State = "asked"   // the arm was asked, in a step
	Failed  State = "failed"  // the arm did not answer: outcome says why
	Stopped State = "stopped" // nothing more is shown of this call: why is rows, or behind
)

const (
	// mostPending is how many bytes a call may have that are not written yet. With more, no more is shown of it.
	mostPending = 64 << 10
	// mostInRow is how many bytes of text a row has.
	mostInRow = 8 << 10
	// mostInStatement is how many bytes the calls of one statement have, but for the last of them. The others are in the next.
	mostInStatement = 1 << 20
	// rowSize is what a row counts besides its text.
	rowSize = 64
	// flushPatience is how long the end of an answer waits for its last rows.
	flushPatience = time.Second
	// statementTimeout bounds a statement.
	statementTimeout = 5 * time.Second
)

// Writer writes the progress of all calls of a process: one statement an interval, and none while there is nothing to write. The end of an
// answer does not wait for the interval. It is safe for concurrent use.
type Writer struct {
	db    handlers.DB
	every time.Duration
	log   *zap.Logger
	keys  []string

	mu      sync.Mutex
	streams map[attempt]*Stream
	queue   []*Stream // those that have something to write
	running bool      // a goroutine writes
	failing bool      // the last statement failed
	urgent  chan struct{}
}

// NewWriter returns a writer. It holds a connection only while it writes. The given keys are cut out of all that it shows.
func NewWriter(db handlers.DB, every time.Duration, log *zap.Logger, keys ...string) *Writer {
	return &Writer{db: db, every: every, log: log, keys: keys, streams: map[attempt]*Stream{}, urgent: make(chan struct{}, 1)}
}

// attempt is one at a call.
type attempt struct {
	call   string
	number int
}

// Stream is what one attempt at a call shows. A nil one shows nothing.
type Stream struct {
	*Writer
	attempt

	// All below is guarded by mu of the writer.
	rows    []row // to be written; those of sending are not among them
	sending []row // were sent, and are not known to be there: they are sent again as they are
	size    int   // of both
	queued  bool
	hurried bool // too much waits for the interval
	closed  bool // takes nothing more
	after   *int // the seq of the last row that is there; null until one is
	waiting []chan struct{}
	cutter  *llm.Cutter
	kind    Kind // of what the cutter holds back
	index   int
}

// row is one that grows.
type row struct {
	kind      Kind
	text      []byte // or arguments
	index     int
	id, name  string
	state     State
	step, arm string
	outcome   string
	why       string
}

// Open returns what an attempt shows. ctx is the context of the attempt: at its end, all that was not written is dropped. A nil writer shows
// nothing.
func (w *Writer) Open(ctx context.Context, call string, number int) *Stream {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a := attempt{call, number}
	s := w.streams[a]
	if s == nil {
		s = &Stream{Writer: w, attempt: a, cutter: llm.NewCutter(w.keys...)}
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
func (s *Stream) Seen(e *llm.Event) {
	if s == nil {
		return
	}
	switch e.Kind {
	case llm.TextDelta:
		s.add(Text, 0, e.Delta)
	case llm.ThinkingDelta:
		if !e.Redacted {
			s.add(Thinking, 0, e.Delta)
		}
	case llm.CallBegan:
		s.begin(row{kind: ToolCall, index: e.Index, id: e.ID, name: e.Name})
	case llm.ArgumentsDelta:
		s.add(ToolCall, e.Index, e.Delta)
	}
}

// Asked shows that an arm is asked.
func (s *Stream) Asked(step, arm string) {
	s.begin(row{kind: Status, state: Asked, step: step, arm: arm})
}

// Failed shows that an arm did not answer.
func (s *Stream) Failed(step, arm string, outcome llm.ErrorKind) {
	s.begin(row{kind: Status, state: Failed, step: step, arm: arm, outcome: string(outcome)})
}

// begin adds a row.
func (s *Stream) begin(r row) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letGo()
	if r.id, r.name = s.cutter.Whole(r.id), s.cutter.Whole(r.name); s.room() {
		s.grow(r)
		s.enqueue()
	}
}

// add adds to the last row, or begins another.
func (s *Stream) add(kind Kind, index int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind != kind || s.index != index {
		s.letGo()
		s.kind, s.index = kind, index
	}
	s.put(kind, index, s.cutter.Add(text))
}

// letGo adds what was held back of a text that is over.
func (s *Stream) letGo() { s.put(s.kind, s.index, s.cutter.Rest()) }

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

// size is how much a row counts of what is pending.
func (r *row) size() int { return rowSize + len(r.id) + len(r.name) + len(r.text) }

// head returns the begin of a text, of so many bytes at most, but for the rest of a letter.
func head(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most < len(text) && !utf8.RuneStart(text[most]) {
		most++
	}
	return text[:most]
}

// room reports whether more is taken. Where too much waits for Postgres, a last row says that there is no more.
func (s *Stream) room() bool {
	if !s.closed && s.size >= mostPending {
		s.grow(row{kind: Status, state: Stopped, why: "behind"})
		s.closed = true
	}
	return !s.closed
}

// enqueue lets the rows be written with the next statement.
func (s *Stream) enqueue() {
	if !s.queued {
		s.queued = true
		s.queue = append(s.queue, s)
	}
	if s.size > mostPending/2 && !s.hurried { // once, and not again and again while Postgres is away
		s.hurried = true
		s.hurry()
	}
	s.start()
}

// drop forgets what was not written, and takes nothing more.
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

// Flush has the rows written that there are, ahead of the interval, and waits for that: for one statement after that which is under way, and a
// second at most. Answers that end at the same time share it.
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
