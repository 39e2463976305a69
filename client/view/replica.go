package view

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Replica reads lists from a standby of the database, and from the primary while the standby cannot be used.
type Replica struct {
	pool *pgxpool.Pool

	mu     sync.Mutex
	until  time.Time // source is reused until this time
	source Source
	same   bool // its workers are those of the primary
}

// NewReplica uses the standby to which a pool connects. Its login needs the rights of gem_monitor.
func NewReplica(standby *pgxpool.Pool) *Replica { return &Replica{pool: standby} }

// Source is where a list was read.
type Source struct {
	// Standby means that it was read from the standby.
	Standby bool
	// Age is the age of the newest heartbeat on the standby, measured up to a second before the read began.
	Age time.Duration
	// Why is the reason that the standby was not used, as the predicate of a sentence; empty if it was used.
	Why string
}

// String is a sentence for people.
func (s Source) String() string {
	if s.Why != "" {
		return "Read from the primary: the standby " + s.Why + "."
	}
	return fmt.Sprintf("Read from the standby, whose newest heartbeat is %s old.", s.Age.Round(time.Second))
}

const (
	// mostAge is the age above which a standby is not used.
	mostAge = time.Minute
	// checkTimeout is how long a standby may take to accept a connection and report its age.
	checkTimeout = 3 * time.Second
	// readTimeout is how long a standby may take for all statements of a read.
	readTimeout = 6 * time.Second
	// fresh and broken are how long the result of a check is reused: if the standby reported its age, and if it did not.
	fresh, broken = time.Second, 5 * time.Second
)

// Read calls the function [Read] on the standby, or on the primary if the standby's data is older than a minute, or it
// cannot be read or is itself a primary. If do fails on the standby, it runs again on the primary, since replay may
// have cancelled it, or the standby may lack the newest rows. It does not run again if a statement timed out.
func (r *Replica) Read(ctx context.Context, primary *pgxpool.Pool, do func(ctx context.Context, db DB) error) (Source,
	error) {
	source := r.Check(ctx, primary)
	if source.Standby {
		limited, cancel := context.WithTimeout(ctx, readTimeout) // a frozen server ends no statement itself
		failed := Read(limited, r.pool, do)
		cancel()
		if failed == nil || ctx.Err() != nil || store.HasCode(failed, "57014") {
			return source, failed
		}
		if err := Read(ctx, primary, do); err != nil {
			return Source{}, err // the error is not specific to the standby
		}
		return r.unusable("failed: " + pgpool.Reason(failed)), nil
	}
	return source, Read(ctx, primary, do)
}

// Check returns whether the standby can be used. It asks the standby at most once a second. Until it has learned that
// both are of the same database, it also asks the primary.
func (r *Replica) Check(ctx context.Context, primary *pgxpool.Pool) Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return r.source
	}
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var standby bool
	var age *float64
	var worker *string
	err := r.pool.QueryRow(within, `select pg_catalog.pg_is_in_recovery(), extract(epoch from w.last_heartbeat)::float8,
		w.worker_id from (values (1)) one left join (select * from gem.workers w where w.last_heartbeat is not null
			order by w.last_heartbeat limit 1) w on true`).Scan(&standby, &age, &worker)
	other := false
	if err == nil && standby && worker != nil && !r.same {
		// A primary that cannot be reached does not say.
		other = primary.QueryRow(within, "select exists (select from gem.workers w where w.worker_id = $1)", *worker).
			Scan(&r.same) == nil && !r.same
	}
	if ctx.Err() != nil {
		return Source{Why: "was not asked"} // the caller does not wait any more
	}
	s, keep := Source{}, broken
	switch {
	case err != nil && pgpool.IsAway(err) && !pgpool.IsPermanent(err) || within.Err() != nil:
		s.Why = "cannot be reached"
	case err != nil:
		s.Why = "cannot be read: " + pgpool.Reason(err)
	case !standby:
		s.Why = "is itself a primary"
	case other:
		s.Why = "is that of another database: the primary does not know its worker"
	case age == nil:
		s.Why = "has no heartbeat of a worker, so its age is unknown"
	default:
		s = Source{Standby: true, Age: max(time.Duration(*age*float64(time.Second)), 0)}
		keep = fresh
		if s.Age > mostAge {
			s = Source{Age: s.Age, Why: fmt.Sprintf("has had no heartbeat for %s", s.Age.Round(time.Second))}
		}
	}
	r.source, r.until, r.same = s, time.Now().Add(keep), r.same && err == nil
	return s
}

// unusable notes that the standby failed.
func (r *Replica) unusable(why string) Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source, r.until = Source{Why: why}, time.Now().Add(fresh)
	return r.source
}
