package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// signedIn are the roles of signed-in users, the first that is there counts: Supabase's, and that of the migrations.
var signedIn = []string{"authenticated", "gem_frontend"}

// NoRoleError says that statements of callers would have rights that no caller may have.
type NoRoleError struct{ reason string }

func (e *NoRoleError) Error() string { return e.reason }

// findRole returns the role whose rights callers have: the one that is wanted, otherwise the first of signedIn that the connection can take on; "" for
// none. With apart, callers are many, and there must be one. Its error is a [*NoRoleError] then, as it is for a role that row level security does not bind.
func findRole(ctx context.Context, pool *pgxpool.Pool, wanted string, apart bool) (role string, err error) {
	roles := signedIn
	if wanted != "" {
		roles = []string{wanted}
	}
	var unbound, waits bool
	err = pool.QueryRow(ctx, `
		select rolname, rolname = 'service_role' or rolsuper or rolbypassrls or coalesce(pg_has_role(r.oid, (select relowner from pg_class where oid = to_regclass('public.core_tool_calls')), 'usage'), false),
			coalesce(has_schema_privilege(session_user, to_regnamespace('gem'), 'usage') and has_function_privilege(session_user, to_regprocedure('gem.ended(uuid[])'), 'execute'), true)
		from pg_roles r where rolname = any ($1) and pg_has_role(session_user, r.oid, 'member')
		order by array_position($1::text[], rolname::text) limit 1`, roles).Scan(&role, &unbound, &waits)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && wanted != "":
		return "", &NoRoleError{fmt.Sprintf("GEM_MCP_DB_ROLE is %s, and the user of DATABASE_URL cannot take on such a role: create it, or grant it to that user", wanted)}
	case errors.Is(err, pgx.ErrNoRows) && apart:
		// A caller would have the rights of the connection, and one who sends another's call id get that call.
		return "", &NoRoleError{"callers over HTTP need a role that keeps them apart, and the user of DATABASE_URL can take on neither authenticated nor gem_frontend: " +
			"run `gem migrate`, and as the owner of the tables: grant gem_door to that user"}
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("find out whose rights callers have: %w", err)
	case unbound:
		return "", &NoRoleError{fmt.Sprintf("callers cannot have the rights of the role %s: it sees the calls of all users, since it owns the tables, is a superuser or passes row level security", role)}
	case !waits:
		return "", &NoRoleError{"the user of DATABASE_URL cannot ask which calls have ended: as the owner of the tables, grant gem_door to that user"}
	}
	return role, nil
}

// database opens the pool at its first use, and finds out whose rights statements have. Its error is a [*NoRoleError] if it finds that
// there must be no statements.
func (d *Door) database(ctx context.Context) (*pgxpool.Pool, string, error) {
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

func (d *Door) opened(ctx context.Context) (*pgxpool.Pool, *string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late.Err() != nil { // the pool is closed, or is about to be
		return nil, nil, fmt.Errorf("this process ends: %w", context.DeadlineExceeded)
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

// checkRole returns the [*NoRoleError] of a door that must not serve. While the database is away, the first call finds out.
func (d *Door) checkRole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _, err := d.database(ctx)
	var none *NoRoleError
	switch {
	case errors.As(err, &none):
		return err
	case err != nil:
		d.o.Log.Warn("calls are refused until the database is there: " + reason(err))
	}
	return nil
}
