package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

// behind lets a test's dashboard read from a standby if GEM_TEST_REPLICA is live, paused or gone. All tests must pass
// with each of them.
func behind(t *testing.T, o *dashboard.Options, database string) (through func(http.Handler) http.Handler) {
	t.Helper()
	state := os.Getenv("GEM_TEST_REPLICA")
	if state == "" {
		return func(h http.Handler) http.Handler { return h }
	}
	standby := testdb.Replica(t, database)
	switch state {
	case "live":
	case "paused": // it never has the database
		standby = strings.Replace(standby, "/gem_test_", "/gem_test_later_", 1)
	case "gone":
		standby = "postgres://gem@127.0.0.1:1/x"
	default:
		t.Fatalf("GEM_TEST_REPLICA is %s", state)
	}
	o.Replica = as(t, standby, "gem_monitor")
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if state == "live" {
				testdb.CaughtUp(t, database, standby)
			}
			h.ServeHTTP(w, r)
		})
	}
}

// duet is a primary and a standby for one test, with pools for a dashboard.
type duet struct {
	*testing.T
	primary, standby *pgserver.Server
	db, read         *pgxpool.Pool // of the primary: the owner, and the viewer
	replica          *pgxpool.Pool
}

func newDuet(t *testing.T, settings map[string]string) *duet {
	t.Helper()
	d := &duet{T: t, primary: testdb.Private(t, pgserver.Options{Settings: settings})}
	url := d.primary.URL("postgres")
	if err := migrations.Up(t.Context(), url, migrations.Sources(builtin.Domains()...)...); err != nil {
		t.Fatal(err)
	}
	d.standby = testdb.Standby(t, d.primary, settings)
	d.db, d.read, d.replica = testdb.Pool(t, url), as(t, url, "gem_monitor"), as(t, d.standby.URL("postgres"),
		"gem_monitor")
	testdb.Exec(t, d.db, "select gem.start_worker('w', 50, '', '1', '1 hour')")
	return d
}

func (d *duet) serve(replica *pgxpool.Pool) *httptest.Server {
	d.Helper()
	h, err := dashboard.New(dashboard.Options{Read: d.read, Replica: replica,
		User: func(*http.Request) (dashboard.User, error) { return dashboard.User{Name: "vi"}, nil }})
	if err != nil {
		d.Fatal(err)
	}
	server := httptest.NewServer(h)
	d.Cleanup(server.Close)
	return server
}

func (d *duet) caughtUp() {
	d.Helper()
	testdb.CaughtUp(d, d.primary.URL("postgres"), d.standby.URL("postgres"))
}

const fromReplica = "Read from the standby, whose newest heartbeat is "

func TestListsAreReadFromTheReplica(t *testing.T) {
	t.Parallel()
	d := newDuet(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"})
	testdb.Exec(t, d.db, "create extension pg_stat_statements")
	id := made(t, d.db, client.NewCall{Tool: "shop.order", SessionID: "s"})
	d.caughtUp()
	server := d.serve(d.replica)
	lists := []string{"/", "/?range=day", "/calls", "/calls?state=queued", "/calls?tool=shop.order", "/failures",
		"/sessions", "/sessions?id=s", "/tools", "/workers", "/epochs"}
	if status, _ := get(t, server, "/"); status != http.StatusOK { // it fills the cache of the number of open questions
		t.Fatal(status)
	}
	testdb.Exec(t, d.db, "select pg_stat_statements_reset()")
	for range 5 {
		for _, path := range lists {
			if status, body := get(t, server, path); status != http.StatusOK || !strings.Contains(body, fromReplica) {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
	}
	reads := func(db *pgxpool.Pool) int {
		return testdb.Value[int](t, db, `select coalesce(sum(calls), 0)::int from pg_stat_statements s where query ~* '^\s*(with|select)'
			and query ~ 'gem\.' and query !~ 'pg_is_in_recovery'`)
	}
	primary, standby := reads(d.db), reads(testdb.Pool(t, d.standby.URL("postgres")))
	if standby < 50 || primary*20 > primary+standby {
		t.Errorf("%d reads on the primary, and %d on the standby", primary, standby)
	}
	if status, body := get(t, server, "/calls/"+id); status != http.StatusOK || strings.Contains(body, fromReplica) {
		t.Errorf("a call's page: %d %s", status, body)
	}
}

func TestThePrimaryIsReadWhileTheReplicaCannotBe(t *testing.T) {
	testdb.Long(t, "TestListsAreReadFromTheReplica")
	t.Parallel()
	d := newDuet(t, nil)
	server := d.serve(d.replica)
	made(t, d.db, client.NewCall{Tool: "shop.order", SessionID: "s"})
	shows := func(what, text string) {
		t.Helper()
		testdb.Eventually(t, what, func() bool { // the last check of the standby is reused for a moment
			status, body := get(t, server, "/calls")
			if status != http.StatusOK {
				t.Fatal(status, body)
			}
			return strings.Contains(body, "shop.order") && strings.Contains(body, text)
		})
	}
	shows("it is used", fromReplica)
	testdb.Exec(t, d.db, "update core_workers set heartbeat_at = now() - interval '2 minutes'")
	d.caughtUp()
	at := testdb.Pool(t, d.standby.URL("postgres"))
	testdb.Exec(t, at, "select pg_wal_replay_pause()")
	made(t, d.db, client.NewCall{Tool: "shop.pack", SessionID: "s"})
	shows("it is paused", "Read from the primary: the standby has had no heartbeat for 2m")
	shows("the new call", "shop.pack")
	testdb.Exec(t, at, "select pg_wal_replay_resume()")
	testdb.Exec(t, d.db, "update core_workers set heartbeat_at = now()")
	shows("it is used again", fromReplica)
	server = d.serve(as(t, strings.Replace(d.standby.URL("postgres"), "/postgres?", "/nowhere?", 1), "gem_monitor"))
	shows("its URL is wrong", `the standby cannot be read: database &#34;nowhere&#34; does not exist`)
	server = d.serve(d.replica)
	if err := d.standby.Stop(); err != nil {
		t.Fatal(err)
	}
	shows("it is gone", "Read from the primary: the standby ")

	server = d.serve(d.read)
	shows("it is a primary", "Read from the primary: the standby is itself a primary.")
}

func TestAReadThatReplayCancelsIsMadeOnThePrimary(t *testing.T) {
	testdb.Long(t, "TestListsAreReadFromTheReplica")
	t.Parallel()
	d := newDuet(t, map[string]string{"max_standby_streaming_delay": "0"})
	testdb.Exec(t, d.db, "create table rows as select generate_series(1, 1000) n; grant select on rows to gem_monitor")
	d.caughtUp()
	replica := view.NewReplica(d.replica)
	runs, sum := 0, 0
	source, err := replica.Read(t.Context(), d.read, func(ctx context.Context, db view.DB) error {
		runs++
		if _, err := db.Exec(ctx, "declare c cursor for select n from public.rows"); err != nil { // it holds a snapshot
			return err
		}
		if runs == 1 {
			testdb.Exec(t, d.db, "delete from rows where n > 500")
			testdb.Exec(t, d.db, "vacuum rows")
			d.caughtUp()
		}
		return db.QueryRow(ctx, "select count(*) from public.rows").Scan(&sum)
	})
	if err != nil || runs != 2 || sum != 500 || source.Standby || !strings.Contains(source.String(),
		"conflict with recovery") {
		t.Errorf("%d runs, %d rows, %q, %v", runs, sum, source, err)
	}
}

// Otherwise an action would seem to have no effect.
func TestAfterAnActionThePrimaryIsRead(t *testing.T) {
	testdb.Long(t, "TestListsAreReadFromTheReplica")
	t.Parallel()
	d := newDuet(t, nil)
	d.caughtUp()
	user := dashboard.User{Name: "ada", Operator: true}
	h, err := dashboard.New(dashboard.Options{Read: d.read, Replica: d.replica, Act: d.db,
		User: func(*http.Request) (dashboard.User, error) { return user, nil }})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	testdb.Exec(t, testdb.Pool(t, d.standby.URL("postgres")), "select pg_wal_replay_pause()")
	id := made(t, d.db, client.NewCall{Tool: "shop.order"})
	if _, body := get(t, server, "/calls"); strings.Contains(body, "shop.order") || !strings.Contains(body, fromReplica) {
		t.Errorf("before: %s", body)
	}
	path := fmt.Sprintf("/calls/%s/cancel", id)
	send(t, server, path, fill(t, server, path, path))
	if _, body := get(t, server, "/calls"); !strings.Contains(body, "shop.order") || strings.Contains(body, fromReplica) {
		t.Errorf("after: %s", body)
	}
}
