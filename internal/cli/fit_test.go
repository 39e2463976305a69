package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	modelled "github.com/gemworker/gem/handlers/agent"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/google/go-cmp/cmp"
)

// Stall is a domain whose handlers do nothing.
type Stall struct{}

type line struct {
	Item   string `json:"item"`
	Amount int    `json:"amount,omitempty"`
}

type order struct {
	line
	Lines []line `json:"lines"`
	Gift  *line  `json:"gift"`
	Note  string
	Raw   json.RawMessage `json:"raw"`
	Never string          `json:"-"`
}

type sold struct {
	OrderID string `json:"order_id"`
}

func (Stall) Order(context.Context, *handlers.Call, order) (sold, error)       { return sold{}, nil }
func (Stall) TakeBack(context.Context, *handlers.Call, struct{}) (sold, error) { return sold{}, nil }
func (Stall) Unregistered(context.Context, *handlers.Call, struct{}) (sold, error) {
	return sold{}, nil
}

// stall is a registry with one tool, and perhaps others.
func stall(t *testing.T, input, output string, others ...string) *registry.Registry {
	t.Helper()
	entry := func(name, input, output string) string {
		return fmt.Sprintf(
			`{"name": %q, "input_schema": %s, "output_schema": %s, "idempotency": {"mode": "none"}, "timeout_ms": 1000}`, name,
			input, output)
	}
	entries := []string{entry("stall.order", input, output)}
	for _, name := range others {
		entries = append(entries, entry(name, "{}", "{}"))
	}
	r, err := registry.Parse([]byte(`{"version": "1", "tools": [` + strings.Join(entries, ", ") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	fittingInput = `{"type": "object", "additionalProperties": false, "required": ["item", "lines"], "properties": {
		"item": {"type": "string"}, "amount": {"type": "integer"}, "note": {"type": "string"}, "raw": {"properties": {"any": {}}},
		"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}, "gift": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/line"}]}},
		"$defs": {"line": {"required": ["item"], "properties": {"item": {"type": "string"}, "amount": {"type": "integer"}}}}}`
	fittingOutput = `{"type": "object", "required": ["order_id"], "properties": {"order_id": {"type": "string"}}}`
)

func TestSchemasAndStructsMustFit(t *testing.T) {
	t.Parallel()
	bound, err := binding.Bind(Stall{}, wait.Domain())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		input, output string
		want          []string
	}{
		"they fit":             {fittingInput, fittingOutput, nil},
		"the schema is silent": {`{"type": "object"}`, `true`, nil},
		"a tag that matches nothing": {strings.Replace(fittingInput, `"lines": {`, `"line": {`, 1), fittingOutput,
			[]string{"the schema has no property lines, which cli.order names: did you mean line?"}},
		"inside a list": {strings.ReplaceAll(fittingInput, `"amount": {"type": "integer"}}}}`,
			`"amuont": {"type": "integer"}}}}`), fittingOutput,
			[]string{"no property gift.amount", "no property lines[].amount, which cli.line names: did you mean amuont?"}},
		"a required property without a field": {strings.Replace(fittingInput, `"required": ["item", "lines"]`,
			`"required": ["item", "phone"]`, 1), fittingOutput,
			[]string{"the schema requires phone, and cli.order has no field for it: add one with the tag `json:\"phone\"`"}},
		"an output that can never be valid": {fittingInput, `{"required": ["orderid"], "properties": {"orderid": {}}}`,
			[]string{"output_schema: the schema requires orderid, and cli.sold has no field for it: did you mean order_id?"}},
		"an output that is always more": {fittingInput, `{"additionalProperties": false, "properties": {"status": {}}}`,
			[]string{"output_schema: the schema has no property order_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fit(stall(t, c.input, c.output), bound)
			if err == nil {
				err = fmt.Errorf("")
			}
			lines := strings.Split(err.Error(), "\n")
			if err.Error() == "" {
				lines = nil
			}
			if len(lines) != len(c.want) {
				t.Fatalf("got %d lines, want %d:\n%v", len(lines), len(c.want), err)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "stall.order: Stall.Order in cli/fit_test.go") || !strings.Contains(line, c.want[i]) {
					t.Errorf("got %q, want %q", line, c.want[i])
				}
			}
		})
	}
}

func TestToolsWithoutAHandlerAreNamedInOneLine(t *testing.T) {
	t.Parallel()
	bound, err := binding.Bind(Stall{}, wait.Domain())
	if err != nil {
		t.Fatal(err)
	}
	without, err := fit(stall(t, fittingInput, fittingOutput, "stall.take_bake", "stall.close", "shed.open"), bound)
	want := "tools without a handler, whose calls end as not_configured: stall.take_bake (did you mean TakeBack?), " +
		"stall.close, shed.open"
	if diff := cmp.Diff(want, without); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestAnIncludedToolNeedsItsDomain(t *testing.T) {
	t.Parallel()
	r, err := registry.Parse([]byte(`{"version": "1", "include": ["llm.chat", "agent"], "tools": []}`))
	if err != nil {
		t.Fatal(err)
	}
	models := llm.Domain()
	with := Program{Domains: []any{Stall{}, models, modelled.Domain(models)}}
	for _, p := range []Program{builtIn, with} {
		if _, _, err := p.fit(r, nil); err != nil {
			t.Error(err)
		}
	}
	without := Program{Domains: []any{Stall{}}}
	_, _, err = without.fit(r, nil)
	if err == nil {
		t.Fatal("a program without models takes it")
	}
	wants(t, err.Error(), "llm.chat: the registry includes it, and this program has no domain llm: add the one of "+
		"handlers/llm to its Domains")
}

func TestTheBuiltInToolsFitTheirHandlers(t *testing.T) {
	t.Parallel()
	r, err := registry.Parse(builtIn.Registry)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := builtIn.fit(r, nil); err != nil {
		t.Error(err)
	}
}

func TestAWorkerRefusesARegistryThatDoesNotFitItsHandlers(t *testing.T) {
	t.Parallel()
	other := writeFile(t, strings.ReplaceAll(string(builtIn.Registry), `"suburb"`, `"town"`))
	got := gemWith(t, []string{"DATABASE_URL=" + testdb.NewEmpty(t), "TOOLS_REGISTRY=" + other}, "worker")
	if got.code == 0 {
		t.Error("it started")
	}
	wants(t, got.stderr, "leads.create", "the schema has no property suburb", "the schema requires town")
	check := gemWith(t, nil, "registry", "check", other)
	check.wantCode(t, exitFailed)
	wants(t, check.stderr, "the schema requires town")
}

func TestDevTakesAChangedRegistryAndChangedDomainsUnderTheSameVersion(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	file, domains := writeFile(t, string(builtIn.Registry)), writeFile(t, crmAt)
	p := startGem(t, []string{"TOOLS_REGISTRY=" + file, "GEM_DOMAINS=" + domains}, "dev")
	url := devURL(t, p)
	p.stdout.waitFor(t, "TOOLS_REGISTRY='"+file+"' DATABASE_URL=")
	p.stderr.waitFor(t, "worker started")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"version": `)
	refused := p.stderr.waitFor(t, "until "+file+" is repaired")
	wants(t, refused, strings.TrimPrefix(gemWith(t, nil, "registry", "check", file).stderr, "gem registry check: "))
	write(strings.Replace(string(builtIn.Registry), `"os.health_check"`, `"os.health_chek"`, 1))
	p.stderr.waitFor(t, "repaired: "+file)
	p.stderr.waitFor(t, "did you mean HealthCheck?")
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "{}", "--wait", "--timeout", "1m")
	if !strings.Contains(got.stdout+got.stderr, "unknown_tool") {
		t.Errorf("stdout:\n%s\nstderr:\n%s", got.stdout, got.stderr)
	}
	if err := os.WriteFile(domains, []byte(strings.Replace(crmAt, "CRM_SECRET", "OTHER_SECRET", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	p.stderr.waitFor(t, "domains.json has changed")
	db := testdb.Pool(t, url)
	// recorded by the next worker
	for testdb.Value[int](t, db,
		"select count(*)::int from gem.domains_versions where domains::text like '%OTHER_SECRET%'") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code after Ctrl-C: got %d, want 0", code)
	}
}
