package types_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/types"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

var update = flag.Bool("update", false, "write testdata/builtin.ts anew")

func parse(t *testing.T, text string) *registry.Registry {
	t.Helper()
	r, err := registry.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func recorded(t *testing.T, text []byte) *registry.Registry {
	t.Helper()
	r, err := registry.ParseRecorded(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheTypesOfTheBuiltInRegistry(t *testing.T) {
	t.Parallel()
	got := types.TypeScript(parse(t, string(gem.BuiltInRegistry)))
	compareGolden(t, "testdata/builtin.ts", got)
}

// compareGolden compares types with those in a file. With -update, it writes them into the file first.
func compareGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("the types differ from %s; to accept them: go test ./internal/types -update\n%s", file, diff)
	}
}

func TestTheSameRegistryGivesTheSameText(t *testing.T) {
	t.Parallel()
	m := &maker{Rand: rand.New(rand.NewPCG(3, 7))} //nolint:gosec // the same in every run
	r := m.registry(0, "1", 5)
	first := types.TypeScript(r)
	for range 5 {
		if again := types.TypeScript(recorded(t, r.JSON())); string(again) != string(first) {
			t.Fatal(cmp.Diff(string(first), string(again)))
		}
	}
}

// The compiler takes a second to start, so that it reads the files of all tests at once. It finds no fault in any: each
// line that it has to reject is below // @ts-expect-error.
func TestTheCompilerTakesTheTypesAndAcceptsWhatTheRegistryAccepts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tsconfig.json",
		`{"compilerOptions": {"strict": true, "noEmit": true, "target": "es2022", "module": "esnext", "types": [], "exactOptionalPropertyTypes": true}}`)
	write("builtin.ts", string(types.TypeScript(parse(t, string(gem.BuiltInRegistry))))+receiptOf(t)+usage)
	write("docs.ts", example(t))
	write("empty.ts", string(types.TypeScript(parse(t, `{"version": "0", "tools": []}`))))
	write("table.ts", table(t))
	write("hostile.ts", string(types.TypeScript(hostile(t))))
	files := 8
	if os.Getenv("GEM_TEST_LONG") != "" {
		files = 300
	}
	for n := range files {
		write(fmt.Sprintf("fuzz%d.ts", n), fuzzed(t, n))
	}
	if got := mcpclients.Run(t, nil, "tsc", "-p", dir); got.Code != 0 {
		t.Errorf("%s%s", got.Stdout[:min(len(got.Stdout), 5000)], got.Stderr)
	}
}

// example is the code of docs/clients.md that reads a receipt.
func example(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)\n```ts\n(import .*?)\n```\n").FindSubmatch(text)
	if found == nil {
		t.Fatal("docs/clients.md has no example")
	}
	return strings.Replace(string(found[1]), "./gem-tools", "./builtin", 1) + "\nexport { say }\n"
}

// fuzzed returns the types of a made-up registry, and values of them that the registry accepts.
func fuzzed(t *testing.T, seed int) string {
	t.Helper()
	m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 7))} //nolint:gosec // the same in every run
	r := m.registry(seed, m.one("1", "a\u2028b", "*/").(string), 5)
	var b strings.Builder
	b.Write(types.TypeScript(r))
	for _, tool := range r.Tools() {
		for i := range 25 {
			text, err := json.Marshal(m.fit(tool.InputSchema))
			if err != nil {
				t.Fatal(err)
			}
			if tool.ValidateInput(text) == nil {
				fmt.Fprintf(&b, "export const %s_%d: Tools[%q][\"input\"] = %s\n", tool.FlatName(), i, tool.Name,
					literal(string(text)))
			}
		}
	}
	return b.String()
}

// literal writes JSON as JavaScript, where "__proto__": would set something else.
func literal(text string) string { return strings.ReplaceAll(text, `"__proto__":`, `["__proto__"]:`) }

// hostile has names and texts that mean something in TypeScript, and names of types that meet.
func hostile(t *testing.T) *registry.Registry {
	t.Helper()
	var properties, tools []string
	for _, name := range append([]any{"constructor", "toString", "then", "get", "set", "static", "declare", "enum",
		"await", "\x1b[31m", "\ufeff"}, keys...) {
		for _, text := range texts {
			properties = append(properties, fmt.Sprintf(`%s: {"description": %s, "enum": [%[2]s]}`,
				jsonOf(t, strings.TrimSuffix(name.(string)+"\t"+text.(string), "\t")), jsonOf(t, text)))
		}
	}
	for _, name := range []string{"a.b_c", "a.bc", "a.b1_2", "a.b12", "a.b_12", "tool.name", "receipt.of", "call.error",
		"a.b_input", "record.string"} {
		tools = append(tools,
			fmt.Sprintf(`{"name": %q, "description": "*/ x", "input_schema": {"$ref": "#/$defs/日本", "$defs": {"日本": {"properties": {%s}}, "b": {"properties": {"a": {"$ref":
			"#/$defs/a-b"}, "b": {"$ref": "#/$defs/aB"}}}, "a-b": {"type": "string"}, "aB": {"type": "number"}}, "properties": {"b": {"$ref": "#/$defs/b"}}}, "output_schema": {"$anchor": "x",
			"items": {"$ref": "#x"}}, "idempotency": {"mode": "none"}, "timeout_ms": 1}`, name, strings.Join(properties, ", ")))
	}
	return parse(t, `{"version": "\u2028*/ // 1", "tools": [`+strings.Join(tools, ",\n")+`]}`)
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A receipt as GEM writes it fits the type of one.
func receiptOf(t *testing.T) string {
	t.Helper()
	cost := "0.1"
	at := time.Unix(0, 0).UTC()
	effects := receipts.Effects{
		HandlerEffects: receipts.HandlerEffects{
			DBWrites:     []receipts.DBWrite{{Table: "t", Action: handlers.Insert, ID: "1"}},
			DBReads:      []receipts.DBRead{{Table: "t", Count: 1}},
			MessagesSent: []receipts.MessageSent{{Type: "sms", Recipient: "r", MessageID: "m"}}, FilesWritten: []string{"f"},
			ExternalCalls: []receipts.ExternalCall{{Service: "s", Endpoint: "e"},
				{Service: "s", Endpoint: "e", StatusCode: 200, LLM: &receipts.ModelRequest{
					Request: 1, Target: "a", Model: "m", RequestID: "r", Bounded: true, InputTokens: 1, OutputTokens: 1,
					CostUSD: &cost,
					Outcome: "done", FirstContentMS: 1, MS: 1,
				}}},
		},
		Idempotency: receipts.Idempotency{Mode: "keyed", Hit: true, InputDiffers: true, KeyIgnored: true, KeyField: "k",
			KeyValue: json.RawMessage(`"v"`)},
		Durable: &receipts.Durable{Steps: 1, Calls: 1, Unread: []string{"a"}},
		Rules: &receipts.Rules{Version: "1", At: at, Approvals: []receipts.Approval{{Rule: "r", ID: "i", By: "b", At: at,
			Digest: "d"}},
			Verdicts: []receipts.Verdict{{Rule: "r", Action: rules.Warn, Message: "m", Undecided: true,
				Seen: &receipts.Evidence{FreeAt: &at}}}},
	}
	for _, v := range []any{effects, effects.Idempotency, effects.ExternalCalls[1], *effects.ExternalCalls[1].LLM,
		*effects.Durable, *effects.Rules, effects.Rules.Verdicts[0]} {
		for field := range reflect.TypeOf(v).Fields() {
			if field.Tag.Get("json") != "-" && reflect.ValueOf(v).FieldByIndex(field.Index).IsZero() {
				t.Errorf("%T.%s is not in the example: add it there, and to receipt.ts", v, field.Name)
			}
		}
	}
	receipt := func(status string, result any) string {
		return fmt.Sprintf(
			`{"id": "i", "call_id": "c", "tool_name": "leads.create", "status": %q, "result": %s, "effects": %s, "created_at": "2026-01-01T00:00:00+00:00",
			"attempt": 1, "registry_version": null, "idempotency_key": null, "replay_of": null, "duration": "00:00:01"}`, status, jsonOf(t, result), jsonOf(t, effects))
	}
	failed := receipts.Failure(receipts.ValidationError, "m",
		[]receipts.Fault{{Path: "/a", Keyword: "type", Message: "m"}})
	unset := receipts.Unconfigured("r", []string{"A"}, []string{"b"})
	return "\nexport const receipts: ReceiptOf<\"leads.create\">[] = [" +
		strings.Join([]string{receipt("succeeded", map[string]string{"lead_id": "x"}),
			receipt("failed", failed.Result), receipt("not_configured", unset.Result)}, ",\n") + "]\n"
}

// usage reads a receipt as a program would.
const usage = `
export function said(receipt: ReceiptOf<"leads.create">): string {
  switch (receipt.status) {
    case "succeeded":
      return receipt.result.lead_id
    case "failed":
      return receipt.result.error.error_code === "timeout" ? "late" : receipt.result.error.message
    case "not_configured":
      return receipt.result.required_env.join()
  }
}
export const name: ToolName = "os.create_note"
// @ts-expect-error
export const other: ToolName = "os.create_nite"
// @ts-expect-error
export const lead: ReceiptOf<"leads.create"> extends { status: "failed"; result: infer R } ? R : never =
  { lead_id: "x" }
`

func TestTheTypesNameAllCodesOfGEM(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../receipts/receipt.go")
	if err != nil {
		t.Fatal(err)
	}
	types, err := os.ReadFile("receipt.ts")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\t\w+ +Code = ("\w+")`).FindAllSubmatch(source, -1)
	if len(codes) < 18 {
		t.Errorf("%d codes were found", len(codes))
	}
	for _, code := range codes {
		if !strings.Contains(string(types), "\n  | "+string(code[1])+"\n") {
			t.Errorf("receipt.ts lacks the code %s", code[1])
		}
	}
}

// cases are schemas of a property v, with values that the registry and the compiler accept, values that both refuse,
// and values that only the registry refuses, since no type says that.
var cases = []struct{ schema, accepted, refused, refusedByTheRegistry string }{
	{`true`, `null, 1, {}, [1]`, ``, ``},
	{`false`, ``, `null, 1, {}`, ``},
	{`{"type": "string", "maxLength": 10, "format": "date"}`, `"2026-01-01"`, `1, null, ["a"], {}`, `"2026-01"`},
	{`{"type": "integer", "minimum": 0}`, `1, 0`, `"1", true`, `1.5, -1`},
	{`{"type": ["string", "null"]}`, `"a", null`, `1, {}`, ``},
	{`{"enum": ["a", 1, null, true, {"b": [1]}]}`, `"a", 1, null, true, {"b": [1]}`,
		`"b", 2, false, {"b": [2]}, {"b": [1], "c": 1}, {}, [1]`, ``},
	{`{"enum": ["a", "b", 1], "type": "string"}`, `"a", "b"`, `1, "c"`, ``},
	{`{"const": "*/"}`, `"*/"`, `"a"`, ``},
	{`{"const": {}}`, `{}`, `{"a": 1}, []`, ``},
	{`{"const": 12345678901234567890}`, `12345678901234567890`, `"a"`, `1`},

	{`{"type": "object"}`, `{}, {"a": 1}`, `[], "a", null`, ``},
	{`{"type": "object", "additionalProperties": false}`, `{}`, `{"a": 1}, []`, ``},
	{`{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "number"}}, "additionalProperties": false}`,
		`{"a": "x"}, {"a": "x", "b": 1}`, `{}, {"b": 1}, {"a": 1}, {"a": "x", "b": null}, {"a": "x", "c": 1}`, ``},
	{`{"type": "object", "properties": {"a": {"type": "string"}}}`, `{}, {"a": "x"}, {"c": [1]}`, `{"a": 1}, []`, ``},
	{`{"type": "object", "required": ["a"]}`, `{"a": 1}, {"a": null, "b": 2}`, `{}, {"b": 1}`, ``},
	{`{"type": "object", "required": ["a"], "additionalProperties": false}`, ``, `{}, {"a": 1}`, ``},
	{`{"type": "object", "additionalProperties": {"type": "number"}}`, `{}, {"a": 1}`, `{"a": "x"}`, ``},
	{`{"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "number"}}`,
		`{"a": "x", "b": 1}`, `{"a": 1}, {"b": {}}`, `{"b": "x"}`},
	{`{"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false}`, `{"x-a": "b"}`,
		`{"x-a": 1}`, `{"y": "b"}`},
	{`{"type": "object", "patternProperties": {"^x-": {"type": "string"}}}`, `{"x-a": "b", "y": 1}`, `[]`, `{"x-a": 1}`},
	{`{"type": "object", "properties": {"toString": {"type": "string"}, "constructor": false}}`, `{}, {"toString": "a"}`,
		``, `{"toString": 1}`},
	{`{"type": "object", "properties": {"a": false}}`, `{}, {"b": 1}`, `{"a": 1}`, ``},
	{`{"properties": {"a": {"type": "string"}}}`, `{"a": "x"}, {"b": 1}, "a", 1, [1], null`, `{"a": 1}`, ``},
	{`{"type": "object", "required": ["a b", "new", "__proto__"], "properties": {"a b": {"const": 1}, "new": {"const": 2}, "__proto__": {"const": 3}}, "additionalProperties": false}`,
		`{"a b": 1, "new": 2, "__proto__": 3}`, `{"a b": 1, "new": 2, "__proto__": 4}, {"a b": 1, "__proto__": 3}`, ``},

	{`{"type": "array"}`, `[], [1, "a"]`, `{}, "a"`, ``},
	{`{"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}`, `["a", 1]`, `[null], [[]]`, `[]`},
	{`{"type": "array", "items": false}`, `[]`, `[1]`, ``},
	{`{"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": false}`, `[], ["a"], ["a", 1]`,
		`[1], ["a", "b"], ["a", 1, 2]`, ``},
	{`{"type": "array", "prefixItems": [{"type": "string"}, {"type": ["number", "null"]}], "minItems": 1}`,
		`["a"], ["a", null, {}, 1]`, `[], [1]`, ``},
	{`{"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "number"}, "minItems": 1}`,
		`["a"], ["a", 1, 2]`, `[1], ["a", "b"]`, ``},

	{`{"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}}}]}`,
		`"x", {"a": 1}, {"a": 1, "b": 2}`, `1, {}, {"a": "x"}`, ``},
	{`{"oneOf": [{"type": "object", "required": ["kind", "r"], "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "additionalProperties": false},
		{"type": "object", "required": ["kind", "side"], "properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "additionalProperties": false}]}`,
		`{"kind": "circle", "r": 1}, {"kind": "square", "side": 1}`,
		`{"kind": "circle", "side": 1}, {"kind": "line"}, {"kind": "circle", "r": 1, "x": 1}`, ``},
	{`{"oneOf": [{"type": "number"}, {"type": "integer"}]}`, `1.5`, `"a"`, `1`},
	{`{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}`,
		`{"a": "x"}, {"b": "x"}, {"a": "x", "b": "y"}`, `{}, {"a": 1}, {"a": "x", "c": 1}`, ``},
	{`{"allOf": [{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, {"type": "object", "required": ["b"], "properties": {"b": {"type": "number"}}}]}`,
		`{"a": "x", "b": 1}, {"a": "x", "b": 1, "c": 2}`, `{"a": "x"}, {"a": 1, "b": 1}, "a"`, ``},
	{`{"allOf": [{"type": ["string", "number"]}, {"type": ["number", "boolean"]}]}`, `1`, `"a", true`, ``},
	{`{"enum": [1, 2, 3], "not": {"const": 2}}`, `1, 3`, `4`, `2`},
	{`{"not": {"type": ["string", "null"]}}`, `1, {}, []`, `"a", null`, ``},
	{`{"not": {}}`, ``, `1, {}`, ``},
	{`{"if": {"type": "string"}, "then": {"const": "a"}, "else": {"type": "number"}}`, `"a", 1`, `"b", true`, ``},
	{`{"if": {"type": "string"}, "then": {"const": "a"}}`, `"a", 1`, ``, `"b"`},

	{`{"$ref": "#/$defs/name"}`, `"a"`, `1`, ``},
	{`{"$ref": "#/$defs/tree"}`, `{"name": "a"}, {"name": "a", "children": [{"name": "b", "children": []}]}`,
		`{}, {"name": "a", "children": [{}]}, {"name": "a", "children": [{"name": 1}]}`, ``},
	{`{"$ref": "#/$defs/tree", "required": ["children"]}`, `{"name": "a", "children": []}`,
		`{"name": "a"}, {"name": 1, "children": []}`, ``},
	{`{"$ref": "#/$defs/json"}`, `1, [1, ["a"]], {"a": {"b": null}}`, `true, [true], {"a": {"b": true}}`, ``},
	{`{"$ref": "#anchored"}`, `[1]`, `["a"], 1`, ``},
	{`{"$ref": "#/$defs/with~1slash%20and"}`, `1`, `"a"`, ``},
	{`{"type": "object", "properties": {"again": {"$ref": "#"}}}`, `{}, {"again": {"v": {"again": {"w": 1}}}}`,
		`{"again": 1}, {"again": {"v": {"again": 1}}}`, ``},
	{`{"$id": "http://example.com/inner", "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}`, `"a"`, `1`, ``},
}

const defs = `{"name": {"type": "string"}, "with/slash and": {"type": "number"}, "list": {"$anchor": "anchored", "type": "array", "items": {"type": "number"}}, "x": {"type": "boolean"},
	"tree": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/tree"}]}}}},
	"json": {"anyOf": [{"type": ["string", "number", "null"]}, {"type": "array", "items": {"$ref": "#/$defs/json"}}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}}]}}`

// older are whole inputs of earlier drafts.
var older = []struct{ schema, accepted, refused, refusedByTheRegistry string }{
	{`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"v": {"type": "array", "items": [{"type": "string"}, {"$ref": "#/definitions/n"}], "additionalItems": false, "minItems": 2}},
		"definitions": {"n": {"type": "number"}}}`, `["a", 1]`, `["a"], [1, "a"], ["a", 1, 2]`, ``},
	{`{"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"v": {"type": "number", "minimum": 1, "exclusiveMinimum": true}}}`, `2`, `"a"`, `1`},
	{`{"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"v": {"items": [{"const": 1}], "additionalItems": {"type": "string"}}}}`, `[], [1, "a"], "a"`, `[2], [1, 2]`, ``},
}

// table returns the types of a tool for each case of the table, and the values of the case.
func table(t *testing.T) string {
	t.Helper()
	return tabled(t, types.TypeScript, func(_ string, s sample) string {
		expected := ""
		if !s.typed {
			expected = "// @ts-expect-error\n"
		}
		return fmt.Sprintf("%sexport const %s: Tools[%q][\"input\"] = %s\n", expected, s.name, s.tool, literal(s.input))
	})
}

// sample is a value of the table. valid means that the registry accepts it, and typed that its type in TypeScript does.
type sample struct {
	schema, tool, name, input string
	valid, typed              bool
}

// tabled returns the types of a tool for each case of the table, and for each value of the case the line that value
// returns.
func tabled(t *testing.T, write func(*registry.Registry) []byte, value func(types string, s sample) string) string {
	t.Helper()
	var tools []string
	all := append([]struct{ schema, accepted, refused, refusedByTheRegistry string }{}, older...)
	for _, c := range cases {
		c.schema = `{"properties": {"v": ` + c.schema + `}, "type": "object", "$defs": ` + defs + `}`
		all = append(all, c)
	}
	for i, c := range all {
		tools = append(tools,
			fmt.Sprintf(`{"name": "t.case%d", "input_schema": %s, "output_schema": %[2]s, "idempotency": {"mode": "none"}, "timeout_ms": 1}`, i, c.schema))
	}
	r := parse(t, `{"version": "1", "tools": [`+strings.Join(tools, ",\n")+`]}`)
	text := string(write(r))
	var b strings.Builder
	b.WriteString(text)
	for i, c := range all {
		tool, _ := r.Tool("t.case" + strconv.Itoa(i))
		n := 0
		values := func(list string, valid, typed bool) {
			var some []json.RawMessage
			if err := json.Unmarshal([]byte("["+list+"]"), &some); err != nil {
				t.Fatalf("%s: %v", list, err)
			}
			for _, v := range some {
				input := `{"v":` + string(v) + `}`
				if faults := tool.ValidateInput([]byte(input)); (faults == nil) != valid {
					t.Errorf("%s: %s: the registry says %v", c.schema, input, faults)
				}
				b.WriteString(value(text, sample{c.schema, tool.Name, fmt.Sprintf("v%d_%d", i, n), input, valid, typed}))
				n++
			}
		}
		values(c.accepted, true, true)
		values(c.refused, false, false)
		values(c.refusedByTheRegistry, false, true)
	}
	return b.String()
}
