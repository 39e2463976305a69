package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"go.uber.org/zap"
)

// routes are what DATABASE_URL and DIRECT_URL lead to, and so what may go through which.
type routes struct {
	config   *config.Config
	database pgpool.PoolMode
	direct   *pgpool.PoolMode // nil without DIRECT_URL, or where it leads nowhere now
}

// directPatience is how long a DIRECT_URL that does not answer may hold up the start: the worker can do without.
const directPatience = 5 * time.Second

// findRoutes waits for the database, finds out what it is reached through, and says so in one line.
func findRoutes(ctx context.Context, s *setup) (*routes, error) {
	r := &routes{config: s.config}
	stated := map[string]pgpool.PoolMode{"none": pgpool.Direct, "session": pgpool.SessionPooler, "transaction": pgpool.TransactionPooler}
	err := pgpool.Wait(ctx, func(ctx context.Context) (err error) {
		r.database, err = pgpool.Probe(ctx, s.config.DatabaseURL.Reveal(), stated[s.config.DatabasePooler])
		return err
	}, s.patience, func(reason string) {
		s.log.Warn("Postgres cannot be reached yet, trying again", zap.String("reason", reason), zap.Duration("for_at_most", s.patience))
	})
	if err != nil {
		return nil, err
	}
	if s.config.DirectURL != "" {
		r.findDirect(ctx, s.log)
	}
	_, migrateVia := migrateThrough(s.config)
	s.log.Info(r.String(), zap.String("statements", r.statements()), zap.String("new_calls", r.newCalls()),
		zap.String("migrations", "through "+migrateVia), zap.String("override", "DATABASE_POOLER=none, session or transaction"))
	return r, nil
}

func (r *routes) findDirect(ctx context.Context, log *zap.Logger) {
	if r.config.DirectURL == r.config.DatabaseURL {
		r.direct = &r.database
		return
	}
	ctx, cancel := context.WithTimeout(ctx, directPatience)
	defer cancel()
	mode, err := pgpool.Probe(ctx, r.config.DirectURL.Reveal(), pgpool.Unknown)
	if err == nil {
		r.direct = &mode
	}
	switch {
	case err != nil:
		log.Warn("DIRECT_URL leads nowhere now: notifications and `gem migrate` need it, calls do not", zap.String("reason", pgpool.Reason(err)))
	case !mode.MayNotify():
		log.Warn("DIRECT_URL leads to a pooler in transaction mode too, through which no notification comes: " +
			"set it to Postgres itself or to a pooler in session mode (port 5432 on Supabase), or unset it")
	}
}

// listen returns the connection string for notifications and its variable. Both are empty if the queue is polled.
func (r *routes) listen() (url, variable string) {
	switch {
	case r.direct != nil && r.direct.MayNotify():
		return r.config.DirectURL.Reveal(), "DIRECT_URL"
	case r.database.MayNotify():
		return r.config.DatabaseURL.Reveal(), "DATABASE_URL"
	case r.direct == nil: // without DIRECT_URL; or it may come back
		return r.config.DirectURL.Reveal(), "DIRECT_URL"
	}
	return "", ""
}

func (r *routes) String() string {
	switch r.database {
	case pgpool.Direct:
		return "DATABASE_URL leads to Postgres directly"
	case pgpool.SessionPooler:
		return "DATABASE_URL leads to a pooler in session mode"
	case pgpool.TransactionPooler:
		return "DATABASE_URL leads to a pooler in transaction mode"
	}
	return "DATABASE_URL leads to a pooler, which was not seen to be in transaction mode"
}

func (r *routes) statements() string {
	if r.database.KeepsSession() {
		return "kept prepared, sent without waiting for those before"
	}
	return "described only, sent one transaction at a time"
}

func (r *routes) newCalls() string {
	if url, variable := r.listen(); url != "" {
		return "by notification through " + variable
	}
	return fmt.Sprintf("by a poll every %s", r.config.PollInterval())
}
