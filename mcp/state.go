package mcp

import (
	"context"
	"errors"
	"time"

	"github.com/gemworker/gem/client"
)

// state is a call as its caller may see it.
type state struct {
	client.Seen
	// asks says what people have to do before the call goes on, for those whose client cannot ask them; empty for nothing.
	asks string
}

func (s state) ended() bool { return s.Receipt != nil }

// state reads a call of the caller.
func (d *Door) state(ctx context.Context, c caller, id string) (s state, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		seen, err := client.See(ctx, db, id)
		if err == nil {
			s.Seen = *seen
		}
		return err
	})
	var none *client.NotFoundError
	if errors.As(err, &none) {
		err = noCall(id)
	}
	return s, err
}

// wait returns the state of a call as soon as it has ended, at the latest at a time, and before that when the request ends or the door is closing.
// While the database is away it waits on.
func (d *Door) wait(ctx context.Context, c caller, id string, until time.Time) (s state, err error) {
	reading := context.WithoutCancel(ctx)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		try, cancel := context.WithTimeout(reading, oneTry)
		s, err = d.state(try, c, id)
		cancel()
		if err == nil && s.ended() || err != nil && !again(err) || !time.Now().Before(until) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, err
		case <-d.closing.Done():
			return s, err
		case <-time.After(min(pause, time.Until(until))):
		}
	}
}
