package registry_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/registry"
)

// refusals are registries that are refused, with the beginning of every line of the error and a word of its advice.
// editor says whether the schema for editors refuses the file too.
var refusals = []struct {
	name   string
	text   string
	want   []string // "tool: field: part of the problem"
	editor bool
}{
	{"no object", `[]`, []string{": : must be an object but is a list"}, true},
	{"no version", `{"tools": []}`, []string{": version: is missing"}, true},
	{"empty version", `{"version": "", "tools": []}`, []string{": version: is too short: its length is 0 and must be at " +
		"least 1"}, true},
	{"version in white space", `{"version": " 1", "tools": []}`,
		[]string{": version: without control characters or white space at its ends"}, true},
	{"version of another type", `{"version": 1, "tools": []}`, []string{": version: must be a string but is a number"},
		true},
	{"long version", `{"version": "` + strings.Repeat("1", 65) + `", "tools": []}`,
		[]string{": version: is too long: its length is 65 and must be at most 64"}, true},
	{"no tools", `{"version": "1", "tool": []}`, []string{`: tools: is missing`}, true},
	{"tools of another type", `{"version": "1", "tools": {}}`, []string{": tools: must be a list but is an object"}, true},
	{"null", `{"version": null, "tools": null}`, []string{": tools: must be a list but is null",
		": version: must be a string but is null"}, true},
	{"tool of another type", file(`"leads.create"`), []string{"tools[0]: : must be an object but is a string"}, true},
	{"empty tool", file(`{}`), []string{
		"tools[0]: idempotency: is missing. Whether a call repeats the result of an earlier one instead of running: " +
			"{\"mode\": \"none\"}",
		"tools[0]: input_schema: is missing",
		"tools[0]: name: is missing",
		"tools[0]: output_schema: is missing",
		"tools[0]: timeout_ms: is missing",
	}, true},

	{"duplicate names", file(entry(nil), entry(fields{"name": `"os.x"`}), entry(nil)),
		[]string{"leads.create: name: tools[0] and tools[2]"}, false},
	{"name of another type", file(entry(fields{"name": `7`})),
		[]string{"tools[0]: name: must be a string but is a number"}, true},
	{"one part", file(entry(fields{"name": `"create"`})), []string{"create: name: Two or more parts joined by dots"},
		true},
	{"capitals", file(entry(fields{"name": `"leads.Create"`})), []string{"leads.Create: name: lower-case letters"}, true},
	{"hyphen", file(entry(fields{"name": `"leads.re-open"`})), []string{"leads.re-open: name: lower-case letters"}, true},
	{"digit first", file(entry(fields{"name": `"leads.2nd"`})), []string{"leads.2nd: name: lower-case letter"}, true},
	{"empty part", file(entry(fields{"name": `"leads..create"`})), []string{"leads..create: name: joined by dots"}, true},
	{"dot at the end", file(entry(fields{"name": `"leads.create."`})), []string{"leads.create.: name: joined by dots"},
		true},
	{"line break in a name", file(entry(fields{"name": `"leads.create\n"`})), []string{"tools[0]: name: joined by dots"},
		true},
	{"long name", file(entry(fields{"name": `"a.` + strings.Repeat("b", 63) + `"`})),
		[]string{"a." + strings.Repeat("b", 63) + ": name: is too long: its length is 65 and must be at most 64"}, true},
	{"longest name of another form", file(entry(fields{"name": `"a.` + strings.Repeat("b", 199) + `"`})),
		[]string{"tools[0]: name: is too long: its length is 201"}, true},
	{"two names for one with underscores", file(entry(fields{"name": `"shop.re.fund"`}), entry(nil),
		entry(fields{"name": `"shop.re_fund"`})), []string{
		"shop.re_fund: name: shop.re.fund and shop.re_fund are both called shop_re_fund by agents, which know no dots: " +
			"rename one"}, false},
	{"a domain of GEM's own", file(entry(fields{"name": `"gem.result"`})),
		[]string{"gem.result: name: the domain gem is for tools of GEM's own"}, false},
	{"description of another type", file(entry(fields{"description": `["a"]`})),
		[]string{"leads.create: description: must be a string but is a list"}, true},

	{"mistyped field", file(entry(fields{"timeout": `3`})), []string{"leads.create: timeout: unknown field: did you " +
		"mean timeout_ms?"}, true},
	{"field in another style", file(entry(fields{"inputSchema": `{}`})),
		[]string{"leads.create: inputSchema: did you mean input_schema?"}, true},
	{"a question with a key", file(entry(fields{"name": `"wait.answer"`, "idempotency": `{"mode": "safe-retry"}`})),
		[]string{"wait.answer: idempotency.mode: must be \"none\" for a tool that asks"}, false},
	{"field of another dialect", file(entry(fields{"parameters": `{}`})), []string{"leads.create: parameters: known " +
		"fields are calls, deadline_ms, description, frontends, hints, idempotency, input_schema"}, true},
	{"unknown field", file(entry(fields{"colour": `1`})), []string{"leads.create: colour: unknown field: remove it, or " +
		"begin its name with x- to keep it as a note; known fields are calls, deadline_ms, description,"}, true},

	{"input_schema of another type", file(entry(fields{"input_schema": `"object"`})),
		[]string{"leads.create: input_schema: must be an object or a boolean but is a string"}, true},
	{"input that is no object", file(entry(fields{"input_schema": `{"type": "string"}`})),
		[]string{`leads.create: input_schema/type: write "type": "object"`}, true},
	{"input that is one of others", file(entry(fields{"input_schema": `{"type": ["string", "null"]}`})),
		[]string{`leads.create: input_schema/type: always an object`}, true},
	{"input that is no object by reference", file(entry(
		fields{"input_schema": `{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"type": "array"}]}}}`})),
		[]string{`leads.create: input_schema/type: always an object`}, false},
	{"output_schema that does not compile", file(entry(fields{"output_schema": `{"type": "strng", "minLength": "3"}`})),
		[]string{
			"leads.create: output_schema/minLength: expected integer, but got string",
			"leads.create: output_schema/type: must be one of",
		}, true},

	{"no mode", file(entry(fields{"idempotency": `{}`})), []string{"leads.create: idempotency.mode: is missing"}, true},
	{"idempotency of another type", file(entry(fields{"idempotency": `"none"`})),
		[]string{`leads.create: idempotency: {"mode": "none"}`}, true},
	{"unknown mode", file(entry(fields{"idempotency": `{"mode": "safe_retry"}`})),
		[]string{"leads.create: idempotency.mode: did you mean safe-retry? none: every call runs"}, true},
	{"mode of another type", file(entry(fields{"idempotency": `{"mode": 1}`})),
		[]string{"leads.create: idempotency.mode: must be one of none, safe-retry, keyed"}, true},
	{"mistyped key_field", file(entry(fields{"idempotency": `{"mode": "keyed", "keyField": "phone"}`})), []string{
		"leads.create: idempotency.keyField: did you mean key_field?",
		"leads.create: idempotency.key_field: is missing. Mode keyed needs",
	}, true},
	{"keyed without key_field", file(entry(fields{"idempotency": `{"mode": "keyed"}`})),
		[]string{"leads.create: idempotency.key_field: is missing"}, true},
	{"keyed with an empty key_field", file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": ""}`})),
		[]string{"leads.create: idempotency.key_field: is too short: its length is 0 and must be at least 1"}, true},
	{"keyed with a null key_field", file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": null}`})),
		[]string{"leads.create: idempotency.key_field: must be a string but is null. Mode keyed needs"}, true},
	{"keyed by what is no property", file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": "mail"}`})),
		[]string{`leads.create: idempotency.key_field: mail is not a required property`}, false},
	{"keyed by what may be absent", file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": "phone"}`,
		"input_schema": `{"properties": {"phone": {}}}`})),
		[]string{`leads.create: idempotency.key_field: phone is not a required property`}, false},
	{"keyed by an alternative's property", file(entry(
		fields{"idempotency": `{"mode": "keyed", "key_field": "phone"}`,
			"input_schema": `{"properties": {"phone": {}}, "anyOf": [{"required": ["phone"]}, {}]}`})),
		[]string{`leads.create: idempotency.key_field: phone is not a required property`}, false},
	{"on_other_input of another value", file(entry(
		fields{"idempotency": `{"mode": "safe-retry", "on_other_input": "run"}`})),
		[]string{"leads.create: idempotency.on_other_input: must be one of replay, refuse"}, true},
	{"on_other_input without keys", file(entry(fields{"idempotency": `{"mode": "none", "on_other_input": "refuse"}`})),
		[]string{"leads.create: idempotency.on_other_input: must be null but is a string. With mode none no call has a key"},
		true},
	{"key_field without keyed", file(entry(fields{"idempotency": `{"mode": "safe-retry", "key_field": "phone"}`})),
		[]string{"leads.create: idempotency.key_field: must be null but is a string. Only mode keyed has a key field: " +
			"remove it"}, true},

	{"timeout 0", file(entry(fields{"timeout_ms": `0`})), []string{"leads.create: timeout_ms: must be at least 1; it is " +
		"0. The number of milliseconds after which"}, true},
	{"timeout over a day", file(entry(fields{"timeout_ms": `86400001`})),
		[]string{"leads.create: timeout_ms: must be at most 86400000; it is 86400001"}, true},
	{"timeout of half a millisecond", file(entry(fields{"timeout_ms": `1.5`})),
		[]string{"leads.create: timeout_ms: must be a whole number"}, true},
	{"timeout as text", file(entry(fields{"timeout_ms": `"15s"`})),
		[]string{"leads.create: timeout_ms: must be a whole number but is a string"}, true},
	{"timeout beyond all integers", file(entry(fields{"timeout_ms": `1e300`})),
		[]string{"leads.create: timeout_ms: must be at most 86400000; it is 1000"}, true},

	{"permissions of another type", file(entry(fields{"permissions": `"read:db"`})),
		[]string{"leads.create: permissions: must be a list but is a string"}, true},
	{"malformed permissions", file(entry(fields{"permissions": `["read:db", "read", 3, "a b:c", ":db"]`})), []string{
		`leads.create: permissions[1]: it is read. A permission has the form verb:object`,
		`leads.create: permissions[2]: must be a string but is a number`,
		`leads.create: permissions[3]: it is "a b:c"`, `leads.create: permissions[4]: it is ":db"`,
	}, true},
	{"malformed receipt_fields", file(entry(fields{"receipt_fields": `["results.id", "effects.", "lead_id", null]`})),
		[]string{
			`leads.create: receipt_fields[0]: it is "results.id". A path begins with result or effects`,
			`leads.create: receipt_fields[1]: "effects."`, `leads.create: receipt_fields[2]: lead_id`,
			`leads.create: receipt_fields[3]: must be a string but is null`,
		}, true},
	{"retry out of range", file(entry(fields{"retry": `{"max_attempts": 21, "backoff_ms": 3600001}`})), []string{
		"leads.create: retry.backoff_ms: must be at most 3600000; it is 3600001",
		"leads.create: retry.max_attempts: must be at most 20; it is 21. The number of attempts with the first: 1 to 20.",
	}, true},
	{"retry of nothing", file(entry(fields{"retry": `{"max_attempts": 0, "backoff_ms": 0}`})), []string{
		"leads.create: retry.backoff_ms: must be at least 1; it is 0",
		"leads.create: retry.max_attempts: must be at least 1; it is 0"}, true},
	{"frontends of another type", file(entry(fields{"frontends": `"yes"`})),
		[]string{"leads.create: frontends: must be a boolean but is a string. Whether signed-in users"}, true},
	{"hints of other types", file(entry(fields{"hints": `{"title": "", "destructive": "no", "readOnly": true}`})),
		[]string{
			"leads.create: hints.destructive: must be a boolean but is a string. Whether the tool may change or remove",
			"leads.create: hints.readOnly: unknown field: remove it", "leads.create: hints.title: is too short",
		}, true},
	{"retry of another type", file(entry(fields{"retry": `3`})),
		[]string{"leads.create: retry: must be an object but is a number"}, true},
	{"mistyped retry", file(entry(fields{"retry": `{"attempts": 3}`})),
		[]string{"leads.create: retry.attempts: unknown field: did you mean max_attempts?"}, true},

	{"duplicate keys", `{"version": "1", "version": "2", "tools": [` +
		strings.Replace(entry(nil), `"phone":`, `"phone": {}, "phone":`, 1) + `]}`, []string{
		"leads.create: input_schema/properties/phone: the key appears twice",
		": version: the key appears twice",
	}, false},
	{"poison", file(entry(fields{"description": `"a\u0000b"`, "x-n": `1e10000000`, "x-s": `"\ud800"`,
		"timeout_ms":   `1e10000000`,
		"input_schema": `{"maximum": 1e10000000, "minLenght": 1}`})), []string{
		`leads.create: description: NUL`, `leads.create: input_schema/maximum: exponent`,
		`leads.create: input_schema/minLenght: did you mean minLength?`, `leads.create: timeout_ms: exponent`,
		`leads.create: x-n: exponent`, `leads.create: x-s: Unicode`,
	}, false},
	{"no JSON", "{\"version\": \"1\",\n\"tools\": [],\n}", []string{": : line 3, column 1: invalid character '}' " +
		"looking for beginning of object key string"}, false},
	{"more than one value", file() + `{}`, []string{": : invalid character '{' after top-level value"}, false},
	{"too deep", `{"version": "1", "tools": [], "x": ` + strings.Repeat("[", 250) + strings.Repeat("]", 250) + `}`,
		[]string{": : nested more than 200 levels"}, false},

	{"everything at once", `{"version": 1, "tools": [` + entry(fields{"timeout_ms": `0`}) + `, 3, ` +
		entry(fields{"name": `"x"`, "permissions": `[1]`}) + `]}`, []string{
		"leads.create: timeout_ms: it is 0", "tools[1]: : is a number", "x: name: it is x", "x: permissions[0]: is a number",
		": version: is a number"}, true},
}

func TestParseRefuses(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) { refused(t, c.text, c.want) })
	}
}

// refused checks that the registry is refused for these reasons and no other.
func refused(t *testing.T, text string, want []string) {
	t.Helper()
	r, err := registry.Parse([]byte(text))
	var invalid *defects.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("Parse = %v, %v; want an *defects.InvalidError", r, err)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != len(invalid.Defects) {
		t.Errorf("%d lines for %d defects", len(lines), len(invalid.Defects))
	}
	if len(invalid.Defects) != len(want) {
		t.Fatalf("got %d defects, want %d:\n%v", len(invalid.Defects), len(want), err)
	}
	for i, d := range invalid.Defects {
		w := strings.SplitN(want[i], ": ", 3)
		if d.Part != w[0] || d.Field != w[1] || !strings.Contains(d.Problem, w[2]) {
			t.Errorf("defect %d = %q, %q, %q\nwant %q", i, d.Part, d.Field, d.Problem, w)
		}
		if len(d.Problem) > 600 {
			t.Errorf("a problem of %d characters", len(d.Problem))
		}
	}
}

// acceptances are registries at the edge of what is right.
var acceptances = map[string]string{
	"two of a kind":   file(entry(nil), entry(fields{"name": `"leads.create_2"`})),
	"unknown top key": `{"$schema": "x", "owner": {"a": [1]}, "version": "2026-01-31 b", "tools": []}`,
	"empty lists":     file(entry(fields{"permissions": `[]`, "receipt_fields": `[]`, "description": `""`})),
	"notes": file(entry(fields{"x-a": `{"a": 1}`, "retry": `{"x-why": 1}`,
		"idempotency": `{"mode": "none", "x-why": 1}`})),
	"null key_field":      file(entry(fields{"idempotency": `{"mode": "none", "key_field": null}`})),
	"shortest timeout":    file(entry(fields{"timeout_ms": `1`})),
	"longest timeout":     file(entry(fields{"timeout_ms": `86400000`})),
	"timeout as a float":  file(entry(fields{"timeout_ms": `1.5e4`})),
	"smallest retry":      file(entry(fields{"retry": `{"max_attempts": 1, "backoff_ms": 1}`})),
	"largest retry":       file(entry(fields{"retry": `{"max_attempts": 20, "backoff_ms": 3600000}`})),
	"half a retry":        file(entry(fields{"retry": `{"backoff_ms": 100}`})),
	"long name":           file(entry(fields{"name": `"a.` + strings.Repeat("b", 62) + `"`})),
	"hints":               file(entry(fields{"hints": `{"title": "New lead", "destructive": false, "x-why": 1}`})),
	"no hints":            file(entry(fields{"hints": `{}`})),
	"almost GEM's":        file(entry(fields{"name": `"gem_2.result"`})),
	"long version":        `{"version": "` + strings.Repeat("ä", 64) + `", "tools": []}`,
	"many parts":          file(entry(fields{"name": `"a.b_1.c__.d9"`})),
	"schemas that accept": file(entry(fields{"input_schema": `true`, "output_schema": `{}`})),
	"type among others":   file(entry(fields{"input_schema": `{"type": ["object", "null"]}`})),
	"on_other_input":      file(entry(fields{"idempotency": `{"mode": "safe-retry", "on_other_input": "replay"}`})),
	"keyed":               file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": "phone"}`})),
	"keyed by reference": file(entry(fields{"idempotency": `{"mode": "keyed", "key_field": "phone"}`,
		"input_schema": `{"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"allOf": [{"required": ["phone"]}, {"properties": {"phone": {}}}]}}}`})),
}

func TestParseAccepts(t *testing.T) {
	for name, text := range acceptances {
		t.Run(name, func(t *testing.T) { parse(t, text) })
	}
}

func fileSchema(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("registry.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The schema for editors and the checks in Go must not drift apart.
func TestEditorSchemaAgreesWithParse(t *testing.T) {
	c := jsonschema.NewCompiler()
	c.AssertFormat = true
	if err := c.AddResource("registry.schema.json", bytes.NewReader(fileSchema(t))); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("registry.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range acceptances {
		if err := schema.Validate(decode(t, text)); err != nil {
			t.Errorf("%s: the schema refuses what Parse accepts: %v", name, err)
		}
	}
	for _, r := range refusals {
		if !r.editor {
			continue
		}
		if schema.Validate(decode(t, r.text)) == nil {
			t.Errorf("%s: the schema accepts what Parse refuses", r.name)
		}
	}
	// And both know the same fields, which the schema describes.
	var doc struct {
		Defs struct {
			Tool struct {
				Properties map[string]struct {
					Description string                                  `json:"description"`
					Properties  map[string]struct{ Description string } `json:"properties"`
				} `json:"properties"`
			} `json:"tool"`
		} `json:"$defs"`
	}
	unmarshal(t, fileSchema(t), &doc)
	_, err = registry.Parse(
		[]byte(file(`{"no": 1, "name": "a.b", "idempotency": {"no": 1}, "hints": {"no": 1}, "retry": {"no": 1}}`)))
	for name, p := range doc.Defs.Tool.Properties {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("Parse does not know the field %s", name)
		}
		if p.Description == "" {
			t.Errorf("the field %s has no description", name)
		}
		for inner, p := range p.Properties {
			if name != "input_schema" && !strings.Contains(err.Error(), inner) {
				t.Errorf("Parse does not know the field %s.%s", name, inner)
			}
			if p.Description == "" {
				t.Errorf("the field %s.%s has no description", name, inner)
			}
		}
	}
	for _, known := range strings.Split("name, description, input_schema, output_schema, permissions, calls, frontends, "+
		"hints, idempotency, timeout_ms, receipt_fields, retry", ", ") {
		if _, ok := doc.Defs.Tool.Properties[known]; !ok {
			t.Errorf("the schema does not know the field %s", known)
		}
	}
}
