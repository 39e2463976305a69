package audit_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// Two workers run fifty schedules, and one of them is killed in each minute, at any moment. The clock of the test goes
// from minute to minute, and is late now and then.
func TestWorkersThatAreKilledCoverEachInstantOnce(t *testing.T) {
	t.Parallel()
	kills := 20
	if os.Getenv("GEM_TEST_LONG") != "" {
		kills = 1000
	}
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `create table public.clock as select date_trunc('hour', now()) as began, date_trunc('hour', now()) as at;
		create or replace function gem.now() returns timestamptz language sql volatile as 'select at from public.clock'`)
	testdb.Exec(t, db, `select gem.save_schedule('s' || n, '* * * * *', 'a.b', '{}', 'UTC',
		jsonb_build_object('missed', 'all', 'overlap', 'allow', 'jitter', n % 3 || ' s')) from generate_series(1, 50) n`)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	killed := 0
	for killed < kills {
		testdb.Exec(t, db, "update public.clock set at = at + $1::int * interval '1 minute'", 1+random.IntN(20)/18*3)
		var both sync.WaitGroup
		for _, dies := range []bool{true, false} {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			both.Go(func() {
				_, err := conn.Exec(context.WithoutCancel(t.Context()), "select gem.run_schedules(1000)")
				done <- err
				_ = conn.Close(context.WithoutCancel(t.Context()))
			})
			if !dies && killed%5 > 0 {
				time.Sleep(time.Duration(random.IntN(4)) * time.Millisecond) // begins while the other one works
			}
			if dies {
				time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
				testdb.Exec(t, db, "select pg_terminate_backend($1)", int(conn.PgConn().PID())) //nolint:gosec // it is positive
				if <-done != nil {
					killed++
				}
			}
		}
		both.Wait()
	}
	testdb.Exec(t, db, "select gem.run_schedules(1000)")
	if got := testdb.Value[string](t, db, `select concat_ws(' ', count(*) - 50 * minutes, count(*) - count(distinct o.due_at
			|| o.schedule_id::text), count(*) - count(c.id), min(s.next_at) > gem.now())
		from (select extract(epoch from at - began)::int / 60 as minutes from public.clock) clock, gem.occurrences o
		join gem.schedules s on s.id = o.schedule_id left join core_tool_calls c on c.id = o.call_id
		group by minutes`); got != "0 0 0 t" {
		t.Error("occurrences beyond the instants, of the same instant, without a call:", got)
	}
	report, err := audit.Database(t.Context(), db, audit.Options{})
	if err != nil || report.Faults > 0 {
		t.Errorf("%v: %v", reported(report), err)
	}
}
