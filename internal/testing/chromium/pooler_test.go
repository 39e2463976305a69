package chromium

import (
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
)

// Scenario 15.
func TestThePagesWorkThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	d := newDay(t)
	p := pgbouncer.Start(t, d.URL, pgbouncer.Options{PoolSize: 2, Settings: map[string]string{"auth_user": "postgres"}})
	d.monitor, d.operate = p.URL(d.monitor), p.URL(d.operate)
	d.mode = pgpool.TransactionPooler
	b := openTab(t, d.serve(grace))
	b.expects("status of 404")
	for _, page := range d.pages() {
		if status := b.visit(page.path); status != 200 && page.name != "nothing" {
			t.Errorf("%s: %d:\n%s", page.path, status, b.text("main"))
		}
	}
	b.visit("/calls?state=scheduled")
	b.until("a scheduled call", `document.querySelectorAll("main tr[data-key]").length === 1`)
	tomorrow := handlertest.Call{Tool: "shop.charge", Input: `{"order": "tomorrow"}`,
		RunAt: time.Now().Add(24 * time.Hour)}
	bulk := []string{d.Insert(tomorrow), d.Insert(tomorrow)}
	b.until("two more", `document.querySelectorAll("main tr[data-key]").length === 3`)
	for _, id := range bulk {
		b.click(`main tr[data-key="` + id + `"] input[type=checkbox]`)
	}
	b.follow("main button[value=cancel]")
	b.follow("main form button.danger")
	b.has("Cancelled: 2 calls.")
	b.visit("/calls/" + d.scheduled + "/cancel")
	b.follow("main form button.danger")
	if got := d.status(d.scheduled); got != "failed cancelled" {
		t.Errorf("the call is %s", got)
	}
	b.visit("/calls/" + d.hit + "/again")
	b.follow("main form button.main")
	asker := openTab(t, d.serve(ada))
	asker.visit("/questions/" + d.question)
	asker.fill("main form [name='value.0']", "the blue door")
	asker.fill("main form [name='value.1']", "3")
	asker.click("main form [name='value.2'][value='0']")
	asker.follow("main form button.main")
	if r := d.Await(d.fulfil); r.Status != "succeeded" {
		t.Errorf("the call that asked: %s", r.Result)
	}
	b.visit("/questions/" + d.approval)
	b.follow("main form button[value=approve]")
	if r := d.Await(d.refund); r.Status != "succeeded" {
		t.Errorf("the refund: %s", r.Result)
	}
}
