package types_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/types"
)

func TestThePythonTypesOfTheFirstTools(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile("../cli/first/durable/tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	got := types.Python(parse(t, string(first)))
	compareGolden(t, "testdata/shop.py", got)
}

// pythonFolder returns a folder with the SDK, and with a file of types for each of several registries.
func pythonFolder(t *testing.T, fuzzed int) string {
	t.Helper()
	dir := t.TempDir()
	sdk, err := os.ReadFile("../../sdk/python/gem_handlers.py")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"gem_handlers.py": string(sdk),
		"gem_tools.py":    string(types.Python(parse(t, string(gem.BuiltInRegistry)))) + pythonUsage,
		"empty.py":        string(types.Python(parse(t, `{"version": "0", "tools": []}`))),
		"hostile.py":      string(types.Python(hostile(t))),
		"table.py":        pythonTable(t),
	}
	for n := range fuzzed {
		files[fmt.Sprintf("fuzz%d.py", n)] = pythonFuzzed(t, n)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Python imports the generated files, and runs no text of a registry as code: some of the texts would end the program.
func TestThePythonTypesRun(t *testing.T) {
	t.Parallel()
	dir := pythonFolder(t, 8)
	cmd := exec.CommandContext(t.Context(), "python3", "-W", "error", "-B", "-c", `
import ast, glob, importlib, pathlib
names = [name[:-3] for name in glob.glob("*.py")]
for name in names:
    ast.parse(pathlib.Path(name + ".py").read_text(), feature_version=(3, 10))
    importlib.import_module(name)
import gem_tools
assert gem_tools.LeadsCreateInput(name="Ada") == {"name": "Ada"}
print(len(names))`)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "13\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// Pyright reports no error. A line that it must reject has the comment "pyright: ignore", and pyright also reports such
// a comment on a line without an error.
func TestPyrightAcceptsTheTypesAndWhatTheRegistryAccepts(t *testing.T) {
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("pyright takes long: set GEM_TEST_LONG=1")
	}
	t.Parallel()
	const rig = "internal/testing/sdks"
	node, modules := npmrig.Node(t, rig, "pyright", "npm ci --prefix "+rig)
	dir := pythonFolder(t, 30)
	config := `{"typeCheckingMode": "strict", "pythonVersion": "3.10", "reportUnnecessaryTypeIgnoreComment": "error"}`
	if err := os.WriteFile(filepath.Join(dir, "pyrightconfig.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, filepath.Join(modules, "node_modules/pyright/index.js"), "-p", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out[:min(len(out), 5000)])
	}
}

// pythonUsage is code that makes calls as a handler does.
const pythonUsage = `

async def usage(call: DurableCall) -> str:
    lead = await call.run("lead", "leads.create", {"name": "Ada", "phone": "1", "suburb": "Carlton"})
    again = await call.start("again", "leads.create", {"name": "Ada", "phone": "1", "suburb": "Carlton"}).within(10)
    same: LeadsCreateOutput = again
    decision = await call.approve("may", "os.health_check", {}, by=["role:a"])
    approved = call.approve("do", "leads.create", {"name": "Ada", "phone": "1", "suburb": "Carlton"}, by=["role:a"])
    done: LeadsCreateOutput = await call.start_approved("done", approved)
    wrong: OsHealthCheckOutput = await call.start_approved("wrong", approved)  # pyright: ignore
    await helped(call)
    await call.run("no", "leads.creates", {})  # pyright: ignore
    await call.run("no", "leads.create", {"name": "Ada", "phone": "1"})  # pyright: ignore
    await call.run("no", "leads.create", {"name": "Ada", "phone": 1, "suburb": "Carlton"})  # pyright: ignore
    call.approve("no", "leads.create", {"name": "Ada", "phone": "1"}, by=["role:a"])  # pyright: ignore
    lead["leadId"]  # pyright: ignore
    return lead["lead_id"] if decision["approved"] else same["lead_id"] + done["lead_id"] + str(wrong)


async def helped(call: gem_handlers.DurableCall) -> int:
    count = await call.step("count", lambda: 1)
    count.upper()  # pyright: ignore
    return count
`

// toolInput returns the name of the type of a tool's input.
func toolInput(t *testing.T, text, tool string) string {
	t.Helper()
	found := regexp.MustCompile(`def start\(self, name: str, tool: Literal\["` + regexp.QuoteMeta(tool) +
		`"\], input: (\w+)\)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("the file has no type for the input of %s", tool)
	}
	return found[1]
}

// looser matches schemas that TypeScript can express and Python cannot: types by position in a list, and constants that
// are objects.
var looser = regexp.MustCompile(`prefixItems|additionalItems|"const": \{\}\}|"enum": .*\{"b"`)

// pythonTable returns the types and values of the table in typescript_test.go, in Python.
func pythonTable(t *testing.T) string {
	t.Helper()
	return tabled(t, types.Python, func(text string, s sample) string {
		rejected := ""
		if !s.valid {
			if s.typed || looser.MatchString(s.schema) || strings.Contains(s.input, "true") { // in Python, True is an int
				return ""
			}
			rejected = "  # pyright: ignore"
		}
		return fmt.Sprintf("%s: %s = %s%s\n", s.name, toolInput(t, text, s.tool), pythonLiteral(t, s.input), rejected)
	})
}

// pythonFuzzed returns the types of a random registry, and values of these types that the registry accepts.
func pythonFuzzed(t *testing.T, seed int) string {
	t.Helper()
	m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 7))} //nolint:gosec // the same in every run
	r := m.registry(seed, m.one("1", "a\u2028b", "*/").(string), 5)
	text := string(types.Python(r))
	var b strings.Builder
	for _, tool := range r.Tools() {
		for i := range 25 {
			input := jsonOf(t, m.fit(tool.InputSchema))
			if tool.ValidateInput([]byte(input)) == nil {
				fmt.Fprintf(&b, "%s_%d: %s = %s\n", tool.FlatName(), i, toolInput(t, text, tool.Name), pythonLiteral(t, input))
			}
		}
	}
	return text + "\n\n" + b.String()
}

// pythonLiteral returns a JSON value as a literal in Python.
func pythonLiteral(t *testing.T, text string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	var write func(v any)
	write = func(v any) {
		switch v := v.(type) {
		case nil:
			b.WriteString("None")
		case bool:
			b.WriteString(map[bool]string{true: "True", false: "False"}[v])
		case string:
			b.WriteString(strconv.Quote(v))
		case json.Number: // an integer may be written as 1e400
			if r, ok := new(big.Rat).SetString(string(v)); ok && r.IsInt() {
				b.WriteString(r.Num().String())
			} else {
				b.WriteString(string(v))
			}
		case []any:
			b.WriteByte('[')
			for _, item := range v {
				write(item)
				b.WriteString(", ")
			}
			b.WriteByte(']')
		case map[string]any:
			b.WriteByte('{')
			for name, item := range v {
				b.WriteString(strconv.Quote(name) + ": ")
				write(item)
				b.WriteString(", ")
			}
			b.WriteByte('}')
		}
	}
	write(v)
	return b.String()
}
