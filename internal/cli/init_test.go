package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/santhosh-tekuri/jsonschema/v5"
)

// The commands that gem init prints work with the files that it wrote, as it wrote them.
func TestInitWritesFilesThatWork(t *testing.T) {
	t.Parallel()
	for kind, test := range map[string]struct{ files, commands string }{
		"sql": {"rules.json, rules.test.json, tools.registry.json, tools.sql", "gem dev, gem call, gem rules"},
		"http": {"domains.json, rules.json, rules.test.json, server.mjs, tools.registry.json",
			"node --env-file=.env, gem dev, gem call"},
		"typescript": {"domains.json, gem-handlers.d.ts, gem-handlers.js, gem-testing.d.ts, gem-testing.js, package.json, " +
			"shop.test.ts, shop.ts, tools.registry.json, tsconfig.json",
			"node --env-file=.env, node --env-file=.env, gem dev, gem call, gem call, gem types"},
		"python": {"domains.json, gem_handlers.py, gem_testing.py, shop.py, test_shop.py, tools.registry.json",
			"python3 -m, python3 shop.py, gem dev, gem call, gem call, gem types"},
		"go": {"00001_orders.sql, go.mod, main.go, main_test.go, rules.json, rules.test.json, tools.registry.json",
			"go mod, go run, go run"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			n := &newcomer{T: t, dir: reachableFolder(t)}
			written := inFolder(t, n.dir, "init", kind)
			written.wantCode(t, exitDone)
			wants(t, written.stdout, "Written: .env, .gitignore, "+test.files+"\n")
			var commands []string
			for _, line := range regexp.MustCompile(`(?m)^  ((?:gem|go|node|python3) .*)$`).FindAllStringSubmatch(written.stdout, -1) {
				words := commandWords(t, line[1])
				commands = append(commands, strings.Join(words[:2], " "))
				n.do(words)
			}
			if got := strings.Join(commands, ", "); got != test.commands {
				t.Errorf("the commands are %s, want %s", got, test.commands)
			}
			if kind == "go" {
				n.execute("go", "test", ".")
			}
			if kind != "typescript" && kind != "python" { // their handlers ask
				test := inFolder(t, n.dir, "rules", "test", "rules.test.json")
				test.wantCode(t, exitDone)
				wants(t, test.stdout, "ok: a refund of more than 100 needs a manager")
				n.gem("call", "shop.refund", `{"order_id": 2, "amount": 150}`).start(t)
			}
			n.dev.stdout.waitFor(t, "Granted to postgres, since a question names it: the role manager. "+
				"gem roles remove postgres manager takes it back.")
			n.dev.stdout.waitFor(t, "A call asks:")
			env, err := os.ReadFile(filepath.Join(n.dir, ".env"))
			if err != nil || !strings.Contains(string(env), "DATABASE_URL='"+devURL(t, n.dev)+"'") {
				t.Errorf("%v: .env does not have the URL of gem dev:\n%s", err, env)
			}
			wrong := inFolder(t, n.dir, "call", "shop.refund", `{"order_id": 3, "more": 1}`, "--wait", "--timeout", "1m")
			wants(t, wrong.stdout, "validation_error")
			n.dev.stop(t)
		})
	}
}

// newcomer follows what gem init prints.
type newcomer struct {
	*testing.T
	dir     string
	program string // of a module in Go, once it is built
	dev     *process
}

func (n *newcomer) do(words []string) {
	n.Helper()
	switch strings.Join(words[:2], " ") {
	case "go mod":
		n.execute(words...)
		n.execute("go", "vet", ".")
		n.execute("go", "build", "-o", "shop", ".")
		n.program = filepath.Join(n.dir, "shop")
	case "go run": // go run would not pass on signals
		n.do(append([]string{"gem"}, words[3:]...))
	case "python3 -m":
		n.execute(words...)
	case "node --env-file=.env", "python3 shop.py":
		if slices.Contains(words, "--test") {
			words[0] = npmrig.ModernNode(n.T)
			n.execute(words...)
			return
		}
		server := exec.CommandContext(n.Context(), words[0], words[1:]...)
		if words[0] == "node" {
			server = exec.CommandContext(n.Context(), npmrig.ModernNode(n.T), words[1:]...)
		}
		server.Dir, server.Env = n.dir, n.environment()
		out := &watched{}
		server.Stdout, server.Stderr = out, out
		if err := server.Start(); err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		})
		out.waitFor(n.T, "listening on 127.0.0.1:")
	case "gem dev":
		n.dev = n.gem("dev")
		n.dev.start(n.T)
		devURL(n.T, n.dev)
	default:
		p := n.gem(words[1:]...)
		p.start(n.T)
		if strings.Contains(strings.Join(words, " "), `"amount": 150`) { // a manager approves it
			n.dev.stdout.waitFor(n.T, "gem approve ")
			id, _, _ := strings.Cut(strings.SplitAfter(n.dev.stdout.String(), "gem approve ")[1], " ")
			inFolder(n.T, n.dir, "approve", id).wantCode(n.T, exitDone)
			if code := p.wait(n.T); code != exitDone {
				n.Errorf("%s %s", p.stdout.String(), p.stderr.String())
			}
			wants(n.T, p.stdout.String(), `"succeeded"`, `"refunded": 150`)
			return
		}
		got := commandResult{p.wait(n.T), p.stdout.String(), p.stderr.String()}
		got.wantCode(n.T, exitDone)
		if words[1] == "call" {
			wants(n.T, got.stdout, `"succeeded"`, `"refunded": 20`)
		}
	}
}

// gem prepares a command of the program, or of the module's own.
func (n *newcomer) gem(args ...string) *process {
	n.Helper()
	p := prepare(n.T, nil, args...)
	p.cmd.Dir = n.dir
	if n.program != "" {
		p.cmd.Path = n.program
	}
	return p
}

func (n *newcomer) execute(words ...string) {
	n.Helper()
	cmd := exec.CommandContext(n.Context(), words[0], words[1:]...)
	cmd.Dir, cmd.Env = n.dir, n.environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		n.Fatalf("%s: %v\n%s", words, err, out)
	}
}

// environment returns the variables of this process and those of the folder's .env, as after `. ./.env`.
func (n *newcomer) environment() []string {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, ".env"))
	if err != nil {
		n.Fatal(err)
	}
	all := os.Environ()
	for _, set := range regexp.MustCompile(`(?m)^(\w+)='?([^'\n]*)`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, set[1]+"="+set[2])
	}
	return all
}

// commandWords splits a line that a shell would run, up to its comment.
func commandWords(t *testing.T, line string) []string {
	t.Helper()
	all := commands(t, line+"\n")
	if len(all) != 1 {
		t.Fatalf("%q is not one command", line)
	}
	return all[0]
}

func TestInitOverwritesNothing(t *testing.T) {
	t.Parallel()
	dir := reachableFolder(t)
	writeIn(t, dir, "rules.json", "mine")
	writeIn(t, dir, "notes.txt", "also mine")
	got := inFolder(t, dir, "init")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "this folder already has rules.json, and gem init overwrites nothing")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("it wrote something: %v, %v", entries, err)
	}
	other := inFolder(t, dir, "init", "rust")
	other.wantCode(t, exitUsage)
	wants(t, other.stderr, `"rust" is not a kind of tool: use sql, http, go, typescript or python`)
	clone := inFolder(t, dir, "init", "go", "--gem", dir)
	clone.wantCode(t, exitUsage)
	wants(t, clone.stderr, dir+" is not a clone of it: name yours with --gem FOLDER")

	if err := os.Remove(filepath.Join(dir, "rules.json")); err != nil {
		t.Fatal(err)
	}
	inFolder(t, dir, "init").wantCode(t, exitDone)
	text, err := os.ReadFile(filepath.Join(dir, "tools.sql"))
	if err != nil || !strings.Contains(string(text), "tools.shop_refund") {
		t.Errorf("without a kind it writes SQL: %v\n%s", err, text)
	}
}

// The schemas that the files name for editors are there, and the files fit them.
func TestTheFilesOfInitHaveSchemasForEditors(t *testing.T) {
	t.Parallel()
	dir := reachableFolder(t)
	inFolder(t, dir, "init", "http").wantCode(t, exitDone)
	for _, name := range []string{"tools.registry.json", "rules.json", "rules.test.json", "domains.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var file map[string]any
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		compiler := jsonschema.NewCompiler()
		names, _ := filepath.Glob(filepath.Join(dir, ".gem/*.schema.json"))
		for _, schema := range names {
			text, err := os.ReadFile(schema)
			if err == nil {
				err = compiler.AddResource("file://"+schema, bytes.NewReader(text))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		schema, err := compiler.Compile("file://" + filepath.Join(dir, file["$schema"].(string)))
		if err == nil {
			err = schema.Validate(file)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
