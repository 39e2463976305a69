package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/client"
)

// caller is on whose behalf a request is made.
type caller struct {
	subject string          // becomes created_by
	claims  json.RawMessage // those of the token; nil over stdio
	scopes  []string        // those of the token
	limited bool            // scopes count: the caller may use only the tools that they cover
}

type callerKey struct{}

// withCaller names the caller of all requests under a context.
func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the caller of a request. There is none only by a mistake of ours: then nobody is served.
func callerOf(ctx context.Context) (caller, error) {
	c, _ := ctx.Value(callerKey{}).(caller)
	if c.subject == "" {
		return c, errors.New("the request has no caller")
	}
	return c, nil
}

// as runs statements with the rights of a caller, in one transaction. Soon after the door has stopped it begins no more.
func (d *Door) as(ctx context.Context, c caller, do func(client.DB) error) error {
	pool, role, err := d.database(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.late, cancel)()
	err = client.As(ctx, pool, client.Subject{ID: c.subject, Role: role, Claims: c.claims}, do)
	if err != nil && d.late.Err() != nil {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}
