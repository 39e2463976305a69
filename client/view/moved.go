package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mark changes each time a call's row changes, and when its handler reports progress. It is zero for a call that does
// not exist.
type Mark struct {
	Status    string
	Events    int
	UpdatedAt time.Time
	Progress  int64
}

// Runs reports whether more than the mark may change: the calls that its handler made, and its requests to models.
func (m Mark) Runs() bool { return m.Status == "running" || m.Status == "waiting" }

// Moved returns the marks of calls in one statement, by id: at most 1,000.
func Moved(ctx context.Context, db DB, ids []string) (map[string]Mark, error) {
	rows, err := db.Query(ctx, `select id::text, status, events, updated_at, coalesce(progress, 0) from gem.calls
		where id = any($1::text[]::uuid[])`, ids[:min(len(ids), 1000)])
	if err != nil {
		return nil, fmt.Errorf("read which calls changed: %w", err)
	}
	marks := map[string]Mark{}
	var id string
	var m Mark
	_, err = pgx.ForEachRow(rows, []any{&id, &m.Status, &m.Events, &m.UpdatedAt, &m.Progress}, func() error {
		marks[id] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read which calls changed: %w", err)
	}
	return marks, nil
}
