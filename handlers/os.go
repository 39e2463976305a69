package handlers

import (
	"context"
	"fmt"
	"strings"
)

// OS is the domain os: what an assistant keeps for its people. Its tools are written by subject: notes in os_notes.go,
// tasks and reminders in os_tasks.go, snapshots in os_state.go, the search in the journal in os_audit.go, health here.
//
// A row belongs to a domain of life: business, personal, or both. Asking for business finds what is business or both;
// asking for both, or for none, finds everything.
type OS struct{}

// HealthCheck asks whether the parts that tools stand on work.
type HealthCheck struct{}

// Health is the answer to [HealthCheck].
type Health struct {
	// Status is ok, degraded (some tools can not work) or down. A call that can not reach the database has no receipt
	// either, so down is never the answer of this handler.
	Status string            `json:"status"`
	Checks map[string]string `json:"checks"` // a part, and ok or what is wrong with it
}

// HealthCheck is os.health_check.
func (OS) HealthCheck(ctx context.Context, tx Tx, _ *Call, _ HealthCheck) (Health, error) {
	var missing []string
	err := tx.QueryRow(ctx, `select coalesce(array_agg(name order by name) filter (where to_regclass(name) is null), '{}')
		from unnest($1::text[]) as name`,
		[]string{"notes", "tasks", "reminders", "state_snapshots", "leads", "lead_sources", "lead_photo_links",
			"lead_stage_changes", "entities", "interactions", "comms_log"}).Scan(&missing)
	if err != nil {
		return Health{}, fmt.Errorf("ask the database: %w", err)
	}
	if len(missing) > 0 {
		return Health{Status: "degraded", Checks: map[string]string{
			"database": "ok",
			"tables":   "missing: " + strings.Join(missing, ", ") + "; run gem migrate",
		}}, nil
	}
	return Health{Status: "ok", Checks: map[string]string{"database": "ok", "tables": "ok"}}, nil
}
