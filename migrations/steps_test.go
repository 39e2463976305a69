package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// An attempt that no longer has its call writes no step, and one that asks again because an answer was lost writes it
// once.
func TestAStepIsWrittenOnceByWhoHasTheCall(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	step := func(attempt int, worker, event, data string, before int, again bool) error {
		_, err := db.Exec(t.Context(), fmt.Sprintf("select gem.step(id, %d, '%s', '%s', '%s', %d, %t) from core_tool_calls",
			attempt, worker, event, data, before, again))
		return err
	}
	for _, refused := range []error{step(2, "w", "step", `{"name": "a"}`, 0, false),
		step(1, "x", "step", `{"name": "a"}`, 0, false), step(0, "w", "began", `{"name": "a"}`, 0, true)} {
		if refused == nil || !strings.Contains(refused.Error(), "GM001") {
			t.Errorf("got %v", refused)
		}
	}
	for _, refused := range []error{step(1, "w", "succeeded", `{"name": "a"}`, 0, false),
		step(1, "w", "step", `{}`, 0, false)} {
		if refused == nil || !strings.Contains(refused.Error(), "23514") {
			t.Errorf("got %v", refused)
		}
	}
	for i, err := range []error{step(1, "w", "began", `{"name": "a"}`, 0, false),
		step(1, "w", "step", `{"name": "a"}`, 1, true), step(1, "w", "step", `{"name": "a"}`, 1, true)} {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	// A statement that comes late, such as that of a transaction which its worker took for lost, and one that knows less
	// than the journal.
	for _, refused := range []error{step(1, "w", "step", `{"name": "a"}`, 1, false),
		step(1, "w", "step", `{"name": "b"}`, 1, true), step(1, "w", "step", `{"name": "b"}`, 3, false)} {
		if refused == nil || !strings.Contains(refused.Error(), "GM001") {
			t.Errorf("got %v", refused)
		}
	}
	if got := fmt.Sprint(
		texts(t, db, "select event from core_tool_events order by seq")); got != "[queued claimed began step]" {
		t.Errorf("the journal is %s", got)
	}
}

// The earlier try may be about to commit: its connection was lost, but its transaction continues.
func TestAStepThatIsWrittenAgainWaitsForTheEarlierTry(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	earlier, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = earlier.Rollback(context.Background()) }()
	if _, err := earlier.Exec(t.Context(), `select gem.step(id, 1, 'w', 'step', '{"name": "a"}', 0, false)
		from core_tool_calls`); err != nil {
		t.Fatal(err)
	}
	again := make(chan error, 1)
	go func() {
		_, err := db.Exec(context.Background(), `select gem.step(id, 1, 'w', 'step', '{"name": "a"}', 0, true)
			from core_tool_calls`)
		again <- err
	}()
	for number(t, db, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = "+
		"'Lock'") == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := earlier.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Error(err)
	}
	if n := number(t, db, "select count(*) from core_tool_events where event = 'step'"); n != 1 {
		t.Errorf("%v steps", n)
	}
}
