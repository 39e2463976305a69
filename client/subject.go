package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Subject is a signed-in user, on whose behalf statements run: see [As].
type Subject struct {
	// ID is the token's `sub`, which becomes created_by of the user's calls. It is required.
	ID string
	// Role is the Postgres role whose rights the statements have. Set it to authenticated or, if the database has no such
	// role, to gem_frontend. Empty means the rights of the connection itself, so that a connection as the owner of the
	// tables sees the rows of all users.
	Role string
	// Claims are the other claims of the token, a JSON object that policies may read; nil means none. Its `sub` and
	// `role` are ignored in favour of the fields above.
	Claims json.RawMessage
}

// As runs statements with the rights of a user, as PostgREST does: in one transaction, with the user's role and
// `request.jwt.claims`, so that row level security, gem.limits and policies apply. It commits if do returns nil, and
// otherwise rolls back and returns that error. The transaction costs two round trips in addition to the statements that
// the function do runs. The connection keeps no state of the user, so the pool may use a pooler in transaction mode.
//
// The connection's role must be a member of the user's role. The role gem_mcp is a member of the users' roles. Its own
// rights are only to see which calls have ended or wait, and whether commits may have been lost.
func As(ctx context.Context, db *pgxpool.Pool, s Subject, do func(DB) error) error {
	return s.connect(ctx, db, func(conn *pgxpool.Conn, claims string) error {
		quoted, err := conn.Conn().PgConn().EscapeString(claims)
		if err != nil {
			return err
		}
		begin := "begin; set local request.jwt.claims = '" + quoted + "'"
		if s.Role != "" {
			begin += "; set local role " + pgx.Identifier{s.Role}.Sanitize()
		}
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error { return do(tx) })
	})
}

// AsEach is like [As], but each statement of do is a transaction of its own, which costs one round trip: role, claims,
// statement and commit are sent together. If do returns an error later, the statements that have already run are not
// undone. The rows of a query must be read or closed before the next statement.
//
// Each query must be a single statement. Options of pgx such as [pgx.QueryExecMode] are not accepted as arguments. The
// connection's role prepares the statement, so it needs the USAGE privilege on each schema that the statement names.
// After an error that does not come from Postgres, such as a lost connection, the statement may have been committed.
func AsEach(ctx context.Context, db *pgxpool.Pool, s Subject, do func(DB) error) error {
	return s.connect(ctx, db, func(conn *pgxpool.Conn, claims string) error {
		return do(each{conn, s.Role, claims})
	})
}

// connect acquires a connection for statements of the subject, and closes it afterwards if a transaction is still open.
func (s Subject) connect(ctx context.Context, db *pgxpool.Pool, do func(*pgxpool.Conn, string) error) error {
	claims, err := s.claims()
	if err != nil {
		return err
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	return do(conn, claims)
}

// each runs every statement in a transaction of its own. Postgres takes the messages up to one Sync for a transaction.
type each struct {
	conn         *pgxpool.Conn
	role, claims string
}

func (e each) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.TrimSpace(sql) == "" {
		return nil, errors.New("AsEach needs a statement")
	}
	var exchange pgx.Batch
	exchange.Queue("select pg_catalog.set_config('request.jwt.claims', $1, true), pg_catalog.set_config('role', "+
		"coalesce($2, pg_catalog.current_setting('role')), true)", e.claims, (*zeronull.Text)(&e.role))
	exchange.Queue(sql, args...)
	results := e.conn.SendBatch(ctx, &exchange)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		_ = results.Close() // it repeats the error
		return nil, err
	}
	return &eachRows{Rows: rows, results: results}, nil
}

func (e each) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := e.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

func (e each) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := e.Query(ctx, sql, args...)
	return eachRow{rows, err}
}

// eachRows are the rows of the only statement of a transaction, which has been committed once they are closed.
type eachRows struct {
	pgx.Rows
	results pgx.BatchResults
	closed  bool
	err     error
}

func (r *eachRows) Close() {
	r.Rows.Close()
	if !r.closed {
		r.closed, r.err = true, r.results.Close()
	}
}

func (r *eachRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *eachRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// eachRow is the first of such rows.
type eachRow struct {
	rows pgx.Rows
	err  error
}

func (r eachRow) Scan(to ...any) error {
	if r.err != nil {
		return r.err
	}
	_, err := pgx.CollectOneRow(r.rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(to...)
	})
	return err
}

// claims returns the claims of a token of this user and role.
func (s Subject) claims() (string, error) {
	if s.ID == "" {
		return "", errors.New("a subject needs an ID")
	}
	all := map[string]any{}
	if s.Claims != nil {
		given := map[string]json.RawMessage{}
		if err := json.Unmarshal(s.Claims, &given); err != nil {
			return "", fmt.Errorf("the claims of a subject must be a JSON object: %w", err)
		}
		for name, value := range given {
			all[name] = value
		}
	}
	delete(all, "role") // service_role would have no limits
	all["sub"] = s.ID
	if s.Role != "" {
		all["role"] = s.Role
	}
	text, err := json.Marshal(all)
	return string(text), err
}
