package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// ServerChange is a change of the Postgres server, as the workers met it.
type ServerChange struct {
	Epoch int64     `json:"epoch"` // numbers the changes, with gaps
	At    time.Time `json:"at"`    // when the first worker met the server
	// Why is first, restart, promotion, restore (another cluster), or unknown.
	Why             string `json:"why"`
	Timeline        string `json:"timeline,omitempty"` // of Postgres: a promotion begins another one
	EarlierTimeline string `json:"earlier_timeline,omitempty"`
	// MayLackCommits reports whether ends of calls may have been lost. The others count them, as the workers that had
	// written them know: Restored receipts were written again, Unknown calls ended as outcome_unknown, RanTwice calls had
	// run again, Missing calls are gone, and Reran calls run again without harm.
	MayLackCommits bool `json:"may_lack_commits"`
	Restored       int  `json:"restored"`
	Unknown        int  `json:"unknown"`
	RanTwice       int  `json:"ran_twice"`
	Missing        int  `json:"missing"`
	Reran          int  `json:"reran"`
	// Calls are the calls of the first four counts, at most 10,000. Lists of changes do not have them.
	Calls []LostEnd `json:"calls,omitempty"`
}

// LostEnd is the end of an attempt that a server lacked.
type LostEnd struct {
	CallID    string    `json:"call_id"`
	Attempt   int       `json:"attempt"`
	WorkerID  string    `json:"worker_id"`
	Tool      string    `json:"tool"`
	What      string    `json:"what"` // restored, unknown, ran_twice or missing
	ReceiptID string    `json:"receipt_id,omitempty"`
	Found     string    `json:"found"` // the state in which the server had the call
	At        time.Time `json:"at"`
}

const mostServerChanges = 100

// ServerChanges returns the last 100 changes of the Postgres server, the newest first. GEM keeps them for 90 days.
func ServerChanges(ctx context.Context, db DB) ([]ServerChange, error) {
	changes, err := serverChanges(ctx, db, "true", mostServerChanges)
	if err != nil {
		return nil, fmt.Errorf("read the changes of the server: %w", err)
	}
	return changes, nil
}

// ReadServerChange returns a change of the Postgres server with its calls, or nil if it is not known.
func ReadServerChange(ctx context.Context, db DB, epoch int64) (*ServerChange, error) {
	changes, err := serverChanges(ctx, db, "s.epoch = $2", 1, epoch)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	rows, err := db.Query(ctx, `select call_id::text, attempt, worker_id, tool_name, what, receipt_id::text, found, at
		from gem.server_change_calls where epoch = $1 order by what, at, call_id`, epoch)
	if err != nil {
		return nil, err
	}
	changes[0].Calls, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l LostEnd, err error) {
		return l, row.Scan(&l.CallID, &l.Attempt, &l.WorkerID, &l.Tool, &l.What, (*zeronull.Text)(&l.ReceiptID), &l.Found,
			&l.At)
	})
	return &changes[0], err
}

func serverChanges(ctx context.Context, db DB, which string, most int, args ...any) ([]ServerChange, error) {
	rows, err := db.Query(ctx, `select row_to_json(s) from gem.server_changes s where `+which+
		` order by s.epoch desc limit $1`, append([]any{most}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[ServerChange])
}
