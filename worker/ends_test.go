package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// notes listens to notifications of ends; the returned function gives the ids of the next so many, in the order of
// their text.
func notes(t *testing.T, env *handlertest.Env) (next func(ids int) []string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), env.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "listen gem_receipts"); err != nil {
		t.Fatal(err)
	}
	return func(ids int) (told []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for len(told) < ids {
			note, err := conn.WaitForNotification(ctx)
			if err != nil {
				t.Fatalf("after %d of %d: %v", len(told), ids, err)
			}
			told = append(told, strings.Split(note.Payload, ",")...)
		}
		slices.Sort(told)
		return told
	}
}

// insertAwaited inserts calls that somebody waits for, and returns their ids in the order of their text.
func insertAwaited(t *testing.T, env *handlertest.Env, tool, input string, n int) []string {
	t.Helper()
	rows, err := env.DB.Query(t.Context(), "insert into core_tool_calls (tool_name, input, awaited) select $1, $2, true "+
		"from generate_series(1, $3) returning id::text", tool, input, n)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// However a call ends, its waiters are notified once, after its receipt is committed. Nobody is notified of other
// calls.
func TestThoseWhoWaitAreToldOfEnds(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.send"})
	next := notes(t, env)
	other := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "other"})})
	ids := slices.Concat(insertAwaited(t, env, "lab.write", task(Task{Text: "x"}), 300),
		insertAwaited(t, env, "lab.send", task(Task{Text: "y", Then: "fail"}), 3),
		insertAwaited(t, env, "no.tool", `{}`, 3))
	cancelled := insertAwaited(t, env, "lab.write", task(Task{Text: "z"}), 1)
	cancelCall(t, env, cancelled[0])
	if diff := cmp.Diff(cancelled, next(1)); diff != "" {
		t.Errorf("of one that was cancelled in the queue: %s", diff)
	}
	w := env.StartWorker()
	env.Await(other)
	slices.Sort(ids)
	if diff := cmp.Diff(ids, next(len(ids))); diff != "" {
		t.Error(diff)
	}
	var open int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from unnest($1::uuid[]) id where id not in (select "+
		"gem.ended($1))", ids).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d have no receipt, %v", open, err)
	}

	// The worker reports the last ends when it stops.
	last := insertAwaited(t, env, "lab.write", task(Task{Text: "x"}), 20)
	for _, id := range last {
		env.Await(id)
	}
	w.Stop()
	if diff := cmp.Diff(last, next(len(last))); diff != "" {
		t.Error(diff)
	}
}

func TestANotificationHoldsTheEndsOfManyCalls(t *testing.T) {
	t.Parallel()
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = fmt.Sprintf("00000000-0000-7000-8000-%012d", i)
	}
	told := worker.Told(ids)
	if len(told) != 3 || len(told[0]) != 215 || !slices.Equal(slices.Concat(told...), ids) {
		t.Errorf("%d notifications", len(told))
	}
	env, _ := startLab(t, nil)
	if _, err := env.DB.Exec(t.Context(), "select gem.tell_ended($1)", told[0]); err != nil { // it is short enough
		t.Error(err)
	}
}
