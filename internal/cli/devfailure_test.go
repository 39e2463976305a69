package cli

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

const brokenTool = `create or replace function tools.shop_halve(input jsonb) returns jsonb language plpgsql as $$
begin
  return jsonb_build_object('half', 1 / (input ->> 'by')::int);
end $$`

func TestDevShowsWhereAFunctionFailed(t *testing.T) {
	testdb.Long(t, "TestDevTakesFilesThatAppearChangeAndGo")
	t.Parallel()
	registry := writeFile(t,
		`{"version": "1", "tools": [{"name": "shop.halve", "description": "Halves.", "permissions": [], "receipt_fields": [],
		"idempotency": {"mode": "none"}, "timeout_ms": 30000, "input_schema": {"type": "object"}, "output_schema": {"type": "object"}}]}`)
	p := prepare(t, []string{"TOOLS_REGISTRY=" + registry}, "dev")
	if err := os.WriteFile(filepath.Join(p.cmd.Dir, "tools.sql"), []byte(brokenTool), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	env := []string{"DATABASE_URL=" + devURL(t, p), "TOOLS_REGISTRY=" + registry}
	p.stderr.waitFor(t, "worker started")
	got := gemWith(t, env, "call", "shop.halve", `{"by": 0}`, "--wait", "--timeout", "1m")
	wants(t, got.stdout+got.stderr, "shop.halve failed unexpectedly", "22012")
	p.stderr.waitFor(t, "division by zero")
	p.stderr.waitFor(t, "function tools.shop_halve(jsonb) line 3 at RETURN")
	p.signal(t, syscall.SIGINT)
	p.wait(t)
}
