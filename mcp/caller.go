package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/client"
	"github.com/jackc/pgx/v5/pgxpool"
)

// caller is on whose behalf a request is made.
type caller struct {
	subject string          // becomes created_by
	claims  json.RawMessage // those of the token; nil over stdio
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

// as runs statements with the rights of a caller, in one transaction.
func (d *Door) as(ctx context.Context, c caller, do func(client.DB) error) error {
	pool, role, err := d.database(ctx)
	if err != nil {
		return err
	}
	return client.As(ctx, pool, client.Subject{ID: c.subject, Role: role, Claims: c.claims}, do)
}

// database opens the pool at its first use, and finds out whose rights statements can have.
func (d *Door) database(ctx context.Context) (*pgxpool.Pool, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pool == nil {
		pool, err := d.o.Pool(ctx)
		if err != nil {
			return nil, "", err
		}
		d.pool = pool
	}
	if d.dbRole == nil {
		roles := []string{"authenticated", "gem_frontend"}
		if d.o.DBRole != "" {
			roles = []string{d.o.DBRole}
		}
		var role string
		err := d.pool.QueryRow(ctx, `
			select coalesce((select rolname from pg_roles where rolname = any ($1) and pg_has_role(session_user, oid, 'member')
			                 order by array_position($1::text[], rolname::text) limit 1), '')`, roles).Scan(&role)
		if err != nil {
			return nil, "", fmt.Errorf("find out whose rights calls have: %w", err)
		}
		d.dbRole = &role
	}
	return d.pool, *d.dbRole, nil
}
