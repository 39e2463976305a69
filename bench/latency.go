package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// warmUp is the number of calls before a contestant's latency is measured. They open its connections and prepare its
// statements.
const warmUp = 50

// pace is a rate of inserts and the measure for it.
type pace struct {
	measure   string
	perSecond int
}

func latencyOf(poll bool, paces []pace, contestants ...contestant) experiment {
	e := experiment{contestants: contestants}
	for _, p := range paces {
		e.measures = append(e.measures, p.measure)
	}
	e.run = func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
		return latency(ctx, b, c, paces, poll)
	}
	return e
}

// latency measures one pace after another, with one worker.
func latency(ctx context.Context, b *bench, c contestant, paces []pace, poll bool) (figures []figure, err error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	client, err := s.connect(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	insert, err := c.Inserter(client, true)
	if err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stop, err := c.Start(ctx, work{URL: s.url, Conns: 10, Slots: 10, Poll: poll, Handled: new(atomic.Int64), Fail: fail})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	defer stop()

	for range warmUp {
		if _, err := insert(ctx); err != nil {
			return nil, fmt.Errorf("insert: %w", err)
		}
	}
	done := warmUp
	if err := s.waitEnded(ctx, c, done); err != nil {
		return nil, err
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	for _, p := range paces {
		inserted, err := insertAt(ctx, insert, p.perSecond, b.sizes.latency[p.perSecond])
		if err != nil {
			return nil, err
		}
		done += len(inserted)
		if err := s.waitEnded(ctx, c, done); err != nil {
			return nil, err
		}
		took, err := s.took(ctx, c, inserted)
		if err != nil {
			return nil, err
		}
		figures = append(figures, figure{measure: p.measure, unit: "ms", value: median(took), singles: took})
	}
	return figures, nil
}

// insertAt inserts perSecond calls per second for the given time, and returns when each insert began.
func insertAt(ctx context.Context, insert inserter, perSecond int, during time.Duration) (map[string]time.Time, error) {
	inserted := map[string]time.Time{}
	began, pause := time.Now(), time.Second/time.Duration(perSecond)
	for i := range int(during.Seconds() * float64(perSecond)) {
		if err := sleepUntil(ctx, began.Add(time.Duration(i)*pause)); err != nil {
			return nil, err
		}
		at := time.Now()
		id, err := insert(ctx)
		if err != nil {
			return nil, fmt.Errorf("insert: %w", err)
		}
		inserted[id] = at
	}
	return inserted, nil
}

// took returns the ms of each call from just before its insert to the commit of its end.
func (s *stage) took(ctx context.Context, c contestant, inserted map[string]time.Time) (took []float64, err error) {
	rows, err := s.db.Query(ctx, c.Ended())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var committed time.Time
		if err := rows.Scan(&id, &committed); err != nil {
			return nil, err
		}
		if at, counts := inserted[id]; counts {
			took = append(took, milliseconds(committed.Sub(at)))
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(took) != len(inserted) {
		return nil, fmt.Errorf("%d calls were inserted, and %d of them ended", len(inserted), len(took))
	}
	return took, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sleepUntil returns early with the cause when ctx ends.
func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// endLimit limits the time until inserted calls have ended.
const endLimit = time.Minute

// waitEnded returns when n calls have ended. It returns an error after endLimit.
func (s *stage) waitEnded(ctx context.Context, c contestant, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endLimit, errors.New("the calls did not end within a minute"))
	defer cancel()
	for {
		ended, err := s.ended(ctx, c)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if ended >= n {
			return nil
		}
		if err := sleepUntil(ctx, time.Now().Add(50*time.Millisecond)); err != nil {
			return fmt.Errorf("%d of %d calls had ended: %w", ended, n, err)
		}
	}
}
