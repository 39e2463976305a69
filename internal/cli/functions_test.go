package cli

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestTheRegistryIsHeldAgainstTheFunctionsOfTheDatabase(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	testdb.Exec(t, testdb.Pool(t, url), `
		create function tools.os_search_notes(jsonb) returns jsonb language sql as 'select $1';
		create function tools.shop_slow(jsonb) returns jsonb language sql as 'select $1'`)
	const entry = `"input_schema": {"type": "object", "properties": {"query": {}, "domain": {}, "limit": {}}}, "output_schema": {"type": "object"}, "idempotency": {"mode": "none"}, "timeout_ms": 1000`
	env := []string{"DATABASE_URL=" + url, `TOOLS_REGISTRY={"version": "1", "tools": [{"name": "os.search_notes", ` +
		entry + `},
		{"name": "shop.slow", "deadline_ms": 10, "calls": ["os.*"], ` + entry + `}]}`}

	list := gemWith(t, env, "registry", "list")
	list.wantCode(t, exitDone)
	wants(t, list.stdout, "OS.SearchNotes; it hides tools.os_search_notes(jsonb) in SQL\n", "SQL tools.shop_slow(jsonb)\n")
	check := gemWith(t, env, "registry", "check")
	check.wantCode(t, exitFailed)
	wants(t, check.stderr, "shop.slow: calls is for durable handlers", "shop.slow: deadline_ms is for durable handlers")

	// A function that somebody made does not keep workers from starting.
	w := startWorker(t, url, env[1])
	wants(t, w.stderr.String(), "a tool in SQL does not fit its entry in the registry",
		"deadline_ms is for durable handlers")
	got := gemWith(t, env, "call", "shop.slow", `{"query": "a"}`, "--wait", "--timeout", "1m")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, `"query": "a"`)
}
