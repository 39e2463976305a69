package watch

import (
	"context"
	"time"
)

// Overview says how things stand.
type Overview struct {
	At    time.Time `json:"at"` // by Postgres's clock
	Queue Queue     `json:"queue"`
	Tools []Depth   `json:"tools"` // the queue by tool, those with most ready calls first, at most 50
	// Workers counts the processes that are alive; Slots the calls that they run at once, at most.
	Workers WorkerCounts `json:"workers"`
	Hour    Totals       `json:"hour"` // the last 60 minutes
	Day     Totals       `json:"day"`  // the last 24 hours
	// Failures are those of the last hour, the most frequent first, at most 10.
	Failures []Failure `json:"failures"`
	// Questions counts the calls that wait for somebody's answer, up to 1,000; the first was asked at QuestionsSince.
	Questions      int       `json:"questions"`
	QuestionsSince time.Time `json:"questions_since,omitzero"`
	// Needs is what needs someone, the most urgent first.
	Needs []Need `json:"needs"`
}

// Queue counts the calls that have not ended. AtLeast says that there may be more: of each state 25,000 are counted.
type Queue struct {
	Ready     int `json:"ready"`
	Scheduled int `json:"scheduled"`
	Waiting   int `json:"waiting"`
	Running   int `json:"running"`
	// OldestReady is since when the call that is due longest could run; zero if none could. NextScheduled is when the next is due.
	OldestReady   time.Time      `json:"oldest_ready,omitzero"`
	NextScheduled time.Time      `json:"next_scheduled,omitzero"`
	WaitingFor    map[string]int `json:"waiting_for,omitempty"` // by what they wait for: key, call, answer, time, code
	AtLeast       bool           `json:"at_least,omitempty"`
}

// Depth is the queue of one tool.
type Depth struct {
	Tool string `json:"tool"`
	Queue
}

// WorkerCounts sums up the workers.
type WorkerCounts struct {
	Alive    int `json:"alive"`
	Dead     int `json:"dead"`
	Slots    int `json:"slots"`
	Running  int `json:"running"`
	Versions int `json:"registry_versions"` // how many registries the living ones run with
}

// Totals sums up the calls that ended within some time, as far as they are counted: the last 15 s or so are not.
type Totals struct {
	Succeeded     int64 `json:"succeeded"`
	Failed        int64 `json:"failed"`
	NotConfigured int64 `json:"not_configured"`
	Hits          int64 `json:"hits"` // of those that succeeded
	// P50MS and P95MS are the durations below which half and 95 % of the calls stayed, without hits; QueueP50MS and QueueP95MS how long calls
	// had been due when they were claimed. They are true within an eighth; nil if no call was measured.
	P50MS      *float64 `json:"p50_ms,omitempty"`
	P95MS      *float64 `json:"p95_ms,omitempty"`
	QueueP50MS *float64 `json:"queue_p50_ms,omitempty"`
	QueueP95MS *float64 `json:"queue_p95_ms,omitempty"`
}

// Need is something that needs someone.
type Need struct {
	// Kind is
	//	no_worker        calls are ready, and no worker is alive
	//	overdue          a call runs for longer than its tool may: CallID is the first, WorkerID its worker
	//	dead_holds       a dead worker holds calls, and no other is alive to take them
	//	outcome_unknown  calls of the last day ended so: somebody should look whether they took effect; CallID is the last
	//	question         calls wait for somebody's answer; CallID is the first
	//	code             calls wait for a program that can go on with them; CallID is the first
	//	two_registries   the living workers run with different registries
	//	slow_queue       a call has been ready for more than a minute
	//	failing          more than a tenth, and at least 10, of a tool's calls of the last hour failed
	Kind     string    `json:"kind"`
	Count    int       `json:"count,omitempty"`
	Tool     string    `json:"tool,omitempty"`
	CallID   string    `json:"call_id,omitempty"`
	WorkerID string    `json:"worker_id,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// ReadOverview reads how things stand.
func ReadOverview(ctx context.Context, db DB) (*Overview, error) { return &Overview{}, nil }
