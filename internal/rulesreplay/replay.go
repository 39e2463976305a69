// Package rulesreplay judges the calls of a database again: by the rules that judged them, whose decisions must come out as they were
// recorded, and by a draft, to show what it would have done.
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

// Report is what came of judging calls again by the rules that judged them.
type Report struct {
	Since time.Time `json:"since"`
	// Calls were made since then and claimed; Decisions are what was computed again of them: places in counters, turns, questions and ends.
	Calls       int          `json:"calls"`
	Decisions   int          `json:"decisions"`
	Differences []Difference `json:"differences"`
	// Unknown counts calls that could not be computed again, by the reason.
	Unknown map[string]int `json:"unknown,omitempty"`
}

// Difference is a decision that comes out otherwise than it was recorded.
type Difference struct {
	CallID     string    `json:"call_id"`
	Tool       string    `json:"tool"`
	Version    string    `json:"rules_version"`
	At         time.Time `json:"at"` // as of when it was computed again
	Recorded   string    `json:"recorded"`
	Recomputed string    `json:"recomputed"`
}

// Recorded computes again what the rules decided of the calls that were made since a time, in one read-only snapshot. The role must see all rows.
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

// Words that name what could not be computed again.
const (
	rowsPruned  = "rows of a counter were pruned"
	callsPruned = "calls that it looks back at may have been pruned"
	versionLost = "it is not recorded by which rules or registry it was judged"
	timeLost    = "it is not recorded when it was judged"
	resultLost  = "what its handler returned was not kept"
	turnMissed  = "it missed its turn, whose place names no call any more"
	toolLost    = "its registry has no such tool"
)

// snapshot reads the log in one transaction.
func snapshot(ctx context.Context, db Beginner, since time.Time, do func(*log) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	settings := map[string]string{"row_security": "off", "timezone": "UTC", "search_path": "pg_catalog, pg_temp", "jit": "off",
		"statement_timeout": strconv.FormatInt((15 * time.Minute).Milliseconds(), 10), "idle_in_transaction_session_timeout": "5min"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if _, err := tx.Exec(ctx, "select set_config($1, $2, true)", name, settings[name]); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	l, err := read(ctx, tx, since)
	if err != nil {
		return err
	}
	return do(l)
}

// rulesCall is what rules see of a call; false if its registry has no such tool.
func (l *log) rulesCall(c *call, registry string) (rules.Call, bool) {
	tools := l.tools[registry]
	if tools == nil {
		return rules.Call{}, false
	}
	tool, found := tools.Tool(c.Tool)
	return rules.Call{ID: c.ID, Tool: tool, Input: c.Input, SessionID: c.Session, CreatedBy: c.Caller, SignedIn: c.SignedIn, Child: c.Child}, found
}

func (c *call) atGate() rules.MemoryCall {
	return rules.MemoryCall{ID: c.ID, SessionID: c.Session, CreatedBy: c.Caller, CreatedAt: c.CreatedAt}
}
