package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// serving has the sizes for the measures of gem mcp.
type serving struct {
	paced    time.Duration // duration of calls at a fixed rate
	clients  int           // of throughput
	calls    int           // of throughput, of all clients
	waits    int           // concurrent
	held     time.Duration // duration of the waits
	idle     int           // servers over stdio
	idleTime time.Duration // until their connections are closed
	starts   int
}

// pacedCalls measures tools/call and, in turns, an insert and a wait in the bench's own process. It makes ten of each
// per second.
func pacedCalls(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	err = b.withServer(ctx, c, 10, 1, func(d *mcpServer) error {
		listens, err := d.inProcess(ctx, true)
		if err != nil {
			return err
		}
		defer listens.close()
		asks, err := d.inProcess(ctx, false)
		if err != nil {
			return err
		}
		defer asks.close()
		over, err := d.agent(ctx)
		if err != nil {
			return err
		}
		defer over.end()
		if _, err := over.ask([]byte(initialize)); err != nil {
			return err
		}
		kinds := []struct {
			measure string
			call    func() error
		}{
			{"mcp-http", func() error { _, err := d.post(ctx, 0, healthCheck("")); return err }},
			{"mcp-http-base", func() error { return listens.call(ctx) }},
			{"mcp-stdio", over.call},
			{"mcp-stdio-base", func() error { return asks.call(ctx) }},
		}
		took := make([][]float64, len(kinds))
		next := time.Now()
		for n := 0; n < warmUp/10 || time.Since(next) < 0 || n < int(b.sizes.serving.paced/(100*time.Millisecond)); n++ {
			for i, kind := range kinds {
				next = next.Add(25 * time.Millisecond)
				if err := sleepUntil(ctx, next); err != nil {
					return err
				}
				began := time.Now()
				if err := kind.call(); err != nil {
					return fmt.Errorf("%s: %w", kind.measure, err)
				}
				if n >= warmUp/10 {
					took[i] = append(took[i], float64(time.Since(began).Microseconds())/1000)
				}
				next = later(next, time.Now())
			}
		}
		for i, kind := range kinds {
			figures = append(figures, figure{measure: kind.measure, unit: "ms", value: median(took[i]), singles: took[i]})
		}
		return nil
	})
	return figures, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// callsAtOnce measures the calls per second of one gem mcp --http, and the CPU per call of it, of the worker and of
// Postgres.
func callsAtOnce(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	size := b.sizes.serving
	err = b.withServer(ctx, c, 100, size.clients, func(d *mcpServer) error {
		each := size.calls / size.clients
		run := func(n int) error {
			return together(size.clients, func(user int) error {
				for range n {
					if _, err := d.post(ctx, user, healthCheck("")); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := run(max(each/10, 1)); err != nil {
			return err
		}
		postmaster, procErr := d.postmaster(ctx)
		before, cpuErr := cpuTimes(postmaster, d.pid, d.worker)
		began := time.Now()
		if err := run(each); err != nil {
			return err
		}
		n := float64(each * size.clients)
		figures = []figure{{measure: "mcp-throughput", unit: "calls/s", value: n / time.Since(began).Seconds()}}
		after, err := cpuTimes(postmaster, d.pid, d.worker)
		if err := errors.Join(procErr, cpuErr, err); err != nil {
			say("mcp-cpu is not measured here: %v", err)
			return nil
		}
		for i, measure := range []string{"mcp-cpu", "mcp-cpu-worker", "mcp-cpu-postgres"} {
			figures = append(figures, figure{measure: measure, unit: "µs",
				value: float64((after[i] - before[i]).Microseconds()) / n})
		}
		return nil
	})
	return figures, err
}

// together runs a function for each i below n at once, and returns the first error.
func together(n int, run func(i int) error) error {
	var (
		all  sync.WaitGroup
		errs = make([]error, n)
	)
	for i := range n {
		all.Go(func() { errs[i] = run(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// waitsAtOnce measures concurrent requests that wait for calls scheduled for later: their cost, and the time from the
// commit to the answer of each.
func waitsAtOnce(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	const users = 25 // a user may have at most 64 requests in flight
	size := b.sizes.serving
	err = b.withServer(ctx, c, 100, users, func(d *mcpServer) error {
		idle, err := residentMemory(d.pid)
		if err != nil {
			say("mcp-waits is not measured here: %v", err)
			return nil
		}
		at := time.Now().Add(size.held)
		body := healthCheck(fmt.Sprintf(`,"io.github.gemworker/runAt":%q`, at.UTC().Format(time.RFC3339Nano)))
		ids, answered, done := make([]string, size.waits), make([]time.Time, size.waits), make(chan error, 1)
		go func() {
			done <- together(size.waits, func(i int) (err error) {
				ids[i], err = d.post(ctx, i%users, body)
				answered[i] = time.Now()
				return err
			})
		}()
		for open := 0; open < size.waits; {
			if err := d.db.QueryRow(ctx, "select count(*) from core_tool_calls where status = 'queued'").
				Scan(&open); err != nil {
				return err
			}
			if err := sleepUntil(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
				return err
			}
			if time.Now().After(at) {
				return fmt.Errorf("only %d of %d calls were made within %s", open, size.waits, size.held)
			}
		}
		if err := sleepUntil(ctx, time.Now().Add(time.Second)); err != nil { // until the load of the inserts has settled
			return err
		}
		before, err := cpuTime(d.pid)
		if err != nil {
			return err
		}
		began := time.Now()
		var connections, listens int
		if err := d.db.QueryRow(ctx, `select count(*), count(*) filter (where query ilike 'listen%') from pg_stat_activity
			where usename = $1 and datname = current_database()`,
			mcpLogin).Scan(&connections, &listens); err != nil {
			return err
		}
		if err := sleepUntil(ctx, at.Add(-200*time.Millisecond)); err != nil {
			return err
		}
		after, err := cpuTime(d.pid)
		if err != nil {
			return err
		}
		with, err := residentMemory(d.pid)
		if err != nil {
			return err
		}
		share := 100 * (after - before).Seconds() / time.Since(began).Seconds()
		if err := <-done; err != nil {
			return err
		}
		late, err := d.afterCommit(ctx, ids, answered)
		if err != nil {
			return err
		}
		figures = []figure{
			{measure: "mcp-waits-connections", unit: "", value: float64(connections)},
			{measure: "mcp-waits-listens", unit: "", value: float64(listens)},
			{measure: "mcp-wait-memory", unit: "kB", value: float64(with-idle) / 1000 / float64(size.waits)},
			{measure: "mcp-waits-cpu", unit: "%", value: share},
			{measure: "mcp-waits-released", unit: "ms", value: median(late), singles: late},
		}
		return nil
	})
	return figures, err
}

// afterCommit returns the milliseconds from the commit of each call's receipt to its answer.
func (d *mcpServer) afterCommit(ctx context.Context, ids []string, answered []time.Time) (late []float64, err error) {
	rows, err := d.db.Query(ctx, "select call_id::text, pg_xact_commit_timestamp(xmin) from core_tool_receipts")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	commits := map[string]time.Time{}
	for rows.Next() {
		var (
			id string
			at time.Time
		)
		if err := rows.Scan(&id, &at); err != nil {
			return nil, err
		}
		commits[id] = at
	}
	for i, id := range ids {
		at, ok := commits[id]
		if !ok {
			return nil, fmt.Errorf("call %s has no receipt", id)
		}
		late = append(late, float64(answered[i].Sub(at).Microseconds())/1000)
	}
	return late, rows.Err()
}

// idleServers measures idle servers over stdio after one call each.
func idleServers(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	size := b.sizes.serving
	err = b.withServer(ctx, c, 10, 0, func(d *mcpServer) error {
		var memory, private []float64
		var pids []int
		for range size.idle {
			a, err := d.agent(ctx)
			if err != nil {
				return err
			}
			defer a.end()
			if _, err := a.ask([]byte(initialize)); err != nil {
				return err
			}
			if err := a.call(); err != nil {
				return err
			}
			pids = append(pids, a.pid)
		}
		connections := func() (all, listens int, err error) {
			err = d.db.QueryRow(ctx, `select count(*), count(*) filter (where query ilike 'listen%') from pg_stat_activity
				where usename = $1 and datname = current_database()`,
				mcpLogin).Scan(&all, &listens)
			return all, listens, err
		}
		first, listens, err := connections()
		if err != nil {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(size.idleTime)); err != nil {
			return err
		}
		last, _, err := connections()
		if err != nil {
			return err
		}
		n := float64(size.idle)
		figures = []figure{
			{measure: "mcp-idle-connections", unit: "", value: float64(first) / n},
			{measure: "mcp-idle-connections-later", unit: "", value: float64(last) / n},
			{measure: "mcp-idle-listens", unit: "", value: float64(listens)},
		}
		for _, pid := range pids {
			all, err := residentMemory(pid)
			if errors.Is(err, errNoProc) {
				return nil
			} else if err != nil {
				return err
			}
			own, err := memoryOf(pid, "RssAnon:")
			if err != nil {
				return err
			}
			memory, private = append(memory, float64(all)/1e6), append(private, float64(own)/1e6)
		}
		figures = append(figures, figure{measure: "mcp-idle-memory", unit: "MB", value: median(memory)},
			figure{measure: "mcp-idle-memory-own", unit: "MB", value: median(private)})
		return nil
	})
	return figures, err
}

// startOfServer measures the time from the start of gem mcp over stdio to its first answer.
func startOfServer(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	err = b.withServer(ctx, c, 10, 0, func(d *mcpServer) error {
		var took []float64
		for range b.sizes.serving.starts {
			began := time.Now()
			a, err := d.agent(ctx)
			if err != nil {
				return err
			}
			_, err = a.ask([]byte(initialize))
			took = append(took, float64(time.Since(began).Microseconds())/1000)
			a.end()
			if err != nil {
				return err
			}
		}
		figures = []figure{{measure: "mcp-start", unit: "ms", value: median(took), singles: took}}
		return nil
	})
	return figures, err
}
