package chromium

import (
	"testing"

	"github.com/gemworker/gem/internal/pgbouncer"
	"github.com/gemworker/gem/internal/pgpool"
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
	b.visit("/calls/" + d.scheduled + "/cancel")
	b.follow("main form button.danger")
	if got := d.status(d.scheduled); got != "failed cancelled" {
		t.Errorf("the call is %s", got)
	}
	b.visit("/calls/" + d.hit + "/again")
	b.follow("main form button.main")
	b.visit("/questions/" + d.approval)
	b.follow("main form button[value=approve]")
	if r := d.Await(d.refund); r.Status != "succeeded" {
		t.Errorf("the refund: %s", r.Result)
	}
}
