// Package client makes tool calls and reads their outcomes. It has all the operations on GEM's tables that a frontend,
// a command or a dashboard needs. It returns data instead of formatted text, and needs no worker in its process.
//
//	id, err := client.Enqueue(ctx, pool, client.NewCall{Tool: "leads.create", Input: lead})
//	receipt, err := client.Await(ctx, pool, id)
//
// Most functions take a [DB]. With a transaction, [Enqueue] inserts the call together with the caller's own rows, or
// not at all. Errors of Postgres are wrapped, so that errors.As finds a *pgconn.PgError: its message, detail and hint
// explain why the tables reject a call. Functions for a single call return a [*NotFoundError] if it does not exist,
// unless they say otherwise.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// DB is a pool, a connection or a transaction of pgx. A call inserted in a transaction runs after the commit, so wait
// for it only then.
type DB = handlers.DB

// NewCall is a call to insert. Only Tool is required.
type NewCall struct {
	// Tool is the name of a tool in the registry, such as leads.create: 1 to 200 characters. The worker checks that the
	// tool exists; the insert does not.
	Tool string
	// Input is encoded as JSON, which must be an object of at most 1 MiB; nil means {}.
	Input any
	// SessionID groups the calls of one conversation: at most 255 characters; empty means none.
	SessionID string
	// IdempotencyKey makes a call to a safe-retry tool return the result of an earlier successful call with the same key,
	// tool and caller: at most 255 characters; empty means none.
	IdempotencyKey string
	// CreatedBy is the user on whose behalf the call is made: at most 255 characters; empty means the token's user, if
	// there is a token.
	CreatedBy string
	// Priority is from -1000 to 1000; higher runs first. The default is 0.
	Priority int
	// RunAt is the earliest time to run, at most 366 days ahead; zero means at once.
	RunAt time.Time
	// Delay is the minimum delay before the call runs, by Postgres's clock: at most 366 days; 0 means that RunAt applies.
	Delay time.Duration
	// ParentCallID is the call on whose behalf this one is made; empty means none. A signed-in user may name only
	// their own calls, and only calls with fewer than eight calls above them.
	ParentCallID string
	// Traceparent is the W3C trace context of version 00 in which the call is made; empty means none.
	Traceparent string
	// ID is the call's id, a UUID that the caller chooses; empty means that Postgres generates one. If the same user
	// calls Enqueue again with the same ID, Tool, Input and IdempotencyKey, it returns the id and inserts nothing,
	// whatever the state of the call. An id that belongs to any other call is rejected (23505). A call with an ID belongs
	// to the user of the connection, so CreatedBy cannot be set. To make such a call for another user, use [As].
	ID string
	// Awaited requests a notification when the call ends, for a [Waiter]. It is a hint, which the database ignores if
	// a user has 64 such open calls.
	Awaited bool
}

// Enqueue inserts a call and returns its id. A worker runs it once the insert is committed.
func Enqueue(ctx context.Context, db DB, c NewCall) (id string, err error) {
	input, err := json.Marshal(c.Input)
	if err != nil {
		return "", fmt.Errorf("encode the input of %s: %w", c.Tool, err)
	}
	if string(input) == "null" {
		input = []byte("{}")
	}
	if c.ID != "" && c.CreatedBy != "" {
		return "", errors.New("a call with an ID is made by the user of the connection: CreatedBy cannot be set")
	}
	// Only given columns are named: a frontend may have rights on few columns.
	names, values, args := []string{"tool_name", "input"}, []string{"$1", "$2"}, []any{c.Tool, string(input)}
	set := func(given bool, name string, value any, sql string) {
		if given {
			args = append(args, value)
			names, values = append(names, name), append(values, fmt.Sprintf(sql, len(args)))
		}
	}
	set(c.ID != "", "id", c.ID, "$%d")
	set(c.SessionID != "", "session_id", c.SessionID, "$%d")
	set(c.IdempotencyKey != "", "idempotency_key", c.IdempotencyKey, "$%d")
	set(c.CreatedBy != "", "created_by", c.CreatedBy, "$%d")
	set(c.ParentCallID != "", "parent_call_id", c.ParentCallID, "$%d")
	set(c.Priority != 0, "priority", c.Priority, "$%d")
	set(c.Delay != 0, "run_at", c.Delay.Seconds(), "clock_timestamp() + pg_catalog.make_interval(secs => $%d)")
	set(c.Delay == 0 && !c.RunAt.IsZero(), "run_at", c.RunAt, "$%d")
	set(c.Traceparent != "", "traceparent", c.Traceparent, "$%d")
	set(c.Awaited, "awaited", true, "$%d")
	statement := "insert into public.core_tool_calls (" + strings.Join(names, ", ") + ") values (" +
		strings.Join(values, ", ") + ") returning id::text"
	if c.ID != "" { // the function checks whether it is the same call
		for i, name := range names {
			values[i] = name + " => " + values[i]
		}
		statement = "select public.enqueue_tool_call(" + strings.Join(values, ", ") + ")::text"
	}
	if err := db.QueryRow(ctx, statement, args...).Scan(&id); err != nil {
		return "", fmt.Errorf("insert a call to %s: %w", c.Tool, err)
	}
	return id, nil
}

// IdempotencyMode returns the mode of a tool: none, safe-retry or keyed. Workers record their registries in the
// database: the mode is empty if none of these contains the tool. If several contain it, those of live workers take
// precedence, and then the one that was recorded last.
func IdempotencyMode(ctx context.Context, db DB, tool string) (mode string, err error) {
	err = db.QueryRow(ctx, `
		select t.entry #>> '{idempotency,mode}'
		from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') t (entry)
		where t.entry ->> 'name' = $1
		order by exists (select from public.core_workers w where w.registry_version = v.version and `+alive+
		`) desc, v.recorded_at desc
		limit 1`, tool).Scan((*zeronull.Text)(&mode))
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return mode, err
}

// Await returns the receipt of a call as soon as it exists. It reads at intervals that grow from 20 ms to 250 ms, and
// checks every 5 s whether the call still exists. When ctx ends, it returns the error of ctx; the call itself
// continues.
func Await(ctx context.Context, db DB, id string) (*receipts.Receipt, error) {
	r, err := Receipt(ctx, db, id)
	looked := time.Now()
	for pause := 20 * time.Millisecond; errors.Is(err, ErrNoReceipt); pause = min(pause*5/4, 250*time.Millisecond) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		if time.Since(looked) > 5*time.Second {
			looked = time.Now()
			r, err = Receipt(ctx, db, id)
		} else {
			r, err = store.Receipt(ctx, db, id)
		}
	}
	return r, err
}

// MayHaveLost reports whether workers noticed a failover or a restore in which Postgres may have lost commits made
// after the given time. The role must own the tables, or be a member of gem_monitor or gem_mcp.
func MayHaveLost(ctx context.Context, db DB, since time.Time) (lost bool, err error) {
	if err = db.QueryRow(ctx, "select gem.may_have_lost($1)", since).Scan(&lost); err != nil {
		return false, fmt.Errorf("ask for lost commits: %w", err)
	}
	return lost, nil
}

// Cancellation is the result of [Cancel]: one of the constants, or the status of a call that had already ended.
type Cancellation string

const (
	// Cancelled means that the call was queued or waiting, and has ended with a receipt.
	Cancelled Cancellation = "cancelled"
	// CancelRequested means one of two things. Either the call is running, and its worker will end it by its next
	// heartbeat. Or the journal of the call already has steps, calls or waits, and its handler may clean up first. In
	// both cases, the call may still succeed.
	CancelRequested Cancellation = "requested"
)

// Cancel ends a call, or asks its worker to end it. It returns a [*NotFoundError] for an unknown call.
func Cancel(ctx context.Context, db DB, id string) (answer Cancellation, err error) {
	err = db.QueryRow(ctx, "select public.cancel_tool_call($1)", id).Scan(&answer)
	switch {
	case store.HasCode(err, "PT404"): // PostgREST returns 404 for it
		return "", notFound(ctx, db, id)
	case err != nil:
		return "", fmt.Errorf("cancel call %s: %w", id, err)
	}
	return answer, nil
}
