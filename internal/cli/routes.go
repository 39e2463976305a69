package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"go.uber.org/zap"
)

// statedModes are the modes by the value of DATABASE_POOLER. The value auto is not among them.
var statedModes = map[string]pgpool.PoolMode{"none": pgpool.Direct, "session": pgpool.SessionPooler,
	"transaction": pgpool.TransactionPooler}

// findRoutes waits for the database. It finds what DATABASE_URL leads through and the connection string for
// notifications, which is empty if the queue is polled, and logs both in one line.
func findRoutes(ctx context.Context, s *setup) (mode pgpool.PoolMode, listenURL string, err error) {
	database, direct := s.config.DatabaseURL, s.config.DirectURL
	err = pgpool.Wait(ctx, func(ctx context.Context) (err error) {
		mode, err = pgpool.Probe(ctx, database.Reveal(), statedModes[s.config.DatabasePooler])
		return err
	}, s.patience, s.retrying)
	if err != nil {
		return mode, "", err
	}

	newCalls := fmt.Sprintf("by a poll every %s", s.config.PollInterval())
	if mode.MayNotify() {
		listenURL, newCalls = database.Reveal(), "by notification through DATABASE_URL"
	}
	if direct != "" {
		through, away := mode, false
		if direct != database {
			through, away = probeDirect(ctx, s)
		}
		// A connection that is away may return.
		if through.MayNotify() && (!away || listenURL == "") {
			listenURL, newCalls = direct.Reveal(), "by notification through DIRECT_URL"
		}
	}
	leads := map[pgpool.PoolMode]string{pgpool.Direct: "Postgres directly",
		pgpool.SessionPooler:     "a pooler in session mode",
		pgpool.TransactionPooler: "a pooler in transaction mode"}
	statements := "described only, sent one transaction at a time"
	if mode.KeepsSession() {
		statements = "kept prepared, sent without waiting for those before"
	}
	_, migrateVia := migrateThrough(s.config)
	s.log.Info("DATABASE_URL leads to "+cmp.Or(leads[mode], "a pooler that does not seem to be in transaction mode"),
		zap.String("statements", statements), zap.String("new_calls", newCalls),
		zap.String("migrations", "through "+migrateVia), zap.String("override", "DATABASE_POOLER=none, session or "+
			"transaction"))
	return mode, listenURL, nil
}

// probeDirect finds what DIRECT_URL leads through, and whether it is unreachable now.
func probeDirect(ctx context.Context, s *setup) (mode pgpool.PoolMode, away bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // the worker does not need it
	defer cancel()
	mode, err := pgpool.Probe(ctx, s.config.DirectURL.Reveal(), pgpool.Unknown)
	switch {
	case err != nil:
		s.log.Warn("DIRECT_URL cannot be reached: notifications and `gem migrate` need it, calls do not",
			zap.String("reason", pgpool.Reason(err)))
	case !mode.MayNotify():
		s.log.Warn("DIRECT_URL leads to a pooler in transaction mode too, which delivers no notifications: " +
			"set it to Postgres itself or to a pooler in session mode (port 5432 on Supabase), or unset it")
	}
	return mode, err != nil
}
