package cli

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
)

// section is the part of docs/tools.md below a heading, in blocks of a language each.
func section(t *testing.T, heading string) [][]string {
	t.Helper()
	guide, err := os.ReadFile(fromRoot(t, "docs/tools.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(guide), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/tools.md has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks [][]string
	for _, b := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, b[1:])
	}
	return blocks
}

func TestTheGuidesRegistryIncludesTools(t *testing.T) {
	t.Parallel()
	found := false
	for _, block := range section(t, "The registry") {
		if !strings.Contains(block[1], `"include"`) {
			continue
		}
		found = true
		if r, err := registry.Parse([]byte(block[1])); err != nil || !strings.HasPrefix(r.Version, "4+") {
			t.Errorf("%v: %s", err, block[1])
		}
	}
	if !found {
		t.Error("the guide shows no registry that includes tools")
	}
}

// follow runs the blocks of a section in an empty folder with only the binary. files is the folder of the shown
// files, and change is the test's change to them.
func follow(t *testing.T, heading, files string, change func(name, text string) string,
	command func(f *follower, line string) bool) *follower {
	t.Helper()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}, page: "docs/tools.md",
		section: "docs/tools.md, " + heading}
	examples, err := os.ReadDir(fromRoot(t, files))
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, block := range section(t, heading) {
		isFile := false
		for _, e := range examples {
			text, err := os.ReadFile(fromRoot(t, filepath.Join(files, e.Name())))
			if err != nil || string(text) != block[1] {
				continue
			}
			isFile, written = true, written+1
			if err := os.WriteFile(filepath.Join(f.dir, e.Name()), []byte(change(e.Name(), block[1])),
				0o644); err != nil { //nolint:gosec // nothing secret
				t.Fatal(err)
			}
		}
		switch {
		case isFile:
		case block[0] == "sh":
			var rest strings.Builder
			for line := range strings.Lines(change("", block[1])) {
				if !command(f, strings.TrimSpace(line)) {
					rest.WriteString(line)
				}
			}
			f.run(t, rest.String())
		case block[0] == "json":
			f.wantsJSON(t, block[1])
		case block[0] == "":
			f.wantsLines(t, block[1])
		default:
			t.Errorf("%s: it is not in %s:\n%s", f.section, files, block[1])
		}
	}
	if written != len(examples) || f.calls == 0 || f.shown == 0 {
		t.Errorf("%s shows %d of %d files, makes %d calls and shows %d results", f.section, written, len(examples), f.calls,
			f.shown)
	}
	return f
}

// Somebody with nothing but the binary has a tool in SQL after two files and two commands.
func TestTheGuideToToolsInSQLIsFollowed(t *testing.T) {
	t.Parallel()
	f := follow(t, "A tool in SQL", "docs/examples/tools/sql", func(_, text string) string { return text },
		func(*follower, string) bool { return false })
	defer f.stop(t)
	in := func(args ...string) commandResult {
		t.Helper()
		p := f.prepare(t, args)
		p.start(t)
		return commandResult{p.wait(t), p.stdout.String(), p.stderr.String()}
	}
	list := in("registry", "list")
	wants(t, list.stdout, "SQL tools.shop_refund(input jsonb)")
	if check := in("registry", "check"); check.code != exitDone || check.stderr != "" {
		t.Errorf("check: %d %s", check.code, check.stderr)
	}

	// What it says about other signatures, about files that are saved again, and about a database that is not there.
	save := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // nothing secret
			t.Fatal(err)
		}
	}
	save("tools.sql", "drop function tools.shop_refund;\ncreate function tools.shop_refund(id bigint) returns jsonb "+
		"language sql as 'selec null';")
	f.dev.stderr.waitFor(t, `tools.sql, line 2 failed, and its changes were rolled back: syntax error at or near "selec"`)
	save("tools.sql", "drop function tools.shop_refund; create function tools.shop_refund(id bigint) returns jsonb "+
		"language sql as 'select null::jsonb';")
	db := testdb.Pool(t, f.env["DATABASE_URL"])
	for testdb.Value[int](t, db,
		"select count(*) from pg_proc where oid = to_regprocedure('tools.shop_refund(bigint)')") == 0 {
	}
	wants(t, in("registry", "list").stdout, "SQL tools.shop_refund(id bigint), which is no tool: it takes other arguments")
	wants(t, in("registry", "check").stderr, "warning: shop.refund: calls end as not_configured: tools.shop_refund(id "+
		"bigint) cannot be the tool: it takes other arguments. "+
		"Create the function tools.shop_refund(input jsonb) returns jsonb")
	wants(t, in("call", "shop.refund", `{"order_id": 2}`, "--wait").stdout, "not_configured",
		"tools.shop_refund(id bigint) cannot be the tool shop.refund")
	f.env["DATABASE_URL"] = "postgres://127.0.0.1:1/nowhere"
	wants(t, in("registry", "list").stderr, "note: functions in SQL could not be looked for: Postgres cannot be reached")
	delete(f.env, "DATABASE_URL")
	if check := in("registry", "check"); strings.Contains(check.stderr, "is not set") {
		t.Errorf("it did not look in the database of gem dev: %s", check.stderr)
	}
	f.stop(t)
	wants(t, in("registry", "check").stderr, "tools without a handler",
		"note: DATABASE_URL is not set, and no gem dev runs in this folder: functions in SQL were not looked for")
}

// The server runs under Node.js, with the library of Standard Webhooks that npm has.
func TestTheGuideToToolsBehindHTTPIsFollowed(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	_, port, _ := net.SplitHostPort(address)
	f := follow(t, "A tool behind HTTP", "docs/examples/tools/http", func(name, text string) string {
		if name == "domains.json" {
			text = strings.Replace(text, "127.0.0.1:8787", address, 1)
		}
		return text
	}, func(f *follower, line string) bool {
		switch line {
		case "npm install standardwebhooks":
		case "export CRM_SECRET=whsec_$(openssl rand -base64 24)":
			f.env["CRM_SECRET"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		case "node server.mjs &":
			serve(t, f, address, port)
		default:
			return false
		}
		return true
	})
	f.stop(t)
}

// serve starts server.mjs in the follower's folder.
func serve(t *testing.T, f *follower, address, port string) {
	t.Helper()
	server := mcpclients.Command(t, []string{"CRM_SECRET=" + f.env["CRM_SECRET"], "PORT=" + port}, "any.mjs")
	if err := os.Symlink(filepath.Join(server.Dir, "node_modules"), filepath.Join(f.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	server.Dir, server.Args = f.dir, []string{"node", "server.mjs"}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	for range 1000 {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
}

// npx would download the server; the test uses one that is installed.
func TestTheGuideToToolsInMCPServersIsFollowed(t *testing.T) {
	testdb.Long(t, "TestTheGuideToToolsBehindHTTPIsFollowed")
	t.Parallel()
	server := mcpclients.Command(t, nil, "mcp-server-filesystem")
	shared := t.TempDir()
	f := follow(t, "A tool in an MCP server", "docs/examples/tools/mcp", func(name, text string) string {
		if name == "domains.json" {
			text = strings.NewReplacer("npx", server.Path, `"-y", "@modelcontextprotocol/server-filesystem"`,
				fmt.Sprintf("%q", server.Args[1])).Replace(text)
		}
		return strings.ReplaceAll(text, "/tmp/shared", shared)
	}, func(_ *follower, line string) bool { return line == "mkdir -p "+shared })
	f.stop(t)
}

func TestTheFunctionOfTheReadmeOrders(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(fromRoot(t, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sql\n(create function tools.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("it has none")
	}
	db := testdb.Pool(t, newDatabase(t))
	testdb.Exec(t, db, "create table orders (id bigint generated always as identity, item text)")
	testdb.Exec(t, db, string(block[1]))
	if got := testdb.Value[string](t, db,
		`select output from gem.run_tool('shop_order', '{"item": "a lamp"}', null)`); got != `{"order_id": 1}` {
		t.Error(got)
	}
}
