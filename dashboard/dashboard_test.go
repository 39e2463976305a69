package dashboard_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pages serves the dashboard over a private database to one user, with a user's rights. The pool is the owner's.
func pages(t *testing.T, user dashboard.User, change ...func(*dashboard.Options)) (*httptest.Server, *pgxpool.Pool) {
	t.Helper()
	at := testdb.New(t)
	db := testdb.Pool(t, at)
	o := dashboard.Options{Read: login(t, db, at, "gem_monitor"), Act: login(t, db, at, "gem_operator, gem_mcp"),
		User: func(*http.Request) (dashboard.User, error) { return user, nil }}
	for _, c := range change {
		c(&o)
	}
	through := behind(t, &o, at)
	h, err := dashboard.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(through(h))
	t.Cleanup(server.Close)
	return server, db
}

// login returns a pool of a new login role, a member of other roles.
func login(t *testing.T, owner *pgxpool.Pool, at, of string) *pgxpool.Pool {
	t.Helper()
	role := "gem_test_" + strings.ToLower(rand.Text())
	if _, err := owner.Exec(t.Context(), "create role "+role+" login password 'secret' in role "+of); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its pool is closed by then, and the owner's is not
		if _, err := owner.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	return testdb.Pool(t, u.String())
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
	if status, body := get(t, server, "/nothing"); status != 404 || !strings.Contains(body, "This page does not exist") {
		t.Errorf("%d %s", status, body)
	}
}
