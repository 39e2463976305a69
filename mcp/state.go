package mcp

import (
	"context"
	"errors"
	"time"

	"github.com/gemworker/gem/client"
)

// state is a call as its caller may see it.
type state struct {
	client.VisibleCall
	// asks describes the actions that people must take before the call continues, for users whose client cannot ask
	// them; it may be empty.
	asks string
	// approval means that rules ask people about the call.
	approval bool
}

func (s state) ended() bool { return s.Receipt != nil }

// state reads a call of the caller.
func (d *Server) state(ctx context.Context, c caller, id string) (s state, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		seen, err := client.GetVisible(ctx, db, id)
		if err == nil {
			s.VisibleCall = *seen
		}
		return err
	})
	var none *client.NotFoundError
	if errors.As(err, &none) {
		err = noCall(id)
	}
	return s, err
}

// wait returns the state of a call as soon as it has ended, at the latest at a deadline, and earlier if the request
// ends or the server stops. With orWaits, it also returns when the call waits for an answer or for calls. It keeps
// waiting while the database is unreachable.
func (d *Server) wait(ctx context.Context, c caller, id string, until time.Time, orWaits bool) (s state, err error) {
	opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), oneTry)
	waiter, err := d.waits(opening)
	cancel()
	if err != nil {
		return s, err
	}
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	defer context.AfterFunc(d.closing, cancel)()
	wait := waiter.Ended
	if orWaits {
		wait = waiter.EndedOrParked
	}
	for {
		over := wait(waiting, id) != nil
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), oneLook)
		s, err = d.state(try, c, id)
		cancel()
		if over || err == nil && (s.ended() || orWaits && s.Status == "waiting") || err != nil && !again(err) {
			return s, err
		}
	}
}

// oneLook limits how long one read of a call may take.
const oneLook = 5 * time.Second

// waits returns the waiter for finished calls.
func (d *Server) waits(ctx context.Context) (*client.Waiter, error) {
	pool, _, err := d.database(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiter == nil {
		d.waiter = client.NewWaiter(pool, d.o.ListenURL, d.o.Log)
	}
	return d.waiter, nil
}
