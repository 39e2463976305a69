package watch

import (
	"context"
	"encoding/json"
	"time"
)

// Tool is a tool of the registry in force, or one that had calls in the last 31 days.
type Tool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Registered  bool   `json:"registered"` // it is in the registry in force
	Frontends   bool   `json:"frontends"`  // signed-in users may call it
	// Mode and KeyField are its idempotency: none, safe-retry or keyed.
	Mode     string `json:"mode,omitempty"`
	KeyField string `json:"key_field,omitempty"`
	// Versions are those of the registries of living workers that have it, and Workers how many such workers there are.
	Versions []string `json:"versions,omitempty"`
	Workers  int      `json:"workers"`
	Day      Totals   `json:"day"`   // since midnight, UTC; without the times in the queue
	Month    Totals   `json:"month"` // the last 31 days, without durations
}

// ToolPage is all about one tool.
type ToolPage struct {
	Tool
	Entries []ToolEntry `json:"entries"` // by version of the registry, the newest first, at most 20
	Days    []ToolDay   `json:"days"`    // the last first
}

// ToolEntry is a tool's entry in one registry. Entries that are the same in several registries stand under each.
type ToolEntry struct {
	Version    string          `json:"version"`
	RecordedAt time.Time       `json:"recorded_at"`
	Workers    int             `json:"workers"` // living ones that run with it
	Entry      json.RawMessage `json:"entry"`
}

// ToolDay is a day of a tool, in UTC.
type ToolDay struct {
	Day string `json:"day"` // 2026-01-31
	Totals
}

// Tools returns the tools by name, at most 1,000.
func Tools(ctx context.Context, db DB) ([]Tool, error) { return nil, nil }

// ReadTool returns one tool, or nil if nothing is known of it.
func ReadTool(ctx context.Context, db DB, name string) (*ToolPage, error) { return nil, nil }
