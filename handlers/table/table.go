// Package table runs the statements of tools that keep rows in Postgres, and records their effects on the call.
//
// Its tables have a uuid named id as their key, like the tables of GEM's domains.
package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
)

// Insert runs a statement that inserts one row and returns its id as text.
func Insert(ctx context.Context, tx handlers.DB, call *handlers.Call, table, sql string, args ...any) (id string,
	err error) {
	if err := tx.QueryRow(ctx, sql, args...).Scan(&id); err != nil {
		return "", fmt.Errorf("insert into %s: %w", table, err)
	}
	call.Wrote(table, handlers.Insert, id)
	return id, nil
}

// Row runs a statement about the row id, which is its $1; args are the other arguments. It scans the row that the
// statement returns into dest. If the statement returns no row, or id is not a uuid, the error is [handlers.NotFound].
// The caller records the effects.
func Row(ctx context.Context, tx handlers.DB, table, id, sql string, args []any, dest ...any) error {
	if !value.IsUUID(id) {
		return handlers.NotFound(table, receipts.Shorten(id, 100))
	}
	err := tx.QueryRow(ctx, sql, append([]any{id}, args...)...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return handlers.NotFound(table, id)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return nil
}

// Update runs an update of the row id, like [Row], and returns the id that the statement returns.
func Update(ctx context.Context, tx handlers.DB, call *handlers.Call, table, id, sql string,
	args ...any) (updated string, err error) {
	if err := Row(ctx, tx, table, id, sql, args, &updated); err != nil {
		return "", err
	}
	call.Wrote(table, handlers.Update, updated)
	return updated, nil
}

// Patch runs an update whose $2 is a patch that [value.ReadPatch] accepted. An empty patch only looks up the row, in
// the table as named here: with its schema, otherwise by the search path. The effects leave out the schema public.
func Patch(ctx context.Context, tx handlers.DB, call *handlers.Call, table, id string, patch json.RawMessage,
	columns map[string]value.Rule, sql string, args ...any) (found string, err error) {
	values, err := value.ReadPatch(patch, columns)
	if err != nil {
		return "", err
	}
	name := strings.TrimPrefix(table, "public.")
	if len(values) > 0 {
		return Update(ctx, tx, call, name, id, sql, append([]any{values}, args...)...)
	}
	if err := Row(ctx, tx, name, id, "select id::text from "+table+" where id = $1", nil, &found); err != nil {
		return "", err
	}
	call.Read(name, 1)
	return found, nil
}

// List runs a query whose columns are the fields of T, in order.
func List[T any](ctx context.Context, tx handlers.DB, call *handlers.Call, table, sql string, args ...any) ([]T,
	error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	call.Read(table, len(found))
	return found, nil
}

// Null converts an empty string to null.
func Null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// NullJSON converts an absent or null value to SQL's null.
func NullJSON(raw json.RawMessage) *json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return &raw
}
