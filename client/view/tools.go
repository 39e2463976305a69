package view

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Tool is a tool of the registry in force, or one with calls in the last 31 days.
type Tool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Registered  bool   `json:"registered"` // it is in the registry in force
	Frontends   bool   `json:"frontends"`  // signed-in users may call it
	// Mode and KeyField are its idempotency: none, safe-retry or keyed.
	Mode     string `json:"mode,omitempty"`
	KeyField string `json:"key_field,omitempty"`
	// Versions are the registries of living workers that have the tool, and Workers is the number of such workers.
	Versions []string `json:"versions,omitempty"`
	Workers  int      `json:"workers"`
	Day      Totals   `json:"day"`   // since midnight, UTC; without times in the queue
	Month    Totals   `json:"month"` // the last 31 days, without durations
}

// ToolPage is everything about one tool.
type ToolPage struct {
	Tool
	Entries []ToolEntry `json:"entries"` // by version of the registry, the newest first, at most 20
	Days    []ToolDay   `json:"days"`    // the last first
}

// ToolEntry is a tool's entry in one registry. An entry that is the same in several registries appears in each.
type ToolEntry struct {
	Version    string          `json:"version"`
	RecordedAt time.Time       `json:"recorded_at"`
	Workers    int             `json:"workers"` // living workers that run with it
	Entry      json.RawMessage `json:"entry"`
}

// ToolDay is a day of a tool, in UTC.
type ToolDay struct {
	Day string `json:"day"` // 2026-01-31
	Totals
}

const mostTools = 1000

// Tools returns the tools by name, at most 1,000.
func Tools(ctx context.Context, db DB) ([]Tool, error) {
	all, err := tools(ctx, db, "")
	if err != nil {
		return nil, fmt.Errorf("read the tools: %w", err)
	}
	return all, nil
}

// tools reads one tool, or all if name is empty. It adds the condition on the name only if needed: otherwise the
// planner would expect many rows.
func tools(ctx context.Context, db DB, name string) ([]Tool, error) {
	named := func(string) string { return "" }
	args := []any{mostTools}
	if name != "" {
		named = func(column string) string { return " and " + column + " = $2::text" }
		args = append(args, name)
	}
	rows, err := db.Query(ctx, `
		with served as materialized (
			select t ->> 'name' as name, array_agg(r.version order by r.recorded_at desc) as versions,
				sum(w.workers)::int as workers
			from (select registry_version, count(*) as workers from gem.workers where state = 'alive' group by 1) w
			join gem.registries r on r.version = w.registry_version, jsonb_array_elements(r.registry -> 'tools') t group by 1
		), today as materialized (
			select * from gem.outcomes o where o.day = (select (gem.now() at time zone 'UTC')::date)`+named("o.tool_name")+`
		), month as materialized (
			select * from gem.outcome_totals o where true`+named("o.tool_name")+`
		)
		select coalesce(t.name, m.tool_name), coalesce(t.entry ->> 'description', ''), t.name is not null,
			coalesce(t.frontends, false),
			coalesce(t.entry #>> '{idempotency,mode}', ''), coalesce(t.entry #>> '{idempotency,key_field}', ''), s.versions,
				coalesce(s.workers, 0),
			coalesce(d.succeeded, 0), coalesce(d.failed, 0), coalesce(d.refused, 0), coalesce(d.cancelled, 0),
				coalesce(d.not_configured, 0),
			coalesce(d.hits, 0), d.p50_ms::float8, d.p95_ms::float8,
			coalesce(m.succeeded, 0), coalesce(m.failed, 0), coalesce(m.refused, 0), coalesce(m.cancelled, 0),
				coalesce(m.not_configured, 0), coalesce(m.hits, 0)
		from (select * from gem.tools t where true`+named("t.name")+`) t full join month m on m.tool_name = t.name
		left join today d on d.tool_name = coalesce(t.name, m.tool_name) left join served s on s.name = t.name
		order by t.name is null, 1 limit $1`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]Tool{}, rows, func(row pgx.CollectableRow) (t Tool, err error) {
		d, m := &t.Day, &t.Month
		return t, row.Scan(&t.Name, &t.Description, &t.Registered, &t.Frontends, &t.Mode, &t.KeyField, &t.Versions,
			&t.Workers,
			&d.Succeeded, &d.Failed, &d.Refused, &d.Cancelled, &d.NotConfigured, &d.Hits, &d.P50MS, &d.P95MS,
			&m.Succeeded, &m.Failed, &m.Refused, &m.Cancelled, &m.NotConfigured, &m.Hits)
	})
}

// ReadTool returns one tool, or nil if it is unknown.
func ReadTool(ctx context.Context, db DB, name string) (*ToolPage, error) {
	page, err := readTool(ctx, db, name)
	if err != nil {
		return nil, fmt.Errorf("read the tool %s: %w", name, err)
	}
	return page, nil
}

func readTool(ctx context.Context, db DB, name string) (*ToolPage, error) {
	if name == "" || !valid(name) {
		return nil, nil
	}
	p := &ToolPage{Tool: Tool{Name: name}}
	if found, err := tools(ctx, db, name); err != nil {
		return nil, err
	} else if len(found) > 0 {
		p.Tool = found[0]
	}
	// A program may have recorded many registries: only the last hundred are read.
	rows, err := db.Query(ctx, `select r.version, r.recorded_at, r.workers, t::text
		from (select * from gem.registries order by recorded_at desc limit 100) r,
			jsonb_array_elements(r.registry -> 'tools') t
		where t ->> 'name' = $1::text order by r.recorded_at desc limit 20`, name)
	if err == nil {
		p.Entries, err = pgx.AppendRows([]ToolEntry{}, rows, func(row pgx.CollectableRow) (e ToolEntry, err error) {
			return e, row.Scan(&e.Version, &e.RecordedAt, &e.Workers, &e.Entry)
		})
	}
	if err == nil {
		rows, err = db.Query(ctx, `select day::text, succeeded, failed, refused, cancelled, not_configured, hits,
			p50_ms::float8, p95_ms::float8
			from gem.outcomes where tool_name = $1::text order by day desc`, name)
	}
	if err == nil {
		p.Days, err = pgx.AppendRows([]ToolDay{}, rows, func(row pgx.CollectableRow) (d ToolDay, err error) {
			return d, row.Scan(&d.Day, &d.Succeeded, &d.Failed, &d.Refused, &d.Cancelled, &d.NotConfigured, &d.Hits, &d.P50MS,
				&d.P95MS)
		})
	}
	if err != nil || !p.Registered && len(p.Entries) == 0 && len(p.Days) == 0 {
		return nil, err
	}
	return p, nil
}
