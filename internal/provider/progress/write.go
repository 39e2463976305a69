package progress

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// hurry sends the next statement at once.
func (w *Writer) hurry() {
	select {
	case w.urgent <- struct{}{}:
	default:
	}
}

// start starts the goroutine that writes, unless it runs.
func (w *Writer) start() {
	if !w.running {
		w.running = true
		go w.run()
	}
}

// run writes until there is nothing left to write.
func (w *Writer) run() {
	interval := time.NewTimer(w.every)
	defer interval.Stop()
	for {
		select {
		case <-interval.C:
		case <-w.urgent:
		}
		w.write()
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.running = false
			select {
			case <-w.urgent: // for rows that exist already
			default:
			}
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		interval.Reset(w.every)
	}
}

// batch is the part of a stream in one statement.
type batch struct {
	of      *Stream
	rows    []row
	size    int
	after   *int
	waiting []chan struct{}
	state   string // its result
	seq     int
}

// write sends one statement, with the rows of as many streams as fit.
func (w *Writer) write() {
	batches := w.take()
	if len(batches) == 0 {
		return
	}
	err := w.send(batches)
	w.mu.Lock()
	defer w.mu.Unlock()
	refused := store.IsRefusal(err)
	switch {
	case refused:
		w.log.Warn("progress of calls was refused, and is not shown", zap.Int("calls", len(batches)), zap.Error(err))
	case err != nil && !w.failing:
		w.log.Warn("progress of calls could not be written, and is tried again", zap.Int("calls", len(batches)),
			zap.Error(err))
	}
	w.failing = err != nil && !refused
	for i := range batches {
		b := &batches[i]
		s := b.of
		switch {
		case b.state == "written":
			s.size -= b.size
			s.sending, s.after, s.hurried = nil, &b.seq, false
		case b.state != "" && b.state != "busy", refused: // full, or gone
			s.drop()
		}
		for _, waits := range b.waiting {
			close(waits)
		}
		switch {
		case len(s.rows)+len(s.sending) == 0:
			s.release()
		case !s.queued:
			s.queued = true
			w.queue = append(w.queue, s)
		}
	}
}

// take takes the first streams of the queue.
func (w *Writer) take() (batches []batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, 0
	for n < len(w.queue) && size < mostInStatement {
		s := w.queue[n]
		n++
		s.queued = false
		if s.sending == nil {
			s.sending, s.rows = s.rows, nil
		}
		if s.sending == nil {
			continue
		}
		b := batch{of: s, rows: s.sending, after: s.after, waiting: s.waiting}
		for i := range b.rows {
			b.size += b.rows[i].size()
		}
		size += b.size
		s.waiting = nil
		batches = append(batches, b)
	}
	w.queue = append(w.queue[:0:0], w.queue[n:]...)
	return batches
}

// storedStream is a stream in the form that gem.progress accepts.
type storedStream struct {
	Call    string    `json:"call"`
	Attempt int       `json:"attempt"`
	After   *int      `json:"after"`
	Rows    []sentRow `json:"rows"`
}

type sentRow struct {
	Kind Kind `json:"kind"`
	Data any  `json:"data"`
}

type textData struct {
	Text string `json:"text"`
}

type callData struct {
	Index     int    `json:"index"`
	ID        string `json:"id,omitempty"`
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"`
}

type statusData struct {
	State   State  `json:"state"`
	Step    string `json:"step,omitempty"`
	Target  string `json:"target,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Why     string `json:"why,omitempty"`
}

func (r *row) encode() sentRow {
	text := storable(string(r.text))
	switch r.kind {
	case ToolCall:
		return sentRow{r.kind, callData{r.index, storable(r.id), storable(r.name), text}}
	case Status:
		return sentRow{r.kind, statusData{r.state, r.step, r.target, r.outcome, r.why}}
	case Text, Thinking:
	}
	return sentRow{r.kind, textData{text}}
}

// storable returns a text without the one character that Postgres cannot store in JSON.
func storable(text string) string { return strings.ReplaceAll(text, "\x00", "\uFFFD") }

// send sends a statement, and records the result of each batch.
func (w *Writer) send(batches []batch) error {
	streams := make([]storedStream, len(batches))
	at := map[attempt]*batch{}
	for i := range batches {
		b := &batches[i]
		at[b.of.attempt] = b
		streams[i] = storedStream{Call: b.of.call, Attempt: b.of.number, After: b.after}
		for j := range b.rows {
			streams[i].Rows = append(streams[i].Rows, b.rows[j].encode())
		}
	}
	encoded, err := json.Marshal(streams)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	// the rows have the error of the query
	rows, _ := w.db.Query(ctx, "select call_id::text, attempt, seq, state from gem.progress($1)", string(encoded))
	var (
		a     attempt
		seq   int
		state string
	)
	states := map[attempt]batch{}
	if _, err = pgx.ForEachRow(rows, []any{&a.call, &a.number, &seq, &state}, func() error {
		states[a] = batch{state: state, seq: seq}
		return nil
	}); err != nil {
		return err
	}
	for a, became := range states {
		if b := at[a]; b != nil {
			b.state, b.seq = became.state, became.seq
		}
	}
	return nil
}
