package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// examples/own-tools is built as a module somewhere else, with no more of GEM than its go.mod names. It has every
// command, for its own tools, and its database has no table of the built-in domains.
func TestAProgramOfAnotherModuleHasEveryCommandForItsOwnTools(t *testing.T) {
	testdb.Long(t, "the module examples/own-tools")
	t.Parallel()
	program := buildOwnTools(t)
	url := testdb.NewEmpty(t)
	env := []string{"DATABASE_URL=" + url}
	own := func(args ...string) commandResult {
		t.Helper()
		p := prepare(t, env, args...)
		p.cmd.Path = program
		p.start(t)
		return commandResult{p.wait(t), p.stdout.String(), p.stderr.String()}
	}
	wantDone := func(got commandResult, texts ...string) {
		t.Helper()
		got.wantCode(t, exitDone)
		wants(t, got.stdout, texts...)
	}

	wantDone(own("version"), "gem ", "built from example.com/shop with github.com/gemworker/gem ",
		"\nregistry shop-1, 3 tools (built in)\n")
	wantDone(own("registry", "list"), "shop.order ", "own-tools/main.go Shop.Order")
	including := func(tool string) (file string) {
		return writeFile(t, strings.Replace(oneTool, `"tools"`, `"include": ["`+tool+`"], "tools"`, 1))
	}
	wantDone(own("registry", "check", including("wait")),
		"ok: 4 tools (1 defined in the registry, 1 included, 2 that every registry has), version 1.0.0+")
	models := own("registry", "check", including("llm.chat"))
	models.wantCode(t, exitFailed)
	wants(t, models.stderr, "llm.chat: the registry includes it, and this program has no domain llm")
	demo := own("demo", "--use-database")
	wantDone(demo, "shop.order  succeeded", "Each call has one receipt.")
	wants(t, demo.stderr, "a worker runs, with 3 tools of registry shop-1 (built in)")
	wantDone(own("migrate"), "the schema is up to date")

	worker := prepare(t, env, "worker")
	worker.cmd.Path = program
	worker.start(t)
	worker.stderr.waitFor(t, "worker started")
	wantDone(own("call", "shop.order", `{"item": "a lamp"}`, "--wait", "--timeout", "1m"), `"order_id"`)
	db := testdb.Pool(t, url)
	id := testdb.Value[string](t, db, "select id::text from core_tool_calls order by seq desc limit 1")
	wantDone(own("explain", id), "It succeeded in", "order_id")
	wantDone(own("trace", id), "succeeded")
	worker.stop(t)
	wantDone(own("audit"), "No fault was found")

	got := testdb.Value[[]string](t, db,
		"select array_agg(tablename order by tablename) from pg_tables where schemaname = "+
			"'public'")
	want := []string{"core_hook_events", "core_llm_requests", "core_llm_versions", "core_registry_versions",
		"core_rules_versions", "core_tool_calls", "core_tool_events", "core_tool_progress", "core_tool_receipts",
		"core_workers", "orders"}
	if !slices.Equal(got, want) {
		t.Errorf("tables: got %v, want the core's and orders: %v", got, want)
	}
}

// buildOwnTools copies examples/own-tools, points its go.mod to this checkout, and builds it.
func buildOwnTools(t *testing.T) (program string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "own-tools")
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(root, "examples/own-tools"))); err != nil {
		t.Fatal(err)
	}
	mod := filepath.Join(folder, "go.mod")
	text, err := os.ReadFile(mod)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mod, bytes.Replace(text, []byte("=> ../.."), []byte("=> "+root), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", "gem", ".")
	build.Dir = folder
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	main, err := os.ReadFile(filepath.Join(folder, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(main), "\n"); lines > 40 {
		t.Errorf("main.go with its domain has %d lines, want at most 40", lines)
	}
	return filepath.Join(folder, "gem")
}

func TestAProgramThatIsPutTogetherWronglySaysHow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Program)
		want   string
	}{
		"no registry": {func(p *Program) { p.Registry = nil }, "its Registry is empty"},
		"no tools":    {func(p *Program) { p.Domains = append(p.Domains, struct{}{}) }, "has no tools"},
		"no domain":   {func(p *Program) { p.Domains = append(p.Domains, nil) }, "has no tools"},
		"the same name": {func(p *Program) { p.Domains = append(p.Domains, p.Domains[1]) },
			"two of its Domains are named leads"},
		"no handler": {func(p *Program) { p.Domains = append(p.Domains, t) }, "is not a handler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builtIn
			p.Domains = slices.Clone(p.Domains)
			test.change(&p)
			var stderr bytes.Buffer
			code := run(t.Context(), &p, []string{"version"}, strings.NewReader(""), &stderr, &stderr)
			if code != exitUsage || strings.Count(stderr.String(), "has an error in its setup") != 1 {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
			wants(t, stderr.String(), test.want)
		})
	}
}
