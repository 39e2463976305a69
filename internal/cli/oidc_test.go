package cli

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/oidcprovider"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// freePort is a port of this machine that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// The issuer is of other people's making: it requires PKCE, and checks the client, its redirect URI and each code.
func TestPeopleSignInAtAnIssuerAndApproveAsThemselves(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	db := testdb.Pool(t, database)
	operator := loginOf(t, db, database, "gem_operator, gem_mcp")
	role, err := url.Parse(operator)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, secret, method string
		frontends            string // empty: the issuer itself
		approves             bool
	}{
		{name: "in a header", secret: "hunter2 %+&", approves: true},
		{name: "in the form", secret: "hunter2", method: "client_secret_post", frontends: "https://other.example"},
		{name: "none", method: "none", approves: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pages := "http://127.0.0.1:" + freePort(t)
			issuer := oidcprovider.Start(t, oidcprovider.Options{
				Client: oidcprovider.Client{
					ID: "gem dashboard", Secret: c.secret, AuthMethod: c.method, Redirects: []string{pages + "/gem/login/callback"},
				},
				Accounts: map[string]map[string]any{
					"cleo": {"groups": []string{"staff", "ops"}}, "bob": {"groups": []string{"staff"}}, "eve": {},
					role.User.Username(): {"groups": []string{"staff"}},
				},
			})
			if c.frontends == "" {
				c.frontends = issuer
			}
			p := startGem(t, []string{
				"DATABASE_URL=" + loginOf(t, db, database, "gem_monitor"), "GEM_DASHBOARD_ACT_URL=" + operator,
				"GEM_DASHBOARD_AUTH=oidc", "GEM_DASHBOARD_OIDC_ISSUER=" + issuer, "GEM_DASHBOARD_OIDC_CLIENT_ID=gem dashboard",
				"GEM_DASHBOARD_OIDC_CLIENT_SECRET=" + c.secret, "GEM_DASHBOARD_OIDC_GROUPS_CLAIM=groups",
				"GEM_DASHBOARD_ROLES=operator=@ops viewer=@staff", "GEM_MCP_ISSUER=" + c.frontends,
			}, "dashboard", "--listen", strings.TrimPrefix(pages, "http://"), "--prefix", "/gem")
			p.stdout.waitFor(t, pages+"/gem/")

			startWorker(t, database)
			testdb.Exec(t, db, "insert into gem.roles values ('cleo', 'boss') on conflict do nothing")
			id := testdb.Value[string](t, db, `insert into core_tool_calls (tool_name, input, created_by)
				values ('wait.approval', $1, 'bob') returning id::text`,
				`{"tool": "a.b", "input": {}, "text": "May it?", "by": ["role:boss"], "digest": "`+digest+`"}`)
			for testdb.Value[string](t, db, "select status from core_tool_calls where id = $1", id) != "waiting" {
			}

			cleo, question := newBrowser(t), pages+"/gem/questions/"+id
			if _, page := visit(t, cleo, question); !strings.Contains(page, "Sign in at localhost") {
				t.Fatalf("the login page: %s", page)
			}
			start := pages + "/gem/login/start?to=" + url.QueryEscape("/questions/"+id)
			status, page, at := oidcprovider.SignIn(t, cleo, start, "cleo")
			if status != 200 || at.Path != "/gem/login/callback" || !strings.Contains(page, "url=/gem/questions/"+id) {
				t.Fatalf("after signing in: %d %s %s", status, at, page)
			}
			status, page = visit(t, cleo, question)
			if c.approves {
				wants(t, page, "You answer as cleo", `name="decision" value="approve"`)
			} else {
				wants(t, page, "calls are made with tokens of https://other.example", "a different name")
			}
			if status != 200 || strings.Contains(page, `name="decision"`) != c.approves {
				t.Errorf("the question: %d %s", status, page)
			}
			_, page, again := oidcprovider.SignIn(t, newBrowser(t), start, "bob")
			if again.Path != at.Path || !strings.Contains(page, "You are signed in.") {
				t.Errorf("bob: %s", page)
			}
			for person, want := range map[string]string{
				"eve":                "neither you, as eve, nor one of your groups",
				role.User.Username(): "the name of a role of the database",
			} {
				stranger := newBrowser(t)
				status, page, _ := oidcprovider.SignIn(t, stranger, start, person)
				if status != 403 || !strings.Contains(page, want) {
					t.Errorf("%s: %d %s", person, status, page)
				}
				if _, page := visit(t, stranger, pages+"/gem/"); !strings.Contains(page, "Sign in at") {
					t.Errorf("%s got in: %s", person, page)
				}
			}
			p.stop(t)
			log := p.stderr.String()
			wants(t, log, `"user":"cleo","operator":true`, `"user":"bob","operator":false`)
			if c.secret != "" && strings.Contains(log, c.secret) || strings.Contains(log, "code=") {
				t.Errorf("a secret is in the log: %s", log)
			}
			if said := strings.Contains(log,
				"approvals that need someone other than the asker are refused"); said == c.approves {
				t.Errorf("said that approvals are refused: %v", said)
			}
		})
	}
}
