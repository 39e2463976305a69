package chromium

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/migrations"
)

// Scenario 4: a worker's process is killed while a page is open. It counts as dead after 5 s of silence, and the pages
// refresh every 2 s.
func TestAWorkerThatIsKilledIsSaidToBeDead(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	p := startGem(t, []string{"DATABASE_URL=" + s.URL, "WORKER_ID=cellar"}, "worker")
	held := s.Insert(of("shop.charge", `{"order": "slow-4"}`))
	s.Until("the handler to run", func() bool { return s.status(held) == "running" })
	if got := s.value("select alive_until - heartbeat_at <= interval '6 s' from core_workers"); got != "true" {
		t.Error("a worker is alive for more than 6 s after it was heard of")
	}
	origin := s.serve(ada)
	workers, overview, call := openTab(t, origin), openTab(t, origin), openTab(t, origin)
	var stay []func()
	for b, path := range map[*tab]string{workers: "/workers", overview: "/", call: "/calls/" + held} {
		b.visit(path)
		stay = append(stay, b.stays())
	}
	workers.until("a living worker", `document.querySelectorAll("main .state.alive").length === 1`)
	workers.has("cellar", "1 of ")
	overview.says("1 worker alive")
	call.until("a running call", `document.querySelector("main .state.running")`)

	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	workers.until("a dead worker",
		`document.querySelectorAll("main .state.dead").length === 1 && !document.querySelector("main .state.alive")`)
	overview.says("0 workers alive")
	overview.says("A dead worker holds 1 call, and no other is alive to take it over")
	call.says("cellar")

	// Another worker takes over. Nobody knows whether the first one charged the card.
	s.StartWorker()
	s.Await(held)
	workers.until("both workers",
		`document.querySelectorAll("main .state.dead").length === 1 && document.querySelectorAll("main .state.alive").length === 1`)
	overview.says("1 call may or may not have taken effect")
	call.until("its end",
		`document.querySelector("main .state.failed") && document.body.innerText.includes("outcome_unknown")`)
	for _, check := range stay {
		check()
	}
}

// server is a test's own Postgres, which can be stopped and started again on its data. A gate in front of it keeps its
// address.
type server struct {
	*gate
	t       *testing.T
	options pgserver.Options
	running *pgserver.Server
}

func newServer(t *testing.T) *server {
	t.Helper()
	theBrowser(t)
	// The user that runs Postgres, which is not root, must reach the folder.
	folder, err := os.MkdirTemp("/tmp", "gem-chromium-postgres-")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		err = os.Chmod(folder, 0o755) //nolint:gosec // it contains only the data folder, which nobody else may read
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, options: pgserver.Options{DataDir: filepath.Join(folder, "data")}}
	s.start()
	t.Cleanup(func() { _ = s.running.Stop() })
	s.gate = newGate(t, s.running.URL("postgres"))
	return s
}

func (s *server) start() {
	s.t.Helper()
	var err error
	if s.running, err = pgserver.Start(context.Background(), s.options); err != nil {
		s.t.Fatal(err)
	}
}

// again starts the server after a Stop.
func (s *server) again() {
	s.t.Helper()
	s.start()
	u, err := url.Parse(s.running.URL("postgres"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = u.Host // a new port
}

// Scenarios 4 and 14: Postgres is stopped while pages are open, and started again. Then it is migrated for the next
// version. Then the dashboard ends.
func TestPagesOutliveARestartOfPostgresAndTheNextVersion(t *testing.T) {
	t.Parallel()
	postgres := newServer(t)
	database := postgres.through(postgres.running.URL("postgres"))
	sources := migrations.Sources(append(builtin.Domains(), newShop())...)
	migrate := func() []string {
		t.Helper()
		r, err := migrations.Apply(context.Background(), database, migrations.Options{}, sources...)
		if err != nil {
			t.Fatal(err)
		}
		return r.Applied
	}
	migrate()
	s := newScene(t, func(o *handlertest.Options) { o.Database = database })
	ended := s.Insert(of("shop.charge", `{"order": "declined-1"}`))
	s.Await(ended)
	running := s.Insert(of("shop.charge", `{"order": "slow-5"}`))
	s.runs(running)

	p := startGem(t, []string{"DATABASE_URL=" + s.monitor, "GEM_DASHBOARD_LISTEN=127.0.0.1:0", "GEM_DASHBOARD_AUTH=none"},
		"dashboard")
	origin := p.writes(`(http://127\.0\.0\.1:\d+)`)[1]
	paths := []string{"/calls", "/", "/workers", "/calls/" + running}
	var tabs []*tab
	var stay []func()
	for _, path := range paths {
		b := openTab(t, origin)
		b.expects("status of 503", "net::ERR")
		b.visit(path)
		tabs, stay = append(tabs, b), append(stay, b.stays())
	}
	list := tabs[0]
	rows := func(n string) string { return `document.querySelectorAll("main tr[data-key]").length === ` + n }
	list.until("two rows", rows("2"))

	if err := postgres.running.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, b := range tabs {
		b.until("the outage to be said", `!document.querySelector("#away").hidden`)
	}
	other := openTab(t, origin)
	other.expects("status of 503")
	for _, path := range append(paths, "/calls.json", "/healthz") {
		if status, _ := fetch(t, origin+path); status != 503 {
			t.Errorf("without Postgres %s is answered with %d", path, status)
		}
	}
	other.visit("/calls")
	other.has("cannot be reached")

	postgres.again()
	s.DB.Reset()
	for _, b := range append(tabs, other) {
		b.until("the end of the outage", `document.querySelector("#away")?.hidden`)
	}
	s.Insert(of("os.create_note", note))
	list.until("what was inserted since", rows("3")+` && document.querySelectorAll("main .state.succeeded").length === 1`)
	other.until("the list", rows("3"))

	// The functions are applied as a whole, under a higher number than that of the database. Then tables and views get
	// columns.
	s.exec("update gem.migrations set version = version - 1, sha256 = repeat('0', 64) where source = 'functions'")
	if applied := strings.Join(migrate(), " "); !strings.Contains(applied, "functions/") {
		t.Fatalf("the migration applied %q", applied)
	}
	// Each table has its own transaction. A transaction that locked several tables could deadlock with a worker that reads
	// them.
	for _, table := range []string{"core_tool_calls", "core_tool_receipts", "core_tool_events", "core_workers"} {
		s.exec("alter table public." + table + " add column of_the_next_version text default 'x'")
	}
	for _, view := range []string{"calls", "receipts", "journal", "registries", "workers", "queue", "outcomes",
		"outcome_totals", "throughput", "questions", "overdue"} {
		s.exec(`do $$ begin
			execute format('create or replace view gem.%1$I as select v.*, 1 as of_the_next_version from (%2$s) v', '` + view +
			`', rtrim(pg_get_viewdef('gem.` + view + `'::regclass), ';'));
		end $$`)
	}
	s.Insert(of("os.create_note", note))
	list.until("what was inserted since", rows("4")+` && document.querySelectorAll("main .state.succeeded").length === 2`)
	s.exec("select public.cancel_tool_call($1)", running)
	tabs[3].until("the end of the call", `document.querySelector("main .state.cancelled")`)
	for _, path := range append(paths, "/failures", "/questions", "/tools", "/tools/shop.charge", "/sessions",
		"/calls/"+ended, "/calls.json", "/healthz") {
		if status, text := fetch(t, origin+path); status != 200 {
			t.Errorf("after the migration %s is answered with %d: %.1000s", path, status, text)
		}
	}
	for i, check := range stay {
		check()
		if !eval[bool](tabs[i], `document.querySelector("#away").hidden`) {
			t.Errorf("%s still speaks of an outage: %s", paths[i], tabs[i].text("#away"))
		}
	}

	// A stream that breaks has no regular end. These streams end in order before the process does.
	began, read := make(chan struct{}), make(chan error, 1)
	go func() {
		answer, err := http.Get(origin + "/live?watch=overview")
		close(began)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		read <- err
	}()
	<-began
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := <-read; err != nil {
		t.Errorf("the stream was cut: %v", err)
	}
	for _, b := range tabs {
		b.until("it to be said", `!document.querySelector("#away").hidden`)
	}
}
