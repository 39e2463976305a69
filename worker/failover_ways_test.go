package worker_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/clusters"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
)

// do runs statements on one server, each in a transaction of its own.
func (p *pair) do(server string, statements ...string) {
	p.Helper()
	conn := p.connect(server)
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(p.Context(), sql); err != nil {
			p.Fatalf("%s: %v", sql, err)
		}
	}
}

// waitForStandby makes commits of the primary wait for the standby.
func (p *pair) waitForStandby() {
	p.Helper()
	p.do(p.primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
	testdb.Eventually(p, "the standby is synchronous", func() bool {
		return p.ask(p.primary, "select coalesce(max(sync_state), '') from pg_stat_replication") == "sync"
	})
}

// The calls of each kind end while the standby is behind, and the failover loses all their ends.
func TestManyCallsOfEachKindAreRestored(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	restoresEachKind(t, newCells(t), 500)
}

// restoresEachKind loses the ends of n calls of each kind in a failover, and checks that they are restored.
func restoresEachKind(t *testing.T, c *cells, n int) {
	t.Helper()
	c.claims.Lock()
	calls := func(kind string) (names []string) {
		for i := range n {
			name := kind + " " + strconv.Itoa(i)
			c.ids[name] = c.env.Insert(handlertest.Call{Tool: kind, Input: task(Task{Text: name, Key: name})})
			names = append(names, name)
		}
		return names
	}
	written, flows := calls("lab.write"), calls("sender.flow")
	outside := append(calls("lab.send"), calls("sender.keyed")...)
	c.loseCommits()
	c.claims.Unlock()
	for _, name := range flows {
		c.env.UntilItWaits(c.ids[name], "answer")
	}
	before := c.end(outside...)
	c.end(written...)
	if ended := c.ask(c.standby, "select count(*)::text from core_tool_receipts"); ended != "0" {
		t.Fatalf("the standby has %s receipts", ended)
	}

	c.failover()
	c.env.DB.Reset()
	c.kept(before)
	for _, name := range append(outside, written...) {
		if r := c.env.Await(c.ids[name]); r.Status != "succeeded" {
			t.Errorf("%s: %s", name, r.Result)
		}
	}
	for _, name := range flows {
		if failed := handlertest.ErrorOf(t, c.env.Await(c.ids[name])); failed.Code != "outcome_unknown" {
			t.Errorf("the call whose step began ends with %v", failed)
		}
	}
	if sent := len(c.lab.sentSoFar()); sent != 3*n {
		t.Errorf("%d calls and steps had %d effects", 3*n, sent)
	}
	for sql, want := range map[string]int{
		"select count(distinct text)::text from lab_rows": n, "select count(*)::text from lab_rows": n,
		"select count(*)::text from gem.epoch_calls where what = 'restored'":  2 * n,
		"select count(*)::text from gem.epoch_calls where what <> 'restored'": 0,
		"select reran::text from gem.epochs order by epoch desc limit 1":      n,
	} {
		if got := c.ask(c.standby, sql); got != strconv.Itoa(want) {
			t.Errorf("%s: %s, want %d", sql, got, want)
		}
	}
	sound(t, c.env)
}

// The managers notice by themselves that the primary is gone, and promote the standby.
func TestManyCallsOfEachKindAreRestoredUnderAManager(t *testing.T) {
	t.Parallel()
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("it needs Patroni, etcd and pg_auto_failover, which .ci/long installs: set GEM_TEST_LONG=1")
	}
	for name, start := range map[string]func(testing.TB) *clusters.Cluster{
		// The test loses more than Patroni's default permits.
		"Patroni":          func(t testing.TB) *clusters.Cluster { return clusters.Patroni(t, 100*clusters.PatronisLag) },
		"pg_auto_failover": clusters.AutoFailover,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := idleCells(t, managedPair(t, start(t)))
			c.start()
			restoresEachKind(t, c, 500)
		})
	}
}

// The pooler leads to the promoted server once somebody has changed its configuration.
func TestWhatAFailoverLostIsRestoredBehindAPooler(t *testing.T) {
	t.Parallel()
	for mode, kind := range map[pgbouncer.Mode]pgpool.PoolMode{pgbouncer.Transaction: pgpool.TransactionPooler,
		pgbouncer.Session: pgpool.SessionPooler} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := idleCells(t, newPair(t))
			pooler := pgbouncer.Start(t, c.primary, pgbouncer.Options{Mode: mode})
			pool, err := pgpool.Open(t.Context(), pooler.URL(c.primary),
				pgpool.Options{MaxConns: 20, Mode: kind})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			c.start(func(o *worker.Options) { o.Calls, o.Control = pool, pool })
			c.claims.Lock()
			c.call("lab.send", "ended", false)
			c.call("lab.send", "runs", true)
			c.call("lab.write", "written", false)
			c.loseCommits()
			c.claims.Unlock()
			c.begun(1)
			before := c.end("ended")
			c.end("written")

			c.failover()
			if err := pooler.MoveTo(t.Context(), c.standby); err != nil {
				t.Fatal(err)
			}
			c.env.DB.Reset()
			c.lab.tell(t, "runs", Order{})
			c.kept(before)
			c.end("runs", "written")
			if sent := c.lab.sentSoFar(); len(sent) != 2 {
				t.Errorf("the effects: %v", sent)
			}
			if rows := c.ask(c.standby, "select count(*)::text from lab_rows"); rows != "1" {
				t.Errorf("%s rows", rows)
			}
			sound(t, c.env)
		})
	}
}

func TestAFailoverToASynchronousStandbyLosesNothing(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t)
	c.waitForStandby()
	c.call("lab.send", "ended", false)
	c.call("lab.write", "written", false)
	c.call("lab.send", "runs", true)
	c.begun(1)
	before := c.end("ended", "written")

	c.failover()
	c.env.DB.Reset()
	c.lab.tell(t, "runs", Order{})
	c.kept(before)
	c.end("runs")
	c.env.Until("the worker has met the server", func() bool {
		return c.ask(c.standby, "select count(*)::text from gem.epochs where why = 'promotion'") == "1"
	})
	for _, sql := range []string{"select count(*)::text from gem.epoch_calls",
		"select sum(reran)::text from gem.epochs"} {
		if got := c.ask(c.standby, sql); got != "0" {
			t.Errorf("%s: %s", sql, got)
		}
	}
	if sent := c.lab.sentSoFar(); len(sent) != 2 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// A claim waits for a standby that is gone. Its time ends, and the call keeps running for nobody until the worker gives
// it back. Once nothing waits for the standby any more, the call runs once.
func TestACallWhoseClaimWaitedForAMissingStandbyRunsOnce(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t, func(o *worker.Options) { o.Concurrency = 1 })
	c.waitForStandby()
	c.claims.Lock()
	c.call("lab.send", "x", false)
	c.loseCommits()
	c.claims.Unlock()
	c.env.Until("the claim waits for the standby", func() bool {
		return c.ask(c.primary, "select count(*)::text from pg_stat_activity where wait_event = 'SyncRep'") != "0"
	})
	if sent := c.lab.sentSoFar(); len(sent) != 0 {
		t.Errorf("the effects before the claim was safe: %v", sent)
	}
	c.env.Until("the claim is given up, and counts", func() bool {
		return c.ask(c.primary, "select attempt::text from core_tool_calls") != "0"
	})
	c.do(c.primary, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
	if r := c.env.Await(c.ids["x"]); r.Status != "succeeded" {
		t.Errorf("%s", r.Result)
	}
	if sent := c.lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// A backup that is restored to its own time lacks what came later, like a standby that lags.
func TestWhatARestoredBackupLacksIsRestored(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t)
	c.call("lab.send", "before", false)
	c.end("before")
	at := hostOf(t, c.standby)
	folder := c.ask(c.standby, "show data_directory")
	if err := c.server.Stop(); err != nil {
		t.Fatal(err)
	}
	c.call("lab.send", "ended", false)
	c.call("lab.send", "runs", true)
	c.begun(1)
	before := c.end("before", "ended")
	c.do(c.primary, "checkpoint")
	c.killPrimary()

	for _, name := range []string{"standby.signal", "postgresql.auto.conf"} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	signal := filepath.Join(folder, "recovery.signal")
	if err := os.WriteFile(signal, nil, 0o666); err != nil { //nolint:gosec // the server has a user of its own
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(at, ":")
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := pgserver.Start(t.Context(), pgserver.Options{DataDir: filepath.Dir(folder), Port: number,
		Settings: map[string]string{"restore_command": "false", "synchronous_commit": "on"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = restored.Stop() })
	c.env.DB.Reset()
	c.env.Until("the calls are there again", func() bool {
		return c.ask(c.standby, "select count(*)::text from core_tool_calls") == "3"
	})
	c.lab.tell(t, "runs", Order{})
	c.kept(before)
	c.end("runs")
	if sent := c.lab.sentSoFar(); len(sent) != 3 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// The restored receipts stay, and the other calls run again: only the dead worker knew that they had ended.
func TestAWorkerThatDiesWhileItRestoresLeavesTheOthers(t *testing.T) {
	t.Parallel()
	for _, s := range some([]struct {
		point    string
		restored int
	}{{"after restore 1", 1}, {"after meet", 0}, {"after restore 2", 2}, {"before meet", 0}, {"after restore 3", 3},
		{"before restore", 0}}) {
		t.Run(s.point, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
			defer sink.Close()
			defer http.DefaultClient.CloseIdleConnections()
			p := newPair(t)
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("none"), NoWorker: true, Database: p.url,
				Domains: []any{Crash{sink: sink.URL}}})
			died := make(chan struct{})
			go func() {
				defer close(died)
				dieAt(t, s.point, testdb.Route{URL: p.url}, "none", sink.URL)
			}()
			env.Until("the worker is there", func() bool { return number(t, env, "select count(*) from core_workers") == 1 })
			const calls = 3
			testdb.Exec(t, env.DB, `insert into core_tool_calls (tool_name, input, run_at)
				select 'crash.send', '{"text": "x"}', now() + interval '2 seconds' from generate_series(1, 3)`)
			p.loseCommits()
			if ended := p.ask(p.standby, "select count(*)::text from core_tool_receipts"); ended != "0" {
				t.Fatalf("the standby has %s receipts", ended)
			}
			ids := func() (ids []string) {
				rows, err := env.DB.Query(t.Context(), "select id::text from core_tool_receipts order by id")
				if err == nil {
					ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
				}
				if err != nil {
					t.Fatal(err)
				}
				return ids
			}
			env.Until("all have ended", func() bool { return len(ids()) == calls })
			before := ids()

			p.failover()
			<-died
			env.DB.Reset()
			if after := ids(); len(after) != s.restored {
				t.Errorf("%d receipts are there when the worker is dead, want %d", len(after), s.restored)
			}
			env.StartWorker()
			env.Until("all have ended again", func() bool { return len(ids()) == calls })
			kept := 0
			for _, id := range ids() {
				if slices.Contains(before, id) {
					kept++
				}
			}
			if kept != s.restored || sent.Load() != int64(2*calls-s.restored) {
				t.Errorf("%d receipts kept their ids, and there were %d effects; %d were restored", kept, sent.Load(), s.restored)
			}
			sound(t, env)
		})
	}
}
