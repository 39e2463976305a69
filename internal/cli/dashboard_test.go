package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestADashboardIsRefusedWhereAnybodyCouldComeIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"", []string{"--listen", "0.0.0.0:0"}, "set --auth to link, password, header or oidc"},
		{"", []string{"--listen", "0.0.0.0:0", "--auth", "none"}, "anyone would see all calls"},
		{"", []string{"--auth", "password"}, "GEM_DASHBOARD_PASSWORD_HASH is not set"},
		{"GEM_DASHBOARD_PASSWORD_HASH=a/L3", []string{"--auth", "password"}, "single quotes"},
		{"GEM_DASHBOARD_USER_HEADER=X-User", []string{"--auth", "header"}, "GEM_DASHBOARD_TRUSTED_PROXIES"},
		{"GEM_DASHBOARD_ROLES=admin=ada", nil, "GEM_DASHBOARD_ROLES"},
		{"GEM_DASHBOARD_TRUSTED_PROXIES=nginx", nil, "GEM_DASHBOARD_TRUSTED_PROXIES"},
		{"GEM_DASHBOARD_ACT_URL=postgres://u:hunter2@h:port/d", nil, "GEM_DASHBOARD_ACT_URL"},
		{"", []string{"--auth", "saml"}, "it may be link, password, header, oidc or none"},
		{"", []string{"--auth", "oidc"}, "GEM_DASHBOARD_OIDC_ISSUER"},
		{"GEM_DASHBOARD_OIDC_ISSUER=http://issuer.example", []string{"--auth", "oidc"}, "GEM_DASHBOARD_OIDC_ISSUER is"},
		{"", []string{"--prefix", "gem"}, "--prefix is"},
		{"", []string{"--listen", "8470"}, "--listen is"},
	} {
		args := append([]string{"dashboard", "--listen", "127.0.0.1:0"}, c.args...)
		e := gemWith(t, []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none", c.env}, args...)
		e.wantCode(t, exitUsage)
		wants(t, e.stderr, c.want)
		if strings.Contains(e.stderr, "hunter2") {
			t.Errorf("a secret is shown: %s", e.stderr)
		}
	}
	gemWith(t, nil, "dashboard").wantCode(t, exitUsage) // no DATABASE_URL
}

func TestAPasswordsHashIsMadeFromStdin(t *testing.T) {
	t.Parallel()
	e := gemReading(t, nil, "correct horse\n", "dashboard", "hash")
	e.wantCode(t, 0)
	if !regexp.MustCompile(`^\$2a\$12\$\S{53}\n$`).MatchString(e.stdout) {
		t.Errorf("%q", e.stdout)
	}
	e = gemReading(t, nil, "short", "dashboard", "hash")
	e.wantCode(t, exitUsage)
	wants(t, e.stderr, "at least 8 characters")
}

// dashboardLink is the last link that a process printed.
func dashboardLink(t *testing.T, p *process) string {
	t.Helper()
	p.stdout.waitFor(t, "/login?token=")
	links := regexp.MustCompile(`http://127\.0\.0\.1:\d+\S*/login\?token=\w+`).FindAllString(p.stdout.String(), -1)
	return links[len(links)-1]
}

// visit reads a page as a browser that keeps cookies.
func visit(t *testing.T, browser *http.Client, address string) (status int, body string) {
	t.Helper()
	answer, err := browser.Get(address)
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

func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

func TestADashboardEndsInOrderWhileAStreamIsOpen(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	opener := t.TempDir()
	const script = "#!/bin/sh\n/bin/ls -l \"$1\" > shown.new\n/bin/cat \"$1\" >> shown.new\n/bin/mv shown.new shown\n"
	if err := os.WriteFile(filepath.Join(opener, "xdg-open"), []byte(script),
		0o700); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	p := prepare(t, []string{"PATH=" + opener, "TMPDIR=" + opener, "DATABASE_URL=" + database,
		"GEM_DASHBOARD_ACT_URL=" + database},
		"dashboard", "--listen", "127.0.0.1:0", "--prefix", "/gem/", "--open")
	p.start(t)
	link, browser := dashboardLink(t, p), newBrowser(t)
	if runtime.GOOS == "linux" {
		var shown []byte
		for late := time.Now().Add(patience); len(shown) == 0 && time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
			shown, _ = os.ReadFile(filepath.Join(p.cmd.Dir, "shown"))
		}
		if !strings.HasPrefix(string(shown), "-rw------- ") || !strings.Contains(string(shown), link) {
			t.Errorf("--open shows %s", shown)
		}
	}
	if status, body := visit(t, browser, link); status != 200 || !strings.Contains(body, "<h1>Overview</h1>") {
		t.Fatalf("%d %s", status, body)
	}
	p.stdout.waitFor(t, "for another browser")
	if next := dashboardLink(t, p); next == link {
		t.Error("the next link is the one that was used")
	}
	if status, body := visit(t, newBrowser(t), link); status != 401 || !strings.Contains(body, "has been used") {
		t.Errorf("the link again: %d %s", status, body)
	}
	log := p.stderr.waitFor(t, "GEM_DASHBOARD_ACT_URL")
	wants(t, log, "can do more than the pages need", "it is a superuser")
	if u, err := url.Parse(link); err != nil || strings.Contains(log, u.Query().Get("token")) {
		t.Errorf("the token is in the log: %v", err)
	}
	wants(t, log, `"path":"/gem/login","status":303`)

	stream, err := browser.Get(strings.Replace(link, "/login?token=", "/live?watch=/&", 1))
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatal(err, stream)
	}
	defer stream.Body.Close()
	p.stop(t)
	if _, err := bufio.NewReader(stream.Body).ReadString(0); err == nil {
		t.Error("the stream goes on")
	}
	if left, err := filepath.Glob(filepath.Join(opener, "gem-dashboard-*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestADashboardWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	p := startGem(t, []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, "dashboard", "--listen", "127.0.0.1:0",
		"--auth", "none")
	at := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(p.stdout.waitFor(t, "It is read-only"))
	if status, body := visit(t, newBrowser(t), at); status != 503 || !strings.Contains(body, `http-equiv="refresh"`) ||
		!strings.Contains(body, "cannot be reached") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := visit(t, newBrowser(t), at+"healthz"); status != 503 {
		t.Errorf("/healthz: %d", status)
	}
	p.stop(t)
}

// loginOf returns the URL of a database for a login in roles.
func loginOf(t *testing.T, db *pgxpool.Pool, database, roles string) string {
	t.Helper()
	role := "gem_test_" + strings.ToLower(rand.Text())
	testdb.Exec(t, db, "create role "+role+" login password 'secret' in role "+roles)
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), "drop role "+role) })
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

// The logins of gem dev and compose have the rights that the pages need, and no others.
func TestADashboardSaysNothingOfConnectionsThatHaveTheRightsTheyNeed(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	db := testdb.Pool(t, database)
	logins := map[string]string{"monitor": loginOf(t, db, database, "gem_monitor"),
		"operator": loginOf(t, db, database, "gem_operator, gem_mcp")}
	check := func(read, act, want string) {
		t.Helper()
		p := startGem(t, []string{"DATABASE_URL=" + read, "GEM_DASHBOARD_ACT_URL=" + act}, "dashboard", "--listen",
			"127.0.0.1:0")
		p.stderr.waitFor(t, want)
		p.signal(t, syscall.SIGTERM)
		p.wait(t)
		if log := p.stderr.String(); want == "serving the dashboard" && strings.Contains(log, "warn") {
			t.Errorf("%s", log)
		}
	}
	check(logins["monitor"], logins["operator"], "serving the dashboard")
	check(logins["operator"], logins["operator"], "it is a member of gem_frontend, gem_mcp, gem_operator")
	check(logins["monitor"], logins["monitor"], "lacks rights")
}
