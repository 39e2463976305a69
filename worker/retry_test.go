package worker_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

func TestTransientErrorsAreTriedAgainWhereThatDoesNoHarm(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write", attempts: 2}, tool{name: "lab.nothing", mode: "safe-retry"},
		tool{name: "lab.send"})
	env.StartWorker()
	for _, c := range []struct {
		name, tool, then string
		status           receipts.Status
		journal          []string
	}{
		{"a transactional call without idempotency", "lab.write", "transient once", receipts.Succeeded,
			[]string{"queued", "claimed", "retried", "claimed", "succeeded"}},
		{"a serialization failure", "lab.write", "serialization failure once", receipts.Succeeded,
			[]string{"queued", "claimed", "retried", "claimed", "succeeded"}},
		{"the tool's max_attempts", "lab.write", "transient", receipts.Failed,
			[]string{"queued", "claimed", "retried", "claimed", "failed"}},
		{"an outside call that may not run twice", "lab.send", "transient once", receipts.Failed,
			[]string{"queued", "claimed", "failed"}},
		{"an error that is not transient", "lab.nothing", "fail", receipts.Failed,
			[]string{"queued", "claimed", "failed"}},
	} {
		id := env.Insert(handlertest.Call{Tool: c.tool, Input: task(Task{Text: c.name, Then: c.then})})
		r := env.Await(id)
		if diff := cmp.Diff(c.journal, env.Journal(id)); diff != "" || r.Status != c.status {
			t.Errorf("%s: %s %s\n%s", c.name, r.Status, r.Result, diff)
		}
		want := 1
		if c.status == receipts.Failed {
			want = 0
		}
		if n := rowsWith(t, env, c.name); c.tool == "lab.write" && n != want {
			t.Errorf("%s: %d rows", c.name, n)
		}
	}
	if len(lab.sentSoFar()) != 1 {
		t.Errorf("sent %v", lab.sentSoFar())
	}
}

// An entry's max_attempts bounds attempts at the effect. A try for which nothing was sent was none.
func TestWhereNothingWasSentNoAttemptIsSpent(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send", attempts: 1},
		tool{name: "lab.nothing", mode: "safe-retry", attempts: 2})
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "none", Then: "nothing sent four times"})})
	if r.Status != receipts.Succeeded || r.Attempt != 5 {
		t.Errorf("mode none: attempt %d: %s", r.Attempt, r.Result)
	}
	r = env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "safe", Then: "nothing sent four times"})})
	if r.Status != receipts.Failed || r.Attempt != 2 {
		t.Errorf("mode safe-retry: attempt %d: %s", r.Attempt, r.Result)
	}
	sound(t, env)
}

func TestADeadlockIsTriedAgain(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()
	// The call holds a lock on its new row's text, the test another: each then wants the other's.
	if _, err := env.DB.Exec(t.Context(), `
		create table locks (id int primary key); insert into locks values (1), (2);
		create function lab_lock() returns trigger language plpgsql as $$
		begin
			if new.text = 'deadlock' then
				perform from locks where id = 1 for update;
				loop -- until the test waits for it, or holds nothing any more
					perform from locks where id = 2 for update skip locked;
					exit when found or exists (select from pg_locks l where not l.granted
						and pg_backend_pid() = any (pg_blocking_pids(l.pid)));
					perform pg_sleep(0.01);
				end loop;
				perform from locks where id = 2 for update;
			end if;
			return new;
		end $$;
		create trigger lab_lock before insert on lab_rows for each row execute function lab_lock();`); err != nil {
		t.Fatal(err)
	}
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	// The first to check for the deadlock is the victim; a long deadlock_timeout here makes it the call.
	for _, sql := range []string{"set local deadlock_timeout = '60s'", "select from locks where id = 2 for update"} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "deadlock"})})
	env.Until("the call to hold its lock", func() bool {
		var held int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from (select from locks where id = 1 for update skip "+
			"locked) l").Scan(&held); err != nil {
			t.Fatal(err)
		}
		return held == 0
	})
	if _, err := tx.Exec(t.Context(), "select from locks where id = 1 for update"); err != nil {
		t.Fatalf("the test was the victim: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 2 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
	_ = lab
}

// A retry records in the journal what failed and when it continues, doubling its pause.
func TestTheJournalSaysWhyACallIsTriedAgain(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", attempts: 5})
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "transient"})})
	env.Await(id)
	events, err := store.Journal(t.Context(), env.DB, id)
	if err != nil {
		t.Fatal(err)
	}
	retries := 0
	for _, e := range events {
		if e.Event != "retried" {
			continue
		}
		var data struct {
			RunAt time.Time `json:"run_at"`
			Error receipts.Error
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		longest := time.Millisecond << retries
		if pause := data.RunAt.Sub(e.At); pause < longest/2-time.Microsecond || pause > longest+time.Microsecond ||
			data.Error.Message != "come back later" {
			t.Errorf("retry %d: pause %s, %+v", retries, pause, data.Error)
		}
		retries++
	}
	if retries != 4 {
		t.Errorf("%d retries", retries)
	}
}

func TestARetryComesNoEarlierThanItsErrorAsks(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", attempts: 2}, tool{name: "lab.nothing", mode: "safe-retry"})
	env.StartWorker()
	for _, name := range []string{"lab.write", "lab.nothing"} {
		id := env.Insert(handlertest.Call{Tool: name, Input: task(Task{Text: "x", Then: "transient after a minute"})})
		var pause time.Duration
		env.Until("the call to be put back", func() bool {
			return env.DB.QueryRow(t.Context(), `select c.run_at - e.at from core_tool_calls c
				join core_tool_events e on e.call_id = c.id
				where c.id = $1 and c.status = 'queued' and e.event = 'retried'`, id).Scan(&pause) == nil
		})
		if pause != time.Minute {
			t.Errorf("%s runs again after %s", name, pause)
		}
		env.Pass(time.Minute)
		if name == "lab.nothing" { // its third attempt has to wait too
			continue
		}
		r := env.Await(id)
		if e, _ := r.Error(); r.Attempt != 2 || e.Code != "busy" {
			t.Errorf("%s: attempt %d, %s", name, r.Attempt, r.Result)
		}
	}
	r := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Then: "transient after an hour"})})
	if e, _ := r.Error(); r.Attempt != 1 || e.Code != "busy" {
		t.Errorf("a pause of an hour: attempt %d, %s", r.Attempt, r.Result)
	}
}
