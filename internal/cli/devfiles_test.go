package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testdb"
)

const (
	devTool = `{"version": "1", "tools": [{"name": "shop.refund", "description": "Refunds.",
		"input_schema": {"type": "object"}, "output_schema": {},
		"permissions": ["write:db"], "idempotency": {"mode": "none"}, "timeout_ms": 60000}]}`
	devRule = `{"version": "1", "rules": [{"name": "never", "tools": ["shop.refund"], "action": "block",
		"when": {"input": {"amount": {"minimum": 100}}}}]}`
)

// A folder is empty at the start, and its files come one after the other.
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
		for query[int](t, db, `select count(*)::int from core_workers w
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
	t.Parallel()
	p := startGem(t, nil, "dev")
	db := testdb.Pool(t, devURL(t, p))
	writeIn(t, p.cmd.Dir, "llm.routes.json", `{"version": `)
	p.stderr.waitFor(t, "until llm.routes.json is repaired")
	writeIn(t, p.cmd.Dir, "llm.routes.json", `{"version": "1",
		"providers": {"here": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "local": true}},
		"arms": {"small": {"provider": "here", "model": "small", "context": 8000, "max_output": 1000}},
		"routes": {"default": {"arms": ["small"]}}}`)
	p.stderr.waitFor(t, "repaired: llm.routes.json")
	for query[int](t, db, "select count(*)::int from core_llm_versions") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	got := inFolder(t, p.cmd.Dir, "call", "llm.models", "{}", "--wait", "--timeout", "1m")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, `"small"`)
	p.stop(t)
}

// inFolder runs a command to its end in a folder, with nothing set.
func inFolder(t *testing.T, dir string, args ...string) ended {
	t.Helper()
	p := prepare(t, nil, args...)
	p.cmd.Dir = dir
	p.start(t)
	return ended{p.wait(t), p.stdout.String(), p.stderr.String()}
}

// The files are faulty at the start: gem dev reports it, and starts when they are repaired.
func TestDevStartsWhenFaultyFilesAreRepaired(t *testing.T) {
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
	wants(t, p.stderr.String(), "tools.sql, line 2 failed, and nothing of it was done: ", "nowhere")
	writeIn(t, p.cmd.Dir, "tools.sql", "select 1;")
	p.stderr.waitFor(t, "repaired: tools.sql")
	devURL(t, p)
	writeIn(t, p.cmd.Dir, "tools.sql", "select 2 from nowhere;")
	p.stderr.waitFor(t, "The worker continues with the previous version until tools.sql is repaired.")
	p.stop(t)
}

func TestDevEndsWithAFaultThatNoFileOfTheFolderHas(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]string{"JSON": `TOOLS_REGISTRY={"version": 1}`, "a missing file": "TOOLS_RULES=/nowhere/rules.json"} {
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
