package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestACallWithoutReceiptSaysSo(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	if _, err := store.Receipt(t.Context(), db, "00000000-0000-4000-8000-000000000000"); !errors.Is(err,
		receipts.ErrNone) {
		t.Errorf("got %v", err)
	}
}

// Of several calls that are handed over together, one that another worker has by now does not keep the others.
func TestHandingOverPassesOverWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	ctx := t.Context()
	if _, err := store.StartWorker(ctx, db, store.Worker{ID: "w", Concurrency: 3, DeadAfter: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(ctx, "insert into core_tool_calls (tool_name, input, priority) select 't.x', '{}', n from "+
		"generate_series(1, 3) n"); err != nil {
		t.Fatal(err)
	}
	calls, err := store.Claim(ctx, db, "w", 3, 3, true, nil)
	if err != nil || len(calls) != 3 || calls[0].Level != 3 || calls[2].Level != 1 {
		t.Fatalf("claimed %+v, %v", calls, err)
	}
	var attempts []store.Attempt
	for _, c := range calls {
		attempts = append(attempts, c.Attempt)
	}
	attempts[1].Number++ // as if it had been claimed again
	if err := store.ReleaseAll(ctx, db, "w", attempts); err != nil {
		t.Fatal(err)
	}
	if err := store.Release(ctx, db, attempts[1], nil, ""); !store.IsNotHeld(err) {
		t.Errorf("got %v", err)
	}
	notices, err := store.Heartbeat(ctx, db, "w", time.Minute, attempts, true)
	if err != nil {
		t.Fatal(err)
	}
	got := map[store.Notice]bool{}
	for _, n := range notices {
		got[n] = true
	}
	want := map[store.Notice]bool{}
	for _, a := range attempts {
		want[store.Notice{Attempt: a, Verdict: store.NoticeLost}] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
