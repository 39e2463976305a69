package receipts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Pruning removes finished calls, with their receipts and journals, after writing them to an archive.
//
// It goes in small batches, a transaction each: a batch is removed, its lines are written and synced, and only then the
// removal commits. Whatever dies in between, a call is in the database, or in the archive, or in both.
type Pruning struct {
	// OlderThan is how long ago a call must have ended, by Postgres's clock.
	OlderThan time.Duration
	// Batch is how many calls are removed in a transaction. Default: 1000.
	Batch int
	// Archive gets a line for each call. nil: they are removed without a trace.
	Archive Archive
	// DryRun only counts.
	DryRun bool
	// Each, when set, is told after each batch what was done so far.
	Each func(Pruned)
}

// Archive keeps the lines of pruned calls; [ArchiveFile] is one.
type Archive interface {
	Add(line string) error // one call
	Sync() error           // returns when all lines so far are safe
}

// Pruned is what a [Pruning] did, or what a dry run would do.
type Pruned struct {
	EndedBefore time.Time
	Removed     int64
	// Kept calls are as old, and stay: another call that stays was made on their behalf or repeats their receipt, a running
	// call is about to, or another transaction has them locked.
	Kept int64
}

// Pool is what pruning needs of a pool of connections.
type Pool interface {
	Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

const (
	defaultBatch = 1000
	// pageSize is how many calls are looked at in a statement, to find those that are old enough.
	pageSize = 20_000
	// pruneDeadline bounds every statement.
	pruneDeadline = 2 * time.Minute
)

type callID = [16]byte

// Run prunes. After an error, what was removed until then is in the archive, and a second run goes on.
func (p Pruning) Run(ctx context.Context, db Pool) (done Pruned, err error) {
	if p.Batch <= 0 {
		p.Batch = defaultBatch
	}
	err = db.QueryRow(ctx, "select clock_timestamp() - make_interval(secs => $1)", p.OlderThan.Seconds()).Scan(&done.EndedBefore)
	if err != nil {
		return done, fmt.Errorf("ask for the time: %w", err)
	}
	var kept []callID
	place := pagePlace{at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}
	for !place.end {
		old, needed, err := nextPage(ctx, db, &place, done.EndedBefore)
		if err != nil {
			return done, err
		}
		done.Kept += needed
		if p.DryRun {
			done.Removed += int64(len(old))
			continue
		}
		stay, err := p.remove(ctx, db, old, &done)
		if err != nil {
			return done, err
		}
		kept = append(kept, stay...)
	}
	// What was needed by calls that came later in the walk can go now.
	for before := -1; len(kept) > 0 && len(kept) != before; {
		before = len(kept)
		if kept, err = p.remove(ctx, db, kept, &done); err != nil {
			return done, err
		}
	}
	done.Kept += int64(len(kept))
	return done, nil
}

// pagePlace is how far the walk over all calls has come.
type pagePlace struct {
	at  pgtype.Timestamptz
	id  callID
	end bool
}

// nextPage returns finished calls that ended before a time, the latest first, so that a call comes before those that it
// needs, and how many others as old are needed by younger ones.
//
// The walk goes over the first events by their time, for which there is an index: a call ended after it began. The journal
// of an imported call began when it was taken over, which was before any other call's, and perhaps after its end.
func nextPage(ctx context.Context, db Querier, place *pagePlace, before time.Time) (old []callID, needed int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pruneDeadline)
	defer cancel()
	rows, err := db.Query(ctx, `
		select e.call_id, e.at, e.event = 'imported',
			c.status in ('succeeded', 'failed', 'not_configured') and r.created_at < $3,
			exists (select from public.core_tool_receipts h where h.replay_of = r.id and h.created_at >= $3)
			or exists (
				select from public.core_tool_calls child left join public.core_tool_receipts cr on cr.call_id = child.id
				where child.parent_call_id = c.id and (cr.created_at < $3) is not true)
		from (
			select call_id, at, event from public.core_tool_events
			where seq = 1 and (at, call_id) > ($1, $2) order by at, call_id limit $4
		) e
		left join public.core_tool_calls c on c.id = e.call_id
		left join public.core_tool_receipts r on r.call_id = e.call_id
		order by e.at, e.call_id`, place.at, place.id, before, pageSize)
	if err != nil {
		return nil, 0, fmt.Errorf("look for old calls: %w", err)
	}
	var (
		imported, isNeeded bool
		isOld              pgtype.Bool // null without a receipt, or without a call
		looked             int
	)
	_, err = pgx.ForEachRow(rows, []any{&place.id, &place.at, &imported, &isOld, &isNeeded}, func() error {
		looked++
		place.end = place.end || !imported && !place.at.Time.Before(before)
		switch {
		case place.end || !isOld.Bool:
		case isNeeded:
			needed++
		default:
			old = append(old, place.id)
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("look for old calls: %w", err)
	}
	place.end = place.end || looked < pageSize
	slices.Reverse(old)
	return old, needed, nil
}

// remove removes calls in batches and returns those that stay.
func (p Pruning) remove(ctx context.Context, db Pool, calls []callID, done *Pruned) (kept []callID, err error) {
	for batch := range slices.Chunk(calls, p.Batch) {
		gone, err := p.removeBatch(ctx, db, batch)
		if err != nil {
			return nil, err
		}
		done.Removed += int64(len(gone))
		for _, id := range batch {
			if !gone[id] {
				kept = append(kept, id)
			}
		}
		if p.Each != nil {
			p.Each(*done)
		}
	}
	return kept, nil
}

// removeBatch is one transaction. Its removal commits after its lines are safe.
func (p Pruning) removeBatch(ctx context.Context, db Pool, batch []callID) (gone map[callID]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pruneDeadline)
	defer cancel()
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	columns := "call_id, line"
	if p.Archive == nil {
		columns = "call_id, ''"
	}
	rows, err := tx.Query(ctx, "select "+columns+" from gem.prune($1)", batch)
	if err != nil {
		return nil, fmt.Errorf("remove calls: %w", err)
	}
	gone = make(map[callID]bool, len(batch))
	var (
		id   callID
		line string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &line}, func() error {
		gone[id] = true
		if p.Archive == nil {
			return nil
		}
		if err := p.Archive.Add(line); err != nil {
			return &archiveError{err}
		}
		return nil
	})
	var archiving *archiveError
	switch {
	case errors.As(err, &archiving):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("remove calls: %w", err)
	}
	if p.Archive != nil {
		if err := p.Archive.Sync(); err != nil {
			return nil, &archiveError{err}
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("remove calls: %w", err)
	}
	return gone, nil
}

// archiveError says that the archive could not be written; the calls of the batch stay.
type archiveError struct{ err error }

func (e *archiveError) Error() string { return fmt.Sprintf("write the archive: %v", e.err) }
func (e *archiveError) Unwrap() error { return e.err }
