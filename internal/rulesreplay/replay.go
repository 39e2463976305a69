// Package rulesreplay judges the calls of a database again. It uses either the rules that judged them, to verify the
// recorded decisions, or draft rules, to show their effect.
package rulesreplay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5"
)

// Beginner begins transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Report is the result of judging calls again by the rules that judged them.
type Report struct {
	Since time.Time `json:"since"`
	// Calls counts the calls since then that were claimed. Decisions counts the decisions that were computed again: places
	// in counters, delays, questions and ends.
	Calls       int          `json:"calls"`
	Decisions   int          `json:"decisions"`
	Differences []Difference `json:"differences"`
	// Unknown counts the calls that could not be computed again, by reason.
	Unknown map[string]int `json:"unknown,omitempty"`
}

// Difference is a decision that differs from the recorded one.
type Difference struct {
	CallID     string    `json:"call_id"`
	Tool       string    `json:"tool"`
	Version    string    `json:"rules_version"`
	At         time.Time `json:"at"` // the time for which it was computed again
	Recorded   string    `json:"recorded"`
	Recomputed string    `json:"recomputed"`
}

// Recorded computes the rules' decisions on the calls since a time again, in one read-only snapshot. The role must see
// all rows.
func Recorded(ctx context.Context, db Beginner, since time.Time) (*Report, error) {
	report := &Report{Since: since, Differences: []Difference{}, Unknown: map[string]int{}}
	err := snapshot(ctx, db, since, func(l *log) error {
		return l.each(ctx, func(c *call) error {
			report.Calls++
			again := recomputed{log: l, call: c, report: report, unknown: map[string]bool{}}
			again.all()
			for why := range again.unknown {
				report.Unknown[why]++
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// The reasons why a decision could not be computed again.
const (
	rowsPruned  = "rows of a counter were pruned"
	callsPruned = "earlier calls that it depends on may have been pruned"
	versionLost = "the rules or registry that judged it are not recorded"
	timeLost    = "the time of its judgement is not recorded"
	resultLost  = "its handler's result was not kept"
	placesTaken = "it depended on the calls that ran at that moment"
	startMissed = "it missed its start, and the row of its turn no longer names it"
	toolLost    = "its registry has no such tool"
)

// snapshot reads the log in one transaction.
func snapshot(ctx context.Context, db Beginner, since time.Time, do func(*log) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	settings := map[string]string{"row_security": "off", "timezone": "UTC", "search_path": "pg_catalog, pg_temp",
		"jit":                                 "off",
		"statement_timeout":                   strconv.FormatInt((15 * time.Minute).Milliseconds(), 10),
		"idle_in_transaction_session_timeout": "5min"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if _, err := tx.Exec(ctx, "select pg_catalog.set_config($1, $2, true)", name, settings[name]); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	l, err := read(ctx, tx, since)
	if err != nil {
		return err
	}
	return do(l)
}

// rulesCall returns the call in the form that rules judge. It returns false if its registry has no such tool.
func (l *log) rulesCall(c *call, registry string) (rules.Call, bool) {
	tools := l.tools[registry]
	if tools == nil {
		return rules.Call{}, false
	}
	tool, found := tools.Tool(c.Tool)
	return rules.Call{ID: c.ID, Tool: tool, Input: c.Input, SessionID: c.Session, CreatedBy: c.Caller,
		SignedIn: c.SignedIn, Child: c.Child}, found
}

func (c *call) atGate() rules.MemoryCall {
	return rules.MemoryCall{ID: c.ID, SessionID: c.Session, CreatedBy: c.Caller, CreatedAt: c.CreatedAt}
}
