package archive

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PruneOptions say which calls [Prune] removes, and how.
type PruneOptions struct {
	// OlderThan is how long ago a call must have ended, on Postgres's clock.
	OlderThan time.Duration
	// Batch is how many calls a transaction removes. Default: 1000.
	Batch int
	// Archive gets a line for each removed call. If it is nil, removed calls are not archived.
	Archive Writer
	// KeepKeys is how long after a call's end its key still counts: a call with the key of a removed success repeats its
	// result. Default: as long as the call itself is there.
	KeepKeys time.Duration
	// DryRun only counts.
	DryRun bool
	// Each, if set, is called after each batch with the totals so far.
	Each func(Pruned)
}

// Writer keeps the lines of pruned calls, as a [File] and [Objects] do.
type Writer interface {
	Add(ctx context.Context, line string) error // adds the line of one call
	Sync(ctx context.Context) error             // returns when all lines so far are safe
}

// Pruned counts the calls that [Prune] removed, or that a dry run would remove.
type Pruned struct {
	EndedBefore time.Time // only calls that ended before it are removed
	Removed     int64
	// Kept counts calls that are as old and stay: another call that stays is their child or repeats their receipt, a
	// running call holds their key, or another transaction has locked them.
	Kept int64
	// TooLong are calls that stay because Postgres cannot write their lines, which would take a gigabyte.
	TooLong []string
	// Counted counts rows of the counters of rules at which no rule looks any more. They are not archived.
	Counted int64
	// Forgotten counts, by its domain, what a domain removed of its own tables, such as documents. It is not archived.
	Forgotten map[string]int64
}

// DB is a pool of connections to a database.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

const (
	// pageSize is the number of calls that one statement reads to find old ones.
	pageSize = 20_000
	// forgottenPage is how many rows of counters, facts of hooks, or budgets, one statement removes.
	forgottenPage = 50_000
	// domainPage is how much of its own a domain removes in one statement, which may be large.
	domainPage = 500
	// pruneTimeout bounds every statement.
	pruneTimeout = 2 * time.Minute
	// batchTimeout bounds every batch: its statement, and three tries of a minute each to store its lines.
	batchTimeout = 6 * time.Minute
)

// Prune removes finished calls with their receipts and journals, after writing them to the archive.
//
// It works in small batches with a transaction each: gem.prune removes the calls, their lines are written and synced,
// and only then the transaction commits. After a crash at any point, every call is in the database, in the archive, or
// in both. After an error, Pruned counts the removed calls; calling Prune again continues. At the end it removes old
// rows of the rules' counters, of hooks, of budgets and of domains.
func Prune(ctx context.Context, db DB, o PruneOptions) (Pruned, error) {
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	p := pruner{PruneOptions: o, db: db}
	err := p.run(ctx)
	return p.done, err
}

// LookBack returns the longest time that current rules look back, and the version of those rules. Current are the rules
// that were recorded last, and those of workers that run or ran within the last hour. It returns 0 without rules.
func LookBack(ctx context.Context, db DB) (longest time.Duration, version string, err error) {
	var seconds float64
	err = db.QueryRow(ctx, `
		select coalesce(max(extract(epoch from v.longest)), 0)::float8,
			coalesce((array_agg(v.version order by v.longest desc))[1], '')
		from public.core_rules_versions v
		where v.version = (select l.version from public.core_rules_versions l order by l.recorded_at desc limit 1)
			or exists (select from public.core_workers w where w.rules_version = v.version)`).Scan(&seconds, &version)
	if err != nil {
		return 0, "", fmt.Errorf("find how long rules look back: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), version, nil
}

type pruner struct {
	PruneOptions
	db   DB
	done Pruned
	// How far the walk over all calls has come.
	at    time.Time
	id    callID
	ended bool
}

type callID = [16]byte

func (p *pruner) run(ctx context.Context) error {
	err := p.db.QueryRow(ctx, "select pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1)",
		p.OlderThan.Seconds()).Scan(&p.done.EndedBefore)
	if err != nil {
		return fmt.Errorf("read the time: %w", err)
	}
	var kept []callID
	for !p.ended {
		old, err := p.nextPage(ctx)
		if err != nil {
			return fmt.Errorf("find old calls: %w", err)
		}
		if p.DryRun {
			p.done.Removed += int64(len(old))
			continue
		}
		stay, err := p.remove(ctx, old)
		if err != nil {
			return err
		}
		kept = append(kept, stay...)
	}
	// Calls that were needed by calls of a later page can go now.
	for before := -1; len(kept) > 0 && len(kept) != before; {
		before = len(kept)
		if kept, err = p.remove(ctx, kept); err != nil {
			return err
		}
	}
	p.done.Kept += int64(len(kept))
	if p.DryRun {
		return nil
	}
	if p.done.Counted, err = p.forget(ctx, forgottenPage, "select gem.prune_rule_runs($1)"); err != nil {
		return fmt.Errorf("remove old rows of the rules' counters: %w", err)
	}
	if _, err = p.forget(ctx, forgottenPage, "select gem.prune_rule_places($1)"); err != nil {
		return fmt.Errorf("remove old rows of the rules' places: %w", err)
	}
	if p.KeepKeys > 0 {
		before := p.done.EndedBefore.Add(p.OlderThan - p.KeepKeys)
		if _, err = p.forget(ctx, forgottenPage, "select gem.prune_kept_keys($1, $2)", before); err != nil {
			return fmt.Errorf("remove old keys: %w", err)
		}
	}
	if _, err = p.forget(ctx, forgottenPage, "select gem.prune_occurrences($1, $2)", p.done.EndedBefore); err != nil {
		return fmt.Errorf("remove old occurrences of schedules: %w", err)
	}
	if _, err = p.forget(ctx, forgottenPage, "select gem.prune_hook_events($1)"); err != nil {
		return fmt.Errorf("remove old facts of hooks: %w", err)
	}
	if _, err = p.forget(ctx, forgottenPage, "select gem.prune_llm_spend($1)"); err != nil {
		return fmt.Errorf("remove old budgets of models: %w", err)
	}
	return p.forgetOfDomains(ctx)
}

// forgetOfDomains calls each function gem_<domain>.prune(timestamptz, integer): those of domains whose rows leave by
// age, which are there if the domain's tables are. Only functions of the owner of gem.prune count, whom this trusts
// already.
func (p *pruner) forgetOfDomains(ctx context.Context) error {
	rows, _ := p.db.Query(ctx, `
		select n.nspname from pg_catalog.pg_proc f join pg_catalog.pg_namespace n on n.oid = f.pronamespace
		where f.proname = 'prune'::name and n.nspname::text like 'gem\_%'
			and pg_catalog.oidvectortypes(f.proargtypes) = 'timestamp with time zone, integer'
			and f.proowner = (select o.proowner from pg_catalog.pg_proc o
				where o.oid = 'gem.prune(uuid[], boolean, boolean)'::regprocedure::oid)
		order by 1`)
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("find what domains prune: %w", err)
	}
	for _, schema := range schemas {
		removed, err := p.forget(ctx, domainPage, "select "+pgx.Identifier{schema, "prune"}.Sanitize()+"($2, $1)",
			p.done.EndedBefore)
		if removed > 0 {
			if p.done.Forgotten == nil {
				p.done.Forgotten = map[string]int64{}
			}
			p.done.Forgotten[strings.TrimPrefix(schema, "gem_")] = removed
		}
		if err != nil {
			return fmt.Errorf("remove old rows with %s.prune: %w", schema, err)
		}
	}
	return nil
}

// forget removes rows that no call names, with a statement whose $1 is how many it may remove, until there are no more.
// A statement passes over the last rows of counters that nobody counts at any more, which stay while their calls do, so
// one removes many.
func (p *pruner) forget(ctx context.Context, page int, sql string, args ...any) (all int64, err error) {
	for removed := page; removed == page; all += int64(removed) {
		within, cancel := context.WithTimeout(ctx, pruneTimeout)
		err := p.db.QueryRow(within, sql, append([]any{page}, args...)...).Scan(&removed)
		cancel()
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// nextPage returns finished calls that ended before the time, the latest first, so that a call comes before the calls
// that it needs. It counts the calls that younger calls need as kept.
//
// It reads the first events by their time, for which there is an index: no call ends before its first event, except
// imported calls. Their journals began at the import, before those of all other calls.
func (p *pruner) nextPage(ctx context.Context) (old []callID, err error) {
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	// An error of a query is that of its rows.
	rows, _ := p.db.Query(ctx, `
		select e.call_id, e.at, e.event = 'imported',
			coalesce(c.status in ('succeeded', 'failed', 'not_configured') and r.created_at < $3, false),
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
		order by e.at, e.call_id`, p.at, p.id, p.done.EndedBefore, pageSize)
	var (
		imported, isOld, isNeeded bool
		read                      int
	)
	_, err = pgx.ForEachRow(rows, []any{&p.id, &p.at, &imported, &isOld, &isNeeded}, func() error {
		read++
		p.ended = p.ended || !imported && !p.at.Before(p.done.EndedBefore)
		switch {
		case p.ended || !isOld:
		case isNeeded:
			p.done.Kept++
		default:
			old = append(old, p.id)
		}
		return nil
	})
	p.ended = p.ended || read < pageSize
	slices.Reverse(old)
	return old, err
}

// remove removes calls in batches and returns the calls that stay.
func (p *pruner) remove(ctx context.Context, calls []callID) (kept []callID, err error) {
	for batch := range slices.Chunk(calls, p.Batch) {
		gone, err := p.removeBatch(ctx, batch)
		if store.IsTooLong(err) {
			gone, err = p.removeEach(ctx, batch)
		}
		if err != nil {
			return nil, fmt.Errorf("remove calls: %w", err)
		}
		p.done.Removed += int64(len(gone))
		kept = append(kept, slices.DeleteFunc(batch, func(id callID) bool { return gone[id] })...)
		if p.Each != nil {
			p.Each(p.done)
		}
	}
	return kept, nil
}

// removeEach removes the calls of a batch one by one. A call whose line is too long for Postgres stays.
func (p *pruner) removeEach(ctx context.Context, batch []callID) (gone map[callID]bool, err error) {
	gone = make(map[callID]bool, len(batch))
	for _, id := range batch {
		one, err := p.removeBatch(ctx, []callID{id})
		switch {
		case store.IsTooLong(err):
			if long := (pgtype.UUID{Bytes: id, Valid: true}).String(); !slices.Contains(p.done.TooLong, long) {
				p.done.TooLong = append(p.done.TooLong, long)
			}
		case err != nil:
			return nil, err
		}
		maps.Copy(gone, one)
	}
	return gone, nil
}

// removeBatch is one transaction, which commits after its lines are safe.
func (p *pruner) removeBatch(ctx context.Context, batch []callID) (gone map[callID]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	gone = make(map[callID]bool, len(batch))
	err = pgx.BeginTxFunc(ctx, p.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, "select call_id, coalesce(line, '') from gem.prune($1, $2, $3)",
			batch, p.Archive != nil, p.KeepKeys > 0)
		var (
			id   callID
			line string
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &line}, func() error {
			gone[id] = true
			if p.Archive == nil {
				return nil
			}
			return inArchive(p.Archive.Add(ctx, line))
		})
		if err == nil && p.Archive != nil {
			err = inArchive(p.Archive.Sync(ctx))
		}
		return err
	})
	return gone, err
}

// inArchive says of an error that the archive cannot be written.
func inArchive(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write the archive: %w", err)
}
