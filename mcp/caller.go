package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/client"
)

// caller is the subject on whose behalf a request is made.
type caller struct {
	subject string          // becomes created_by
	claims  json.RawMessage // of the token; nil over stdio
	scopes  []string        // of the token
	limited bool            // the caller may use only the tools that the scopes cover
}

type callerKey struct{}

// withCaller sets the caller of all requests under a context.
func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the caller of a request. It returns an error if our code has set none: then nobody is served.
func callerOf(ctx context.Context) (caller, error) {
	c, _ := ctx.Value(callerKey{}).(caller)
	if c.subject == "" {
		return c, errors.New("the request has no caller")
	}
	return c, nil
}

// as runs statements with the rights of a caller, each in a transaction of its own. Soon after the server stops, it
// starts no more.
func (d *Server) as(ctx context.Context, c caller, do func(client.DB) error) error {
	return d.asWhile(ctx, ctx, c, do)
}

// asWhile is like as, but starts no statement if a request ends while others of the caller use the caller's share of
// the connections. Every statement of a caller is run here, so do must not call as.
func (d *Server) asWhile(ctx, request context.Context, c caller, do func(client.DB) error) error {
	pool, role, err := d.database(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.late, cancel)()
	end := func() {}
	if d.shared {
		end, err = d.take(ctx, request, c.subject, max(int(pool.Stat().MaxConns())/2, 1))
	}
	if err == nil {
		defer end()
		err = client.AsEach(ctx, pool, client.Subject{ID: c.subject, Role: role, Claims: c.claims}, do)
	}
	if err != nil && d.late.Err() != nil {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// take waits for a connection of the caller's share, until ctx or the request ends.
func (d *Server) take(ctx, request context.Context, subject string, most int) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(request, cancel)()
	if end, err = d.shares.Take(ctx, subject, most); err != nil {
		return nil, fmt.Errorf("%w: %w", errBusy, err)
	}
	return end, nil
}
