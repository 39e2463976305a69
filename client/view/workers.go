package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Worker is a process, and the calls that it holds.
type Worker struct {
	ID string `json:"id"`
	// State is alive, stopped, dead, or unknown for a worker that holds calls but has no row any more.
	State           string    `json:"state"`
	StartedAt       time.Time `json:"started_at,omitzero"`
	HeartbeatAt     time.Time `json:"heartbeat_at,omitzero"`
	StoppedAt       time.Time `json:"stopped_at,omitzero"`
	Slots           int       `json:"slots"`          // the number of calls that it can run at once
	Holds           int       `json:"holds"`          // the number of calls that it runs
	Since           time.Time `json:"since,omitzero"` // when it claimed the call that it has held longest
	GemVersion      string    `json:"gem_version,omitempty"`
	RegistryVersion string    `json:"registry_version,omitempty"`
	RulesVersion    string    `json:"rules_version,omitempty"` // empty if it runs without rules
	// ClaimsNothing means that it runs without rules and the database requires them.
	ClaimsNothing bool   `json:"claims_nothing,omitempty"`
	Calls         []Held `json:"calls,omitempty"` // the calls that it holds, the longest first, at most 20
}

// Held is a call that a worker runs.
type Held struct {
	ID        string    `json:"id"`
	Tool      string    `json:"tool"`
	Attempt   int       `json:"attempt"`
	ClaimedAt time.Time `json:"claimed_at"`
	Overdue   bool      `json:"overdue,omitempty"` // for longer than its tool may
}

const (
	mostWorkers = 200
	mostHeld    = 20
)

// Workers returns at most 200 workers: the living ones, then the ones that died or stopped within the hour.
func Workers(ctx context.Context, db DB) ([]Worker, error) {
	all, err := workers(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read the workers: %w", err)
	}
	return all, nil
}

func workers(ctx context.Context, db DB) ([]Worker, error) {
	rows, err := db.Query(ctx, `select w.worker_id, w.state, w.started_at, gem.now() - w.last_heartbeat, w.stopped_at,
		coalesce(w.concurrency, 0), w.holds,
			gem.now() - w.longest, w.gem_version, w.registry_version, w.rules_version, w.claims_nothing
		from gem.workers w order by w.state <> 'alive', w.holds = 0, w.started_at desc, w.worker_id limit $1`, mostWorkers)
	if err != nil {
		return nil, err
	}
	ids, places := []string{}, map[string]int{}
	all, err := pgx.AppendRows([]Worker{}, rows, func(row pgx.CollectableRow) (w Worker, err error) {
		err = row.Scan(&w.ID, &w.State, (*zeronull.Timestamptz)(&w.StartedAt), (*zeronull.Timestamptz)(&w.HeartbeatAt),
			(*zeronull.Timestamptz)(&w.StoppedAt), &w.Slots,
			&w.Holds, (*zeronull.Timestamptz)(&w.Since), (*zeronull.Text)(&w.GemVersion), (*zeronull.Text)(&w.RegistryVersion),
			(*zeronull.Text)(&w.RulesVersion), &w.ClaimsNothing)
		if w.Holds > 0 {
			ids = append(ids, w.ID)
		}
		places[w.ID] = len(places)
		return w, err
	})
	if err != nil {
		return nil, err
	}
	rows, err = db.Query(ctx, `select w.id, c.id::text, coalesce(c.tool_name, ''), c.attempt, c.claimed_at,
		c.id in (select o.call_id from gem.overdue o)
		from unnest($1::text[]) w (id) cross join lateral (
			select * from gem.calls c where c.status = 'running' and c.claimed_by = w.id order by c.claimed_at, c.id limit $2) c
		order by c.claimed_at, c.id`, ids, mostHeld)
	if err != nil {
		return nil, err
	}
	var worker string
	var h Held
	_, err = pgx.ForEachRow(rows, []any{&worker, &h.ID, &h.Tool, &h.Attempt, &h.ClaimedAt, &h.Overdue}, func() error {
		w := &all[places[worker]]
		w.Calls = append(w.Calls, h)
		return nil
	})
	return all, err
}
