package cli

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

const orderRegistry = `{"version": "1", "tools": [{"name": "shop.order", "description": "Orders.", "input_schema": {"type": "object"}, "output_schema": {"type": "object"},
	"permissions": ["write:db"], "idempotency": {"mode": "none"}, "timeout_ms": 60000, "receipt_fields": []}]}`

// kill -9 of one of two workers, again and again, while its functions have written their rows and not returned, or
// returned and not been committed.
func TestEachRowOfAFunctionIsThereOnceWhateverDies(t *testing.T) {
	t.Parallel()
	calls, kills := 120, 3
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls, kills = 2000, 25
	}
	url := newDatabase(t)
	d := delta{T: t, url: url, db: testdb.Pool(t, url)}
	testdb.Exec(t, d.db, `create table ordered (call_id uuid);
		create function tools.shop_order(input jsonb, call jsonb) returns jsonb language plpgsql as $$
		begin
			insert into ordered values ((call ->> 'id')::uuid);
			perform gem.wrote('ordered', 'insert', call ->> 'id');
			perform pg_sleep(0.05 * random());
			return '{}';
		end $$`)
	workers := map[string]*process{}
	start := func(name string) {
		workers[name] = startWorker(t, url, "TOOLS_REGISTRY="+orderRegistry, "WORKER_ID="+name, "WORKER_CONCURRENCY=4")
	}
	start("one")
	start("two")
	insert := func(n int) {
		testdb.Exec(t, d.db, "insert into core_tool_calls (tool_name) select 'shop.order' from generate_series(1, $1)", n)
	}
	insert(calls)

	for n := range kills {
		// At least one of its calls is in its function, and none would end with its third lost worker.
		victim := ""
		for deadline := time.Now().Add(patience); victim == ""; time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no worker is busy")
			}
			victim = testdb.Value[string](t, d.db, `select coalesce((select left(claimed_by, 3) from core_tool_calls
				where status = 'running'
				and (select count(*) from ordered) >= $1 and exists (select from pg_stat_activity where datname = current_database()
					and wait_event = 'PgSleep')
				and not exists (select from core_tool_calls where losses = 2 and status in ('queued', 'running'))
				group by claimed_by order by count(*) desc limit 1), '')`, calls*n/(kills+1))
			if victim == "" && testdb.Value[int](t, d.db, "select count(*) from core_tool_calls where status in ('queued', "+
				"'running')") == 0 { // on a busy machine all may have ended before this looked
				insert(20)
				calls += 20
			}
		}
		if err := workers[victim].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = workers[victim].cmd.Wait()
		// Nobody waits until its heartbeat has been missed.
		testdb.Exec(t, d.db, "update core_workers set alive_until = now() - interval '1 second' where worker_id like $1 || "+
			"'%' "+
			"and stopped_at is null", victim)
		start(victim)
	}
	for deadline := time.Now().Add(2 * patience); testdb.Value[int](t, d.db,
		"select count(*) from core_tool_receipts where "+
			"status = 'succeeded'") < calls; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("calls have no receipt")
		}
	}
	if lost := testdb.Value[int](t, d.db, "select count(*) from core_tool_events where event = 'lost'"); lost < kills {
		t.Errorf("%d attempts were lost with %d workers", lost, kills)
	}
	got := testdb.Value[string](t, d.db, `select format('%s calls, %s rows of %s, %s receipts that tell of their row',
		(select count(*) from core_tool_calls), count(*), count(distinct o.call_id),
		(select count(*) from core_tool_receipts r where r.effects -> 'db_writes' =
			jsonb_build_array(jsonb_build_object('table', 'ordered', 'action', 'insert', 'id', r.call_id)))) from ordered o`)
	if want := fmt.Sprintf("%[1]d calls, %[1]d rows of %[1]d, %[1]d receipts that tell of their row", calls); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	d.sound()
}
