package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

const (
	devTool = `{"version": "1", "tools": [{"name": "shop.refund", "description": "Refunds.",
		"input_schema": {"type": "object"}, "output_schema": {},
		"permissions": ["write:db"], "idempotency": {"mode": "none"}, "timeout_ms": 60000}]}`
	devRule = `{"version": "1", "rules": [{"name": "never", "tools": ["shop.refund"], "action": "block",
		"when": {"input": {"amount": {"minimum": 100}}}}]}`
)

// A folder is empty at the start, and its files appear one after the other.
func TestDevTakesFilesThatAppearChangeAndGo(t *testing.T) {
	t.Parallel()
	p := startGem(t, nil, "dev")
	db := testdb.Pool(t, devURL(t, p))
	write := func(name, text string) {
		t.Helper()
		writeIn(t, p.cmd.Dir, name, text)
	}
	// has waits until a worker has recorded a version that has a text.
	has := func(column, text string) {
		t.Helper()
		for testdb.Value[int](t, db, `select count(*)::int from core_workers w
				join core_registry_versions v on v.version = w.registry_version
				left join core_rules_versions r on r.version = w.rules_version
				left join gem.domains_versions d on true
			where w.stopped_at is null and `+column+"::text like '%' || $1 || '%'", text) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	call := func(input, want string) {
		t.Helper()
		got := inFolder(t, p.cmd.Dir, "call", "shop.refund", input, "--wait", "--timeout", "1m")
		wants(t, got.stdout, want)
	}
	write("tools.sql",
		"create or replace function tools.shop_refund(input jsonb) returns jsonb language sql as 'select input';")
	write("tools.registry.json", devTool)
	has("v.registry", "shop.refund")
	call(`{"amount": 500}`, "succeeded")

	write("rules.json", devRule)
	has("r.rules", "never")
	call(`{"amount": 500}`, "rule_blocked")
	write("rules.json", strings.Replace(devRule, "shop.refund", "shop.refnd", 1))
	refused := p.stderr.waitFor(t, "until rules.json is repaired")
	wants(t, refused, strings.TrimPrefix(inFolder(t, p.cmd.Dir, "rules", "check").stderr, "gem rules check: "))
	call(`{"amount": 500}`, "rule_blocked")
	write("rules.json", strings.Replace(devRule, "100", "1000", 1))
	p.stderr.waitFor(t, "repaired: rules.json")
	has("r.rules", "1000")
	call(`{"amount": 500}`, "succeeded")
	write("tools.registry.json", strings.Replace(devTool, "shop.refund", "shop.renamed", 1))
	p.stderr.waitFor(t, "rules.json did not change, but tools.registry.json did.")
	write("tools.registry.json", devTool)
	p.stderr.waitFor(t, "repaired: rules.json, by the change of tools.registry.json\n")

	write("domains.json", strings.Replace(crmAt, "crm", "till", 1))
	has("d.domains", "till")
	p.stop(t)
}

func TestDevTakesRoutesThatAppear(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	p := startGem(t, nil, "dev")
	db := testdb.Pool(t, devURL(t, p))
	writeIn(t, p.cmd.Dir, "llm.routes.json", `{"version": `)
	p.stderr.waitFor(t, "until llm.routes.json is repaired")
	writeIn(t, p.cmd.Dir, "llm.routes.json", `{"version": "1",
		"providers": {"here": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "local": true}},
		"targets": {"small": {"provider": "here", "model": "small", "context": 8000, "max_output": 1000}},
		"routes": {"default": {"targets": ["small"]}}}`)
	p.stderr.waitFor(t, "repaired: llm.routes.json")
	for testdb.Value[int](t, db, "select count(*)::int from core_llm_versions") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	got := inFolder(t, p.cmd.Dir, "call", "llm.models", "{}", "--wait", "--timeout", "1m")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, `"small"`)
	p.stop(t)
}

// inFolder runs a command to its end in a folder, with nothing set.
func inFolder(t *testing.T, dir string, args ...string) commandResult {
	t.Helper()
	p := prepare(t, nil, args...)
	p.cmd.Dir = dir
	p.start(t)
	return commandResult{p.wait(t), p.stdout.String(), p.stderr.String()}
}

// The files are faulty at the start: gem dev reports it, and starts when they are repaired.
func TestDevStartsWhenFaultyFilesAreRepaired(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	p := prepare(t, nil, "dev")
	writeIn(t, p.cmd.Dir, "tools.registry.json", strings.Replace(devTool, `"none"`, `"sometimes"`, 1))
	p.start(t)
	p.stderr.waitFor(t, "gem dev starts as soon as tools.registry.json is repaired.")
	wants(t, p.stderr.String(), "idempotency.mode: ")
	writeIn(t, p.cmd.Dir, "rules.json", strings.Replace(devRule, "shop.refund", "shop.refnd", 1))
	writeIn(t, p.cmd.Dir, "tools.registry.json", devTool)
	p.stderr.waitFor(t, "gem dev starts as soon as rules.json is repaired.")
	wants(t, p.stderr.String(), "repaired: tools.registry.json")
	writeIn(t, p.cmd.Dir, "tools.sql", "select 1;\nselect 1 from nowhere;")
	writeIn(t, p.cmd.Dir, "rules.json", devRule)
	p.stderr.waitFor(t, "repaired: rules.json")
	p.stderr.waitFor(t, "gem dev starts as soon as tools.sql is repaired.")
	wants(t, p.stderr.String(), "tools.sql, line 2 failed, and its changes were rolled back: ", "nowhere")
	writeIn(t, p.cmd.Dir, "tools.sql", "select 1;")
	devURL(t, p)
	writeIn(t, p.cmd.Dir, "tools.sql", "select 2 from nowhere;")
	p.stderr.waitFor(t, "The worker continues with the previous version until tools.sql is repaired.")
	p.stop(t)
}

func TestDevEndsWithAFaultThatNoFileOfTheFolderHas(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]string{"JSON": `TOOLS_REGISTRY={"version": 1}`,
		"a missing file": "TOOLS_RULES=/nowhere/rules.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, []string{env}, "dev")
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, map[string]string{"JSON": "version", "a missing file": "/nowhere/rules.json"}[name])
		})
	}
}

func TestDevStopsWhileItWaitsForARepair(t *testing.T) {
	t.Parallel()
	p := prepare(t, nil, "dev")
	writeIn(t, p.cmd.Dir, "llm.routes.json", "{")
	p.start(t)
	p.stderr.waitFor(t, "gem dev starts as soon as llm.routes.json is repaired.")
	got := inFolder(t, p.cmd.Dir, "status")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "the gem dev of this folder does not run its database yet: see its output")
	p.stop(t)
}

// A folder may hold links to devices, which have no end, and pipes, which nobody writes to.
func TestDevReadsOnlyRegularFiles(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	names := []string{"tools.registry.json", "rules.json", "domains.json", "llm.routes.json"}
	p := prepare(t, nil, "dev")
	link := func(name, target string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(p.cmd.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(p.cmd.Dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link("rules.json", pipe)
	link("domains.json", "/dev/zero")
	link("tools.registry.json", "/dev/zero")
	link("llm.routes.json", "/dev/zero")
	link("tools.sql", "/dev/zero")
	link(".env", "/dev/zero")
	p.start(t)
	if code := p.wait(t); code == 0 {
		t.Errorf("exit code %d", code)
	}
	wants(t, p.stderr.String(), ".env is not a regular file")

	again := prepare(t, nil, "dev")
	again.cmd.Dir, p = p.cmd.Dir, again
	if err := os.Remove(filepath.Join(p.cmd.Dir, ".env")); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	for _, name := range names {
		p.stderr.waitFor(t, name+" is not a regular file")
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(p.cmd.Dir, name)); err != nil {
			t.Fatal(err)
		}
		p.stderr.waitFor(t, "repaired: "+name)
	}
	p.stderr.waitFor(t, "cannot read tools.sql: tools.sql is not a regular file")
	if err := os.Remove(filepath.Join(p.cmd.Dir, "tools.sql")); err != nil {
		t.Fatal(err)
	}
	writeIn(t, p.cmd.Dir, "sql", "select 1;")
	link("tools.sql", "sql")
	devURL(t, p)
	p.stop(t)
}

// A folder may come from a stranger: what its SQL and its tools can do ends at the database.
func TestSQLOfTheFolderRunsNoPrograms(t *testing.T) {
	t.Parallel()
	p := prepare(t, nil, "dev")
	program := "copy (select 1) to program 'touch " + filepath.Join(p.cmd.Dir, "touched") + "'"
	writeIn(t, p.cmd.Dir, "tools.sql", program+";")
	writeIn(t, p.cmd.Dir, "tools.registry.json", devTool)
	p.start(t)
	p.stderr.waitFor(t, "tools.sql failed, and its changes were rolled back: must be superuser or have privileges of the "+
		"pg_execute_server_program role")
	writeIn(t, p.cmd.Dir, "tools.sql", `create table if not exists orders (id int);
		create extension if not exists pgcrypto;
		create or replace function tools.shop_refund(input jsonb) returns jsonb language plpgsql as $$ begin
			`+program+`;
			return input;
		end $$;`)
	url := devURL(t, p)
	got := inFolder(t, p.cmd.Dir, "call", "shop.refund", `{"amount": 5}`, "--wait", "--timeout", "1m")
	wants(t, got.stdout+got.stderr, "execution_error")
	db := testdb.Pool(t, url)
	for what, grant := range map[string]string{
		"becomes a superuser": "alter role postgres superuser", "makes itself able to": "grant pg_execute_server_program " +
			"to postgres",
		"makes a role":          "create role pg_x in role pg_execute_server_program",
		"becomes the superuser": "set role gem_superuser",
	} {
		if _, err := db.Exec(t.Context(), grant); err == nil {
			t.Errorf("the owner %s", what)
		}
	}
	if n := testdb.Value[int](t, db, `select count(*)::int from pg_roles r where rolname in (session_user, current_user)
		and (rolsuper or rolcreaterole or exists (select from pg_roles of where of.oid < 16384
			and of.rolname like 'pg!_%' escape '!'
			and of.rolname <> 'pg_database_owner' and pg_has_role(r.oid, of.oid, 'member')))`); n != 0 {
		t.Error("the owner can do more than it needs")
	}
	if _, err := os.Stat(filepath.Join(p.cmd.Dir, "touched")); err == nil {
		t.Error("it ran a program")
	}
	p.stop(t)
}
