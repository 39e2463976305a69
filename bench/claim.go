package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	fewQueued = 1000
	claimSize = 10
)

// claimer is a contestant whose claims can be measured alone.
type claimer interface {
	contestant
	// Fill creates a queue in its usual state, without running the insert triggers.
	Fill(ctx context.Context, db *pgxpool.Pool, f filling) error
	// Claimer returns a function that claims up to n calls, as the contestant's worker does. The function returns the
	// number of claimed calls.
	Claimer(ctx context.Context, db *pgxpool.Pool) (claim func(ctx context.Context, n int) (int, error), err error)
}

// filling has the numbers of calls to create: runnable now, runnable in an hour, ended, and waiting for other calls or
// for a time.
type filling struct{ queued, later, ended, waiting int }

// claimOf compares claims from a large database with claims from a small one. The claims alternate.
func claimOf(measure string, large func(sizes) filling, contestants ...contestant) experiment {
	return experiment{
		measures:    []string{"claim-1k", measure, measure + "-ratio"},
		contestants: contestants,
		once:        true,
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			contender, ok := c.(claimer)
			if !ok {
				return nil, errors.New("it has no claims of its own")
			}
			claimFew, closeFew, err := queueWith(ctx, b.lab, contender, filling{queued: fewQueued})
			if err != nil {
				return nil, err
			}
			defer closeFew()
			claimMany, closeMany, err := queueWith(ctx, b.lab, contender, large(b.sizes))
			if err != nil {
				return nil, err
			}
			defer closeMany()
			var figures []figure
			const parts = 3
			for range parts {
				var few, many []float64
				for i := range b.sizes.claims / parts {
					first, second, a, b := claimFew, claimMany, &few, &many
					if i%2 == 1 {
						first, second, a, b = claimMany, claimFew, &many, &few
					}
					if err := errors.Join(first(ctx, a), second(ctx, b)); err != nil {
						return nil, err
					}
				}
				figures = append(figures,
					figure{measure: "claim-1k", unit: "ms", value: median(few), singles: few},
					figure{measure: measure, unit: "ms", value: median(many), singles: many},
					figure{measure: measure + "-ratio", unit: "to claim-1k", value: median(many) / median(few)})
			}
			return figures, nil
		},
	}
}

// timedClaim makes a claim and appends its duration in ms to took.
type timedClaim func(ctx context.Context, took *[]float64) error

// queueWith fills a database and returns a function that claims from it.
func queueWith(ctx context.Context, l *lab, c claimer, f filling) (claim timedClaim, drop func(), err error) {
	s, err := l.stage(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	client, err := s.filled(ctx, c, f)
	if err != nil {
		s.drop()
		return nil, nil, err
	}
	drop = func() { client.Close(); s.drop() }
	claimCalls, err := c.Claimer(ctx, client)
	if err != nil {
		drop()
		return nil, nil, err
	}
	return func(ctx context.Context, took *[]float64) error {
		began := time.Now()
		n, err := claimCalls(ctx, claimSize)
		*took = append(*took, milliseconds(time.Since(began)))
		if err == nil && n != claimSize {
			err = fmt.Errorf("a claim of %d got %d", claimSize, n)
		}
		return err
	}, drop, nil
}

// filled fills the queue and returns a connection to it. The open calls are created last, as in practice: their inserts
// have recently touched the pages that a claim touches. The claim does not pay for the first touch after a checkpoint.
func (s *stage) filled(ctx context.Context, c claimer, f filling) (*pgxpool.Pool, error) {
	if err := c.Fill(ctx, s.db, filling{ended: f.ended}); err != nil {
		return nil, fmt.Errorf("fill in what has ended: %w", err)
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	if err := c.Fill(ctx, s.db, filling{queued: f.queued, later: f.later, waiting: f.waiting}); err != nil {
		return nil, fmt.Errorf("fill the queue: %w", err)
	}
	if _, err := s.db.Exec(ctx, "vacuum (analyze)"); err != nil {
		return nil, err
	}
	return s.connect(ctx, 1)
}

// fillWith runs statements in a session without triggers. Each statement gets its number of rows.
func fillWith(ctx context.Context, db *pgxpool.Pool, statements []fillStatement) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "set session_replication_role = replica"); err != nil {
		return err
	}
	for _, s := range statements {
		if s.rows == 0 {
			continue
		}
		if _, err := conn.Exec(ctx, s.sql, s.rows); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, "reset session_replication_role")
	return err
}

type fillStatement struct {
	rows int
	sql  string
}
