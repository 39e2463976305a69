package watch

import (
	"context"
	"time"
)

// Worker is a process, and what it holds.
type Worker struct {
	ID string `json:"id"`
	// State is alive, stopped, dead, or unknown for one that holds calls and has no row any more.
	State           string    `json:"state"`
	StartedAt       time.Time `json:"started_at,omitzero"`
	HeartbeatAt     time.Time `json:"heartbeat_at,omitzero"`
	StoppedAt       time.Time `json:"stopped_at,omitzero"`
	Slots           int       `json:"slots"`          // the calls that it runs at once, at most
	Holds           int       `json:"holds"`          // the calls that it runs
	Since           time.Time `json:"since,omitzero"` // the claim of the one that it holds longest
	GemVersion      string    `json:"gem_version,omitempty"`
	RegistryVersion string    `json:"registry_version,omitempty"`
	RulesVersion    string    `json:"rules_version,omitempty"` // empty: it runs without rules
	Calls           []Held    `json:"calls,omitempty"`         // those that it holds, the longest first, at most 20
}

// Held is a call that a worker runs.
type Held struct {
	ID        string    `json:"id"`
	Tool      string    `json:"tool"`
	Attempt   int       `json:"attempt"`
	ClaimedAt time.Time `json:"claimed_at"`
	Overdue   bool      `json:"overdue,omitempty"` // for longer than its tool may
}

// Workers returns the living workers, then those that died or stopped within the hour, at most 200.
func Workers(ctx context.Context, db DB) ([]Worker, error) { return nil, nil }
