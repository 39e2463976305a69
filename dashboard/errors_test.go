package dashboard_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestPagesSayThatTheDatabaseIsNotMigrated(t *testing.T) {
	t.Parallel()
	empty := testdb.Pool(t, testdb.NewEmpty(t))
	server, _ := pages(t, dashboard.User{Name: "ada", Operator: true}, func(o *dashboard.Options) { o.Read, o.Act = empty, empty })
	for _, path := range []string{"/", "/calls", "/calls.json", "/failures", "/sessions", "/tools", "/workers", "/questions", "/calls/00000000-0000-0000-0000-000000000001"} {
		if status, body := get(t, server, path); status != 503 || !strings.Contains(body, "gem migrate") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestHealthIsThatOfTheDatabaseTheServerNeeds(t *testing.T) {
	t.Parallel()
	empty := testdb.Pool(t, testdb.NewEmpty(t))
	server, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = empty })
	if status, body := get(t, server, "/healthz"); status != 503 || body != "GEM's tables are missing or of another version. Run gem migrate.\n" {
		t.Errorf("not migrated: %d %s", status, body)
	}
	url := testdb.New(t)
	owner := testdb.Pool(t, url)
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "pg_monitor") })
	if status, body := get(t, server, "/healthz"); status != 503 || !strings.Contains(body, "may not read what the pages show") {
		t.Errorf("without rights: %d %s", status, body)
	}
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "gem_monitor") })
	if status, body := get(t, server, "/healthz"); status != 200 || body != "ok\n" {
		t.Errorf("busy: %d %s", status, body)
	}
	if _, err := tx.Exec(t.Context(), "alter view gem.calls rename column progress to progressed"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "gem_monitor") })
	if status, _ := get(t, server, "/healthz"); status != 503 {
		t.Errorf("pages that are watched read a column that is not there: %d", status)
	}
}

func TestAPageDoesNotWaitLongForALock(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, server, "/calls"); status != 503 || !strings.Contains(body, "did not answer in time") {
		t.Errorf("%d %s", status, body)
	}
}

func TestAnActOnADatabaseThatTakesNoChangesSaysSo(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true}, func(o *dashboard.Options) {
		standby := o.Act.Config()
		standby.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		var err error
		if o.Act, err = pgxpool.NewWithConfig(t.Context(), standby); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Act.Close)
	})
	var id string
	if err := db.QueryRow(t.Context(), "insert into core_tool_calls (tool_name) values ('a.tool') returning id::text").Scan(&id); err != nil {
		t.Fatal(err)
	}
	answer, err := http.PostForm(server.URL+"/calls/"+id+"/cancel", url.Values{"form": {"00000000000000000000000001"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "is read-only now") {
		t.Errorf("%d %s %v", answer.StatusCode, body, err)
	}
}
