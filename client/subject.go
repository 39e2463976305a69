package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Subject is a signed-in user, on whose behalf statements run: see [As].
type Subject struct {
	// ID is the token's `sub`, which becomes created_by of the user's calls. It is required.
	ID string
	// Role is the Postgres role whose rights the statements have: authenticated, or gem_frontend if that does not exist.
	// Empty means the rights of the connection itself, so that a connection as the owner of the tables sees the rows of
	// all users.
	Role string
	// Claims are the other claims of the token, a JSON object that policies may read; nil means none. Its `sub` and
	// `role` are ignored in favour of the fields above.
	Claims json.RawMessage
}

// As runs statements as a user, like PostgREST: in one transaction, with the user's role and `request.jwt.claims`, so
// that row level security, gem.limits and policies apply. It commits if do returns nil, and otherwise rolls back and
// returns that error. The transaction costs two round trips in addition to the statements of do. The connection keeps
// no state of the user, so the pool may use a pooler in transaction mode.
//
// The connection's role must be a member of the user's role. The role gem_mcp is such a member, and has no other
// rights.
func As(ctx context.Context, db *pgxpool.Pool, s Subject, do func(DB) error) error {
	claims, err := s.claims()
	if err != nil {
		return err
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release() // closes it if the transaction is still open
	quoted, err := conn.Conn().PgConn().EscapeString(claims)
	if err != nil {
		return err
	}
	begin := "begin; set local request.jwt.claims = '" + quoted + "'"
	if s.Role != "" {
		begin += "; set local role " + pgx.Identifier{s.Role}.Sanitize()
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error { return do(tx) })
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
