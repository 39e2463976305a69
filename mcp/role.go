package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// signedIn are the roles of signed-in users: Supabase's, and the one that the migrations create. The first that
// exists is used.
var signedIn = []string{"authenticated", "gem_frontend"}

// NoRoleError means that callers' statements would have rights that no caller may have.
type NoRoleError struct{ reason string }

func (e *NoRoleError) Error() string { return e.reason }

// findRole returns the role whose rights callers have: the wanted one, otherwise the first of signedIn that the
// connection can assume; "" for none. With apart, there are many callers, and a role is required. It
// returns a [*NoRoleError] if that is missing, or if the role bypasses row level security.
func findRole(ctx context.Context, pool *pgxpool.Pool, wanted string, apart bool) (role string, err error) {
	roles := signedIn
	if wanted != "" {
		roles = []string{wanted}
	}
	var unbound, waits bool
	err = pool.QueryRow(ctx, `
		select rolname, rolname = 'service_role' or rolsuper or rolbypassrls or coalesce(pg_catalog.pg_has_role(r.oid, (
				select relowner from pg_catalog.pg_class where oid = pg_catalog.to_regclass('public.core_tool_calls')::oid
			), 'usage'), false),
			coalesce(pg_catalog.has_schema_privilege(session_user, pg_catalog.to_regnamespace('gem'), 'usage')
				and pg_catalog.has_function_privilege(session_user,
					pg_catalog.to_regprocedure('gem.ended(uuid[])'), 'execute'), true)
		from pg_catalog.pg_roles r where rolname = any ($1) and pg_catalog.pg_has_role(session_user, r.oid, 'member')
		order by pg_catalog.array_position($1::text[], rolname::text) limit 1`, roles).Scan(&role, &unbound, &waits)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && wanted != "":
		return "", &NoRoleError{fmt.Sprintf("GEM_MCP_DB_ROLE is %s, and the user of DATABASE_URL cannot assume such a "+
			"role: create it, or grant it to that user", wanted)}
	case errors.Is(err, pgx.ErrNoRows) && apart:
		// A caller would have the rights of the connection, and could read another's call by sending its id.
		return "", &NoRoleError{"callers over HTTP need a role that separates them, and the user of DATABASE_URL can " +
			"assume neither authenticated nor gem_frontend: " +
			"run `gem migrate`, and as the owner of the tables: grant gem_mcp to that user"}
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("find the role of callers: %w", err)
	case unbound:
		return "", &NoRoleError{fmt.Sprintf("callers cannot have the rights of the role %s: it sees the calls of all "+
			"users, since it owns the tables, is a superuser or bypasses row level security", role)}
	case !waits:
		return "", &NoRoleError{"the user of DATABASE_URL cannot read which calls have ended: as the owner of the tables, " +
			"grant gem_mcp to that user"}
	}
	return role, nil
}

// database opens the pool at its first use, and finds the role for statements. Its error is a [*NoRoleError] if
// statements must not run.
func (d *Server) database(ctx context.Context) (*pgxpool.Pool, string, error) {
	pool, role, err := d.opened(ctx)
	if err != nil || role != nil {
		return pool, valueOf(role), err
	}
	found, err := findRole(ctx, pool, d.o.DBRole, d.apart)
	if err != nil {
		return nil, "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dbRole = &found
	return pool, found, nil
}

func (d *Server) opened(ctx context.Context) (*pgxpool.Pool, *string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late.Err() != nil { // the pool is closed, or will be soon
		return nil, nil, fmt.Errorf("this process is ending: %w", context.DeadlineExceeded)
	}
	if d.pool == nil {
		pool, err := d.o.Pool(ctx)
		if err != nil {
			return nil, nil, err
		}
		d.pool = pool
	}
	return d.pool, d.dbRole, nil
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkRole returns the [*NoRoleError] of a server that must not serve. While the database is unreachable, the first
// call checks.
func (d *Server) checkRole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _, err := d.database(ctx)
	var none *NoRoleError
	switch {
	case errors.As(err, &none):
		return err
	case err != nil:
		d.o.Log.Warn("calls are refused until the database is available: " + reason(err))
	}
	return nil
}
