package mcpclient

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// input is the input of a program, to which one message at a time is written. A program may leave it unread while a
// tool runs: then the other messages wait, each within the time of its own call. A message that has begun is written to
// its end, even after its call has ended: nothing else can follow a part of a line.
type input struct {
	patience time.Duration // hungTime, shorter in tests

	turn  chan struct{} // holds a value while a message is being written
	since atomic.Int64  // when that began, in Unix nanoseconds; 0: none is being written
	calls atomic.Int64  // calls that were sent and wait for their answers
}

// hungTime is how long a program may leave its input unread once no call waits for it. Then it counts as hung.
const hungTime = 10 * time.Second

func newInput() *input { return &input{turn: make(chan struct{}, 1), patience: hungTime} }

// write calls send when it is the message's turn. d is nil for messages that are not calls. If ctx ends earlier, it
// returns ctx's error.
func (i *input) write(ctx context.Context, d *delivery, send func() error) error {
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return &unsentError{ctx.Err()}
	}
	if ctx.Err() != nil || d != nil && !d.begin() {
		<-i.turn
		return &unsentError{context.Cause(ctx)}
	}
	if d != nil {
		i.calls.Add(1)
	}
	i.since.Store(time.Now().UnixNano())
	sent := make(chan error, 1)
	go func() {
		err := send()
		if d != nil && errors.As(err, new(*unsentError)) {
			i.calls.Add(-1)
		}
		i.since.Store(0)
		<-i.turn
		sent <- err
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answered notes that a call does not wait for its answer any more.
func (i *input) answered() { i.calls.Add(-1) }

// hung reports whether the program has left its input unread for long, although no call keeps it busy.
func (i *input) hung() bool {
	since := i.since.Load()
	return since != 0 && time.Since(time.Unix(0, since)) > i.patience && i.calls.Load() <= 0
}
