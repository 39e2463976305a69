package provider

import (
	"context"
	"errors"
	"net/http"
)

// Queue holds the events of an answer. One event of the response may give several of them, or none. Dialects embed a
// Queue, which implements [Stream] except for the meaning of their events.
type Queue struct {
	// Events are the events of the response, and Cancel ends its request.
	Events *Events
	Cancel context.CancelFunc
	// Read takes the next event of the response, or the error with which [Events.Next] returned. It calls Send, Fail or
	// Finish.
	Read func(ServerEvent, error)

	ready   []Event
	current Event
	err     error
	done    bool
}

// Next implements [Stream].
func (q *Queue) Next() bool {
	for len(q.ready) == 0 {
		if q.done {
			return false
		}
		q.Fetch()
	}
	q.current, q.ready = q.ready[0], q.ready[1:]
	return true
}

// Fetch reads one event of the response.
func (q *Queue) Fetch() { q.Read(q.Events.Next()) }

// Current implements [Stream].
func (q *Queue) Current() Event { return q.current }

// Err implements [Stream].
func (q *Queue) Err() error { return q.err }

// Close implements [Stream].
func (q *Queue) Close() error {
	q.Cancel()
	return q.Events.Close()
}

// Send adds an event of the answer.
func (q *Queue) Send(e Event) { q.ready = append(q.ready, e) }

// Waiting returns the number of ready events.
func (q *Queue) Waiting() int { return len(q.ready) }

// Fail ends the stream with an error, and drops the ready events.
func (q *Queue) Fail(err error) {
	q.err, q.done, q.ready = err, true, nil
	q.Cancel()
}

// Finish ends the stream after the ready events.
func (q *Queue) Finish() {
	q.done = true
	q.Cancel()
}

// Done reports whether Fail or Finish was called.
func (q *Queue) Done() bool { return q.done }

// InStream returns err with the status and the request of a response that had begun as a success, if err is an
// [*Error].
func InStream(err error, request string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	with := *e
	with.Status, with.RequestID = http.StatusOK, request
	return &with
}
