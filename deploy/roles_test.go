package deploy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// Runs the commands of the stack, with the variables of docker-compose.yml, on a Postgres outside a container.
func TestTheWorkersOfComposeAreMembersOfGemWorker(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, pgserver.Options{})
	owner, worker := []string{"DATABASE_URL=" + server.URL("postgres")}, []string{"WORKER_ID=compose"}
	for name, value := range services(t)["worker"].Environment {
		if name == "DATABASE_URL" {
			worker = append(worker, name+"="+onServer(t, unset(*value), server))
		}
	}
	// Twice: the service roles runs at each start.
	for range 2 {
		applyRoles(t, server)
		if code, out := gem(t, owner, "migrate"); code != 0 {
			t.Fatalf("gem migrate: %s", out)
		}
	}
	start(t, worker, "worker started", "worker")
	if code, out := gem(t, worker, "healthcheck"); code != 0 {
		t.Errorf("gem healthcheck: %s", out)
	}
	const input = `{"domain": "business", "title": "Roof", "content": "Two tiles"}`
	if code, out := gem(t, owner, "call", "os.create_note", input, "--wait"); code != 0 ||
		!strings.Contains(out, `"succeeded"`) {
		t.Errorf("gem call: %s", out)
	}
	if code, out := gem(t, owner, "audit"); code != 0 {
		t.Errorf("gem audit: %s", out)
	}
	if code, out := gem(t, worker, "call", "os.create_note", input); code == 0 {
		t.Errorf("a worker may make calls: %s", out)
	}

	var pages []string
	for name, value := range services(t)["dashboard"].Environment {
		switch {
		case name == "DATABASE_URL" || name == "GEM_DASHBOARD_ACT_URL":
			pages = append(pages, name+"="+onServer(t, unset(*value), server))
		case value != nil:
			pages = append(pages, name+"="+unset(*value))
		}
	}
	if got := strings.Join(services(t)["dashboard"].Command, " "); got != "dashboard --listen 0.0.0.0:8470" {
		t.Errorf("the service dashboard runs %s", got)
	}
	if line := start(t, pages, "serving the dashboard", "dashboard", "--listen", "0.0.0.0:0"); !strings.Contains(line,
		`"url":"http://127.0.0.1:8470/","read_only":false`) {
		t.Errorf("the dashboard: %s", line)
	}

	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for what, query := range map[string]string{
		"the role has a right of its own": `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles
			where rolname = 'worker'`,
		"the role owns something": `select exists (select from pg_shdepend where refobjid = 'worker'::regrole
			and deptype = 'o')`,
		"it is in another role": `select array_agg(roleid::regrole::text) <> '{gem_worker}' from pg_auth_members
			where member = 'worker'::regrole`,
		"mcp has a right of its own": `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles
			where rolname = 'mcp'`,
		"mcp is in another role": `select array_agg(roleid::regrole::text) <> '{gem_mcp}' from pg_auth_members
			where member = 'mcp'::regrole`,
		"mcp has rights on calls": `select has_any_column_privilege('mcp', 'core_tool_calls',
			'select, insert, update, references') or has_function_privilege('mcp', 'cancel_tool_call(uuid)', 'execute')`,
		"mcp cannot become a user": `select not pg_has_role('mcp', 'authenticated', 'member')
			or not pg_has_role('mcp', 'gem_frontend', 'member') or pg_has_role('mcp', 'gem_worker', 'member')
				or pg_has_role('mcp', 'service_role', 'member')`,
		"monitor has a right of its own": `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles
			where rolname = 'monitor'`,
		"monitor is in another role": `select array_agg(roleid::regrole::text) <> '{gem_monitor}' from pg_auth_members
			where member = 'monitor'::regrole`,
		"monitor sees calls": `select has_any_column_privilege('monitor', 'core_tool_calls', 'select')
			or not has_table_privilege('monitor', 'gem.queue', 'select')`,
		"operator has a right of its own": `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles
			where rolname = 'operator'`,
		"operator is in another role": `select array_agg(roleid::regrole::text
			order by roleid::regrole::text) <> '{gem_mcp,gem_operator}' from pg_auth_members where member = 'operator'::regrole`,
		"operator writes calls": `select has_any_column_privilege('operator', 'core_tool_calls', 'insert, update')
			or has_function_privilege('operator',
				'enqueue_tool_call(text, jsonb, text, text, uuid, integer, timestamptz, uuid, text, boolean)', 'execute')`,
		"operator sees no views or calls": `select not (has_table_privilege('operator', 'gem.queue', 'select')
			and has_table_privilege('operator', 'core_tool_calls', 'select'))`,
		"operator cannot become a user": `select not pg_has_role('operator', 'authenticated', 'member')
			or pg_has_role('operator', 'gem_worker', 'member') or pg_has_role('operator', 'service_role', 'member')`,
		"no worker connected as the role": `select not exists (select from pg_stat_activity where usename = 'worker'
			and application_name like 'gem %')`,
	} {
		var wrong bool
		if err := conn.QueryRow(t.Context(), query).Scan(&wrong); err != nil || wrong {
			t.Errorf("%s (%v)", what, err)
		}
	}
}

// An agent with a token calls a tool through the stack's gem mcp, whose role has no rights of its own.
func TestTheMCPServerOfComposeActsForTheUserOfAToken(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, pgserver.Options{})
	owner, all := []string{"DATABASE_URL=" + server.URL("postgres")}, services(t)
	applyRoles(t, server)
	if code, out := gem(t, owner, "migrate"); code != 0 {
		t.Fatalf("gem migrate: %s", out)
	}
	start(t, []string{"DATABASE_URL=" + onServer(t, unset(*all["worker"].Environment["DATABASE_URL"]), server)},
		"worker started", "worker")

	mcp := all["mcp"]
	_, made := gem(t, nil, "mcp", "token", "ada")
	token, line := regexp.MustCompile(`(?m)again:\n(\S+)$`).FindStringSubmatch(made),
		regexp.MustCompile(`(?m)^[0-9a-f]{64} ada$`).FindString(made)
	if token == nil || line == "" {
		t.Fatalf("gem mcp token: %s", made)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	shipped, err := os.ReadFile(filepath.Join(root, "deploy/mcp.tokens"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the image of the tests is built without it
		t.Fatal(err)
	}
	if err := os.WriteFile(tokens, []byte(string(shipped)+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + onServer(t, unset(*mcp.Environment["DATABASE_URL"]), server),
		"GEM_MCP_TOKENS=" + tokens}
	args := slices.Clone(mcp.Command)
	args[slices.Index(args, "0.0.0.0:8848")] = "127.0.0.1:0"
	var said struct{ Address string }
	if err := json.Unmarshal([]byte(start(t, env, "serving MCP over HTTP", args...)), &said); err != nil {
		t.Fatal(err)
	}
	ask := func(token string) (status int, answer string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, said.Address,
			strings.NewReader(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
			"params": {"name": "os_create_note", "arguments": {"domain": "business", "title": "Roof", "content": "Two tiles"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json",
			"Accept":               "application/json, text/event-stream",
			"MCP-Protocol-Version": "2025-06-18"} {
			request.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if status, answer := ask("another"); status != http.StatusUnauthorized {
		t.Errorf("with another token: %d %s", status, answer)
	}
	if status, answer := ask(token[1]); status != http.StatusOK || !strings.Contains(answer, "note_id") {
		t.Errorf("with the token: %d %s", status, answer)
	}
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var calls string
	err = conn.QueryRow(t.Context(), "select string_agg(concat_ws(' ', tool_name, status, created_by, signed_in), ', ') "+
		"from core_tool_calls").Scan(&calls)
	if err != nil || calls != "os.create_note succeeded ada t" {
		t.Errorf("the calls are %s, %v", calls, err)
	}
}

// onServer returns a connection string of docker-compose.yml with another server's address.
func onServer(t *testing.T, text string, server *pgserver.Server) string {
	t.Helper()
	there, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host != "postgres:5432" {
		t.Fatalf("%s: want the service postgres (%v)", u.Host, err)
	}
	u.Host = there.Host
	return u.String()
}

// applyRoles runs the service roles.
func applyRoles(t *testing.T, server *pgserver.Server) {
	t.Helper()
	s := services(t)["roles"]
	u, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(s.Entrypoint[0]); err != nil {
		const missing = "there is no psql: install one (Debian: apt-get install postgresql-client)"
		if os.Getenv("GEM_TEST_REQUIRE") != "" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	args := strings.Split(strings.ReplaceAll(strings.Join(s.Entrypoint[1:], "\n"), "/roles.sql",
		filepath.Join(root, "deploy/roles.sql")), "\n")
	cmd := exec.CommandContext(t.Context(), s.Entrypoint[0], args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range s.Environment {
		cmd.Env = append(cmd.Env, name+"="+unset(*value))
	}
	password, _ := u.User.Password() // the last value of a variable holds
	cmd.Env = append(cmd.Env, "PGHOST="+u.Hostname(), "PGPORT="+u.Port(), "PGUSER="+u.User.Username(),
		"PGPASSWORD="+password, "PGDATABASE=postgres")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the service roles: %v: %s", err, out)
	}
}

// start runs a command of gem until the test ends, and returns the line of its log with a message once it appears.
func start(t *testing.T, env []string, message string, args ...string) string {
	t.Helper()
	program, wrong := build()
	if wrong != "" {
		t.Fatal(wrong)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = t.TempDir(), env
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	var said []string
	for lines.Scan() && !strings.Contains(lines.Text(), `"`+message+`"`) {
		said = append(said, lines.Text())
	}
	line := lines.Text()
	if line == "" {
		t.Fatalf("gem %s: %v: %s", args[0], cmd.Wait(), strings.Join(said, "\n"))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() { // a full pipe would block the program
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = cmd.Wait()
	})
	return line
}
