package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// failover kills a primary whose standby lacks the latest receipts, and counts the receipts that the worker does not
// restore and the effects that happen twice. The standby has half of the calls, unclaimed, and lacks the other half.
func failover(ctx context.Context, b *bench, _ contestant) (figures []figure, err error) {
	d, err := startDuo(ctx, b.lab.folder)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	n := b.sizes.lost
	db, err := pgxpool.New(ctx, d.url)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if err := queueMany(ctx, db, "core_tool_calls", n/2, false); err != nil {
		return nil, err
	}
	if err := d.cutOff(ctx, n/2); err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var handled atomic.Int64
	stop, err := gemOnce.Start(ctx, work{URL: d.url, Conns: 20, Slots: 50, Handled: &handled, Fail: fail})
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := queueMany(ctx, db, "core_tool_calls", n-n/2, false); err != nil {
		return nil, err
	}
	if err := until(ctx, db, "select count(*) = $1 from core_tool_receipts", n); err != nil {
		return nil, err
	}
	if err := d.replace(ctx); err != nil {
		return nil, err
	}
	err = until(ctx, db, "select exists (select from gem.server_changes where why in ('promotion', 'unknown'))")
	if err != nil {
		return nil, err
	}
	id := ""
	err = db.QueryRow(ctx, "insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text",
		tool(false), jsonOf(newPayload(0, false))).Scan(&id)
	if err == nil {
		err = until(ctx, db, "select exists (select from core_tool_receipts where call_id = $1::text::uuid)", id)
	}
	var kept int
	var restored, claimed float64
	if err == nil {
		err = db.QueryRow(ctx, `
			select (select count(*) from core_tool_receipts where call_id <> $1::text::uuid and status = 'succeeded'),
				(select coalesce(extract(epoch from max(c.at) - e.at), 0) from gem.epoch_calls c where c.epoch = e.epoch)::float8,
				(select extract(epoch from j.at - e.at) from core_tool_events j
					where j.call_id = $1::text::uuid and j.event = 'claimed')::float8
			from gem.epochs e order by e.epoch desc limit 1`, id).Scan(&kept, &restored, &claimed)
	}
	return []figure{
		{measure: "failover-lost", unit: "receipts", value: float64(n - kept)},
		{measure: "failover-twice", unit: "effects", value: float64(handled.Load() - int64(n) - 1)},
		{measure: "failover-restored", unit: "s", value: restored},
		{measure: "failover-claim", unit: "s", value: claimed},
	}, err
}

// until waits, for at most a minute, until a query returns true. It retries after errors, since the server may be away.
func until(ctx context.Context, db *pgxpool.Pool, sql string, args ...any) error {
	const limit = time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		var holds bool
		err := db.QueryRow(ctx, sql, args...).Scan(&holds)
		if err == nil && holds {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waited %s for %q: %w", limit, sql, errors.Join(err, ctx.Err()))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// duo is a primary with an asynchronous standby.
type duo struct {
	primary, standby *pgserver.Server
	url              string // of both servers; it connects to the one that accepts writes
	sender           int    // the primary's process that sends to the standby
	stop             func()
}

func startDuo(ctx context.Context, in string) (*duo, error) {
	folder, err := os.MkdirTemp(in, "gem-failover-")
	if err != nil {
		return nil, err
	}
	d := &duo{stop: func() { _ = os.RemoveAll(folder) }}
	if d.primary, err = pgserver.Start(ctx, pgserver.Options{DataDir: folder, Durable: true}); err != nil {
		d.stop()
		return nil, err
	}
	d.stop = func() { _ = d.primary.Stop(); _ = os.RemoveAll(folder) }
	db, err := pgxpool.New(ctx, d.primary.URL("postgres"))
	if err == nil {
		err = gemOnce.Migrate(ctx, db)
		db.Close()
	}
	var stop func()
	if err == nil {
		d.standby, stop, err = testdb.StartStandby(ctx, d.primary, nil)
	}
	if err != nil {
		d.stop()
		return nil, err
	}
	d.stop = func() { stop(); _ = d.primary.Stop(); _ = os.RemoveAll(folder) }
	one, two := "", ""
	for host, s := range map[*string]*pgserver.Server{&one: d.primary, &two: d.standby} {
		at, err := url.Parse(s.URL("postgres"))
		if err != nil {
			return nil, err
		}
		*host = at.Host
	}
	d.url = strings.Replace(d.primary.URL("postgres"), one, one+","+two, 1) + "&target_session_attrs=read-write"
	return d, nil
}

// cutOff waits until the standby has that many calls, and then stops replication to it.
func (d *duo) cutOff(ctx context.Context, calls int) error {
	standby, err := pgxpool.New(ctx, d.standby.URL("postgres"))
	if err != nil {
		return err
	}
	defer standby.Close()
	if err := until(ctx, standby, "select count(*) = $1 from core_tool_calls", calls); err != nil {
		return err
	}
	if err := d.ask(ctx, d.primary, "select pid from pg_stat_replication", &d.sender); err != nil {
		return err
	}
	return syscall.Kill(d.sender, syscall.SIGSTOP)
}

// replace kills the primary and promotes the standby.
func (d *duo) replace(ctx context.Context) error {
	var file string
	if err := d.ask(ctx, d.primary, "select pg_read_file('postmaster.pid')", &file); err != nil {
		return err
	}
	first, _, _ := strings.Cut(file, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), syscall.Kill(d.sender, syscall.SIGKILL)); err != nil {
		return err
	}
	var promoted bool
	return d.ask(ctx, d.standby, "select pg_promote()", &promoted)
}

func (d *duo) ask(ctx context.Context, s *pgserver.Server, sql string, to any) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return conn.QueryRow(ctx, sql).Scan(to)
}
