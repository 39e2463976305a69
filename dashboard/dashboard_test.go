package dashboard_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pages serves the dashboard over a database of its own to one user.
func pages(t *testing.T, user dashboard.User, change ...func(*dashboard.Options)) (*httptest.Server, *pgxpool.Pool) {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	o := dashboard.Options{Read: db, Act: db, User: func(*http.Request) (dashboard.User, error) { return user, nil }}
	for _, c := range change {
		c(&o)
	}
	h, err := dashboard.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server, db
}

// get reads a page.
func get(t *testing.T, server *httptest.Server, path string) (status int, body string) {
	t.Helper()
	answer, err := server.Client().Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestTheOverviewIsAPage(t *testing.T) {
	t.Parallel()
	server, _ := pages(t, dashboard.User{Name: "ada", Operator: true})
	if status, body := get(t, server, "/"); status != 200 || !strings.Contains(body, "<h1>Overview</h1>") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get(t, server, "/nothing"); status != 404 || !strings.Contains(body, "no such page") {
		t.Errorf("%d %s", status, body)
	}
}
