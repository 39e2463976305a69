//go:build !windows

package pgpool_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// A stopped server answers no cancel request. PgBouncer 1.18 crashed when a client closed such a request.
func TestUnansweredCancelRequestsDoNotCrashThePooler(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, pgserver.Options{})
	direct := testdb.Pool(t, server.URL("postgres"))
	pooler := pgbouncer.Start(t, server.URL("postgres"), pgbouncer.Options{Mode: pgbouncer.Session, PoolSize: 20})
	pool, err := pgpool.Open(t.Context(), pooler.URL(server.URL("postgres")), pgpool.Options{MaxConns: 12})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	var statements sync.WaitGroup
	stop := make(chan struct{})
	for i := range 12 {
		statements.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(500+(i*n*137)%2500)*time.Millisecond)
				_, _ = pool.Exec(ctx, "select pg_sleep(0.2)")
				cancel()
			}
		})
	}
	time.Sleep(300 * time.Millisecond) // until statements are running
	var pidFile string
	var pids []int
	const processes = `select pg_read_file('postmaster.pid'),
		(select array_agg(pid) from pg_stat_activity where backend_type = 'client backend')`
	if err := direct.QueryRow(t.Context(), processes).Scan(&pidFile, &pids); err != nil {
		t.Fatal(err)
	}
	postmaster, err := strconv.Atoi(strings.SplitN(pidFile, "\n", 2)[0])
	if err != nil {
		t.Fatal(err)
	}
	all := append([]int{postmaster}, pids...)
	signal := func(s syscall.Signal) {
		for _, pid := range all {
			_ = syscall.Kill(pid, s) // some may have ended
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	time.Sleep(5 * time.Second)
	signal(syscall.SIGCONT)
	time.Sleep(time.Second) // until waiting requests are answered
	close(stop)
	statements.Wait()

	var one int
	if err := pool.QueryRow(t.Context(), "select 1").Scan(&one); err != nil || one != 1 {
		t.Error(fmt.Errorf("the pooler is gone: %w", err))
	}
}
