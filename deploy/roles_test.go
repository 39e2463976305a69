package deploy_test

import (
	"bufio"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/pgserver"
	"github.com/jackc/pgx/v5"
)

// The commands of the stack, with the variables that docker-compose.yml sets, on a Postgres that is not in a container.
func TestTheWorkersOfComposeAreMembersOfGemWorker(t *testing.T) {
	t.Parallel()
	server := startServer(t, pgserver.Options{})
	owner, worker := []string{"DATABASE_URL=" + server.URL("postgres")}, []string{"WORKER_ID=compose"}
	for name, value := range services(t)["worker"].Environment {
		if name == "DATABASE_URL" {
			worker = append(worker, name+"="+onServer(t, unset(*value), server))
		}
	}
	// Again and again: the service roles runs at each start.
	for range 2 {
		applyRoles(t, server)
		if code, out := gem(t, owner, "migrate"); code != 0 {
			t.Fatalf("gem migrate: %s", out)
		}
	}
	startWorker(t, worker)
	if code, out := gem(t, worker, "healthcheck"); code != 0 {
		t.Errorf("gem healthcheck: %s", out)
	}
	const input = `{"domain": "business", "title": "Roof", "content": "Two tiles"}`
	if code, out := gem(t, owner, "call", "os.create_note", input, "--wait"); code != 0 || !strings.Contains(out, `"succeeded"`) {
		t.Errorf("gem call: %s", out)
	}
	if code, out := gem(t, owner, "audit"); code != 0 {
		t.Errorf("gem audit: %s", out)
	}
	if code, out := gem(t, worker, "call", "os.create_note", input); code == 0 {
		t.Errorf("a worker may make calls: %s", out)
	}

	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for what, query := range map[string]string{
		"the role has a right of its own": `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles where rolname = 'worker'`,
		"the role owns something":         `select exists (select from pg_shdepend where refobjid = 'worker'::regrole and deptype = 'o')`,
		"it is in another role":           `select array_agg(roleid::regrole::text) <> '{gem_worker}' from pg_auth_members where member = 'worker'::regrole`,
		"mcp has a right of its own":      `select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_roles where rolname = 'mcp'`,
		"mcp is in another role":          `select array_agg(roleid::regrole::text) <> '{gem_door}' from pg_auth_members where member = 'mcp'::regrole`,
		"mcp has rights on calls":         `select has_any_column_privilege('mcp', 'core_tool_calls', 'select, insert, update, references') or has_function_privilege('mcp', 'cancel_tool_call(uuid)', 'execute')`,
		"mcp cannot become a user":        `select not pg_has_role('mcp', 'authenticated', 'member') or not pg_has_role('mcp', 'gem_frontend', 'member') or pg_has_role('mcp', 'gem_worker', 'member') or pg_has_role('mcp', 'service_role', 'member')`,
		"no worker connected as the role": `select not exists (select from pg_stat_activity where usename = 'worker' and application_name like 'gem %')`,
	} {
		var wrong bool
		if err := conn.QueryRow(t.Context(), query).Scan(&wrong); err != nil || wrong {
			t.Errorf("%s (%v)", what, err)
		}
	}
}

func startServer(t *testing.T, o pgserver.Options) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// onServer is a connection string of docker-compose.yml with another server's address.
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
	args := strings.Split(strings.ReplaceAll(strings.Join(s.Entrypoint[1:], "\n"), "/roles.sql", filepath.Join(root, "deploy/roles.sql")), "\n")
	cmd := exec.CommandContext(t.Context(), s.Entrypoint[0], args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range s.Environment {
		cmd.Env = append(cmd.Env, name+"="+unset(*value))
	}
	password, _ := u.User.Password() // the last value of a variable holds
	cmd.Env = append(cmd.Env, "PGHOST="+u.Hostname(), "PGPORT="+u.Port(), "PGUSER="+u.User.Username(), "PGPASSWORD="+password, "PGDATABASE=postgres")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the service roles: %v: %s", err, out)
	}
}

// startWorker runs gem worker until the test ends, and returns when it has started.
func startWorker(t *testing.T, env []string) {
	t.Helper()
	program, wrong := build()
	if wrong != "" {
		t.Fatal(wrong)
	}
	cmd := exec.Command(program, "worker")
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
	for lines.Scan() && !strings.Contains(lines.Text(), `"worker started"`) {
		said = append(said, lines.Text())
	}
	if lines.Text() == "" {
		t.Fatalf("gem worker: %v: %s", cmd.Wait(), strings.Join(said, "\n"))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() { // a full pipe would block the worker
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = cmd.Wait()
	})
}
