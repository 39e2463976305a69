// Package os is the domain os: the records that an assistant keeps for its people. It has notes, tasks and reminders,
// snapshots of the current state, a search in the journal, and a health check.
//
// A row belongs to a domain of life: business, personal, or both. A search in business finds rows that are business or
// both; a search in both, or without a domain, finds everything. In the call of a signed-in user, the tools find and
// change only personal rows that this user's calls made.
package os

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers"
)

// OS has the tools of the domain.
type OS struct {
	tables []string // of all domains for which the program keeps tables; never null
}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain os.
func Domain() handlers.Domain {
	o := &OS{}
	return handlers.Domain{
		Tools: o,
		Open: func(env handlers.Env) error {
			o.tables = append([]string{}, env.Tables...)
			return nil
		},
		Tables: tables,
		Grants: []string{
			"select, insert, update on public.notes",
			"select, insert, update on public.tasks",
			"select, insert, update on public.reminders",
			"select, insert, update on public.state_snapshots",
		},
	}
}

// HealthCheck checks whether the database can serve the tools.
type HealthCheck struct{}

// Health is the result of [HealthCheck].
type Health struct {
	// Status is ok, degraded (some tools cannot work) or down. A call that cannot reach the database has no receipt, so
	// this handler never answers down.
	Status string            `json:"status"`
	Checks map[string]string `json:"checks"` // a part, and ok or its fault
}

// HealthCheck is os.health_check. It looks for the tables of all domains.
func (o *OS) HealthCheck(ctx context.Context, tx handlers.Tx, _ *handlers.Call, _ HealthCheck) (Health, error) {
	var missing []string
	err := tx.QueryRow(ctx, `select coalesce(pg_catalog.array_agg(name
		order by name) filter (where to_regclass(name) is null), '{}')
		from pg_catalog.unnest($1::text[]) as name`, o.tables).Scan(&missing)
	if err != nil {
		return Health{}, fmt.Errorf("ask the database: %w", err)
	}
	health := Health{Status: "ok", Checks: map[string]string{"database": "ok", "tables": "ok"}}
	if len(missing) > 0 {
		health.Status = "degraded"
		health.Checks["tables"] = "missing: " + strings.Join(missing, ", ") + "; run gem migrate"
	}
	return health, nil
}

// reader returns the user whose personal rows a call may use; nil if it may use all of them, since no signed-in user
// made it.
func reader(call *handlers.Call) *string {
	if !call.SignedIn {
		return nil
	}
	return &call.CreatedBy
}

// mayUse returns the condition under which [reader], the argument with that number, may use a row of notes, tasks or
// reminders.
func mayUse(argument int) string {
	return fmt.Sprintf("($%[1]d::text is null or domain <> 'personal' or created_by = $%[1]d)", argument)
}
