package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const missing = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"

func TestACallIsInsertedAsItIsDescribed(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	id := enqueue(t, db, client.NewCall{Tool: "shop.order", Input: map[string]any{"item": "a lamp"}, SessionID: "s",
		IdempotencyKey: "k",
		CreatedBy:      "u", Priority: 7, Delay: time.Hour})
	c, err := client.Get(t.Context(), db, id)
	if err != nil {
		t.Fatal(err)
	}
	if c.ID != id || c.Tool != "shop.order" || string(c.Input) != `{"item": "a lamp"}` || c.Status != "queued" ||
		c.SessionID != "s" ||
		c.IdempotencyKey != "k" || c.CreatedBy != "u" || c.Priority != 7 {
		t.Errorf("got %+v", c)
	}
	if pause := c.RunAt.Sub(c.CreatedAt); pause < 59*time.Minute || pause > 61*time.Minute {
		t.Errorf("it runs %s after its insert, want an hour", pause)
	}
	plain, err := client.Get(t.Context(), db, enqueue(t, db, client.NewCall{Tool: "shop.order"}))
	if err != nil || string(plain.Input) != "{}" || plain.SessionID != "" || !plain.ClaimedAt.IsZero() {
		t.Errorf("got %+v, %v, want a call with no more than a tool", plain, err)
	}
}

func TestACallOfATransactionComesWithItsCommit(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id, err := client.Enqueue(t.Context(), tx, client.NewCall{Tool: "shop.order"})
	if err != nil {
		t.Fatal(err)
	}
	var none *client.NotFoundError
	if _, err := client.Get(t.Context(), db, id); !errors.As(err, &none) {
		t.Errorf("before the commit: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), db, id); err != nil {
		t.Errorf("after the commit: %v", err)
	}
}

func TestARefusalIsPostgressOwn(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	_, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", Priority: 5000})
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Message != "priority is 5000, and must be from -1000 to 1000" {
		t.Errorf("got %v", err)
	}
	if _, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", Input: func() {}}); err == nil {
		t.Error("an input that JSON cannot express was inserted")
	}
}

func TestAwaitReturnsTheReceipt(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	id := enqueue(t, db, client.NewCall{Tool: "shop.order"})
	if _, err := client.Receipt(t.Context(), db, id); !errors.Is(err, client.ErrNoReceipt) {
		t.Errorf("before its end: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Await(ctx, db, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await for 50 ms: %v", err)
	}
	got := make(chan *receipts.Receipt)
	go func() {
		r, err := client.Await(t.Context(), db, id)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	testdb.Exec(t, db, "select gem.start_worker('w', 1, 'test', '1', '1 hour')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	testdb.Exec(t, db, `select gem.finish($1, 1, 'w', 'succeeded', '{"order_id": "7"}', '{}', '1')`, id)
	if r := <-got; r == nil || r.Status != receipts.Succeeded || r.CallID != id {
		t.Errorf("got %+v", r)
	}
	journal, err := client.Journal(t.Context(), db, id)
	if err != nil || len(journal) != 3 || journal[2].Event != "succeeded" {
		t.Errorf("journal: %+v, %v", journal, err)
	}
	e, err := client.Explain(t.Context(), db, id)
	if err != nil || e.WaitsFor != client.ForNothing || e.Receipt == nil || e.Call.WorkerID != "w" {
		t.Errorf("explained: %+v, %v", e, err)
	}
}

func TestCancelSaysWhatItCameTo(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	running, queued := enqueue(t, db, client.NewCall{Tool: "shop.order"}), ""
	testdb.Exec(t, db, "select gem.start_worker('w', 1, 'test', '1', '1 hour')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	queued = enqueue(t, db, client.NewCall{Tool: "shop.order"})
	for _, c := range []struct {
		id   string
		want client.Cancellation
	}{{queued, client.Cancelled}, {queued, "failed"}, {running, client.CancelRequested}} {
		if got, err := client.Cancel(t.Context(), db, c.id); got != c.want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, c.want)
		}
	}
	e, err := client.Explain(t.Context(), db, running)
	if err != nil || e.WaitsFor != client.ForHandler || !e.Call.CancelRequested || e.Worker == nil || !e.Worker.Alive {
		t.Errorf("explained: %+v, %v", e, err)
	}
}

func TestACallThatDoesNotExistIsNotFound(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	ended := enqueue(t, db, client.NewCall{Tool: "shop.order"})
	if _, err := client.Cancel(t.Context(), db, ended); err != nil {
		t.Fatal(err)
	}
	r, err := client.Receipt(t.Context(), db, ended)
	if err != nil {
		t.Fatal(err)
	}
	for id, receiptOf := range map[string]string{missing: "", r.ID: ended} {
		for name, ask := range map[string]func() error{
			"Get":     func() error { _, err := client.Get(t.Context(), db, id); return err },
			"Receipt": func() error { _, err := client.Receipt(t.Context(), db, id); return err },
			"Await":   func() error { _, err := client.Await(t.Context(), db, id); return err },
			"Journal": func() error { _, err := client.Journal(t.Context(), db, id); return err },
			"Cancel":  func() error { _, err := client.Cancel(t.Context(), db, id); return err },
			"Explain": func() error { _, err := client.Explain(t.Context(), db, id); return err },
		} {
			var none *client.NotFoundError
			if err := ask(); !errors.As(err, &none) || none.ID != id || none.ReceiptOf != receiptOf {
				t.Errorf("%s: got %v, want that there is no call %s, the receipt of %q", name, err, id, receiptOf)
			}
		}
	}
}

func enqueue(t *testing.T, db *pgxpool.Pool, c client.NewCall) string {
	t.Helper()
	id, err := client.Enqueue(t.Context(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAskedForAreTheQuestionsOfACallAndOfWhatItMade(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	flow := enqueue(t, db, client.NewCall{Tool: "a.flow"})
	asked := func() []client.WaitingCall {
		t.Helper()
		all, err := client.AskedFor(t.Context(), db, flow, 10)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := asked(); len(all) != 0 {
		t.Errorf("a queued call: %+v", all)
	}
	testdb.Exec(t, db, `set session_replication_role = replica;
		update core_tool_calls set status = 'waiting', waits_for = 'call';
		insert into core_tool_calls (id, tool_name, input, parent_call_id, parent_step, status, waits_for, waits, run_at,
			created_at, updated_at)
		select gen_random_uuid(), k.tool, k.input::jsonb, f.id, k.step, k.status, 'answer', '{#answer}', now(), now(), now()
			from core_tool_calls f, (values
			('wait.approval', '{"tool": "a.pay", "text": "May it?", "by": ["role:boss"]}', '##1', 'waiting'),
				('wait.answer', '{}', 'of a frontend', 'waiting'),
			('wait.answer', '{}', 'ended', 'succeeded')) k (tool, input, step, status);
		update core_tool_calls set status = 'waiting', parent_step = null where parent_step = 'of a frontend';
		reset session_replication_role`)
	all := asked()
	if len(all) != 1 || all[0].Tool != "wait.approval" || all[0].About != "a.pay" || all[0].Text != "May it?" ||
		all[0].By[0] != "role:boss" || all[0].Names[0] != "answer" {
		t.Errorf("got %+v", all)
	}
}
