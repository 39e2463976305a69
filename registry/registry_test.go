package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/registry"
)

// fields are those of one tool, as JSON. An empty value leaves the field out.
type fields map[string]string

// entry is a right tool, changed.
func entry(change fields) string {
	all := fields{
		"name":          `"leads.create"`,
		"input_schema":  `{"type": "object", "required": ["phone"], "properties": {"phone": {"type": "string"}}}`,
		"output_schema": `{}`,
		"idempotency":   `{"mode": "none"}`,
		"timeout_ms":    `15000`,
	}
	maps.Copy(all, change)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] != "" {
			parts = append(parts, fmt.Sprintf("%q: %s", name, all[name]))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func file(entries ...string) string {
	return `{"version": "1.0.0", "tools": [` + strings.Join(entries, ", ") + `]}`
}

func parse(t testing.TB, text string) *registry.Registry {
	t.Helper()
	r, err := registry.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return r
}

// toolWith returns a tool with that input_schema and output_schema.
func toolWith(t testing.TB, schema string) *registry.Tool {
	t.Helper()
	tool, ok := parse(t, file(entry(fields{"input_schema": schema, "output_schema": schema}))).Tool("leads.create")
	if !ok {
		t.Fatal("the tool is not in the registry")
	}
	return tool
}

func TestParseReadsEveryFieldOfATool(t *testing.T) {
	r := parse(t, file(entry(fields{
		"name":           `"integrations.google_drive.search"`,
		"description":    `"Searches files."`,
		"permissions":    `["read:db", "net:http"]`,
		"idempotency":    `{"mode": "keyed", "key_field": "phone"}`,
		"timeout_ms":     `86400000`,
		"receipt_fields": `["result.lead_id", "effects.db_writes", "result", "result.items[0].id"]`,
		"retry":          `{"max_attempts": 20, "backoff_ms": 3600000}`,
		"x-owner":        `"sales"`,
	})))
	if r.Version != "1.0.0" {
		t.Errorf("Version = %q", r.Version)
	}
	got, ok := r.Tool("integrations.google_drive.search")
	if !ok {
		t.Fatal("the tool is not found by its name")
	}
	type public struct {
		Name, Description string
		Permissions       []string
		Idempotency       registry.Idempotency
		Timeout           time.Duration
		ReceiptFields     []string
		Retry             registry.Retry
	}
	want := public{
		"integrations.google_drive.search", "Searches files.",
		[]string{"read:db", "net:http"},
		registry.Idempotency{Mode: registry.Keyed, KeyField: "phone", OnOtherInput: registry.Replay},
		24 * time.Hour,
		[]string{"result.lead_id", "effects.db_writes", "result", "result.items[0].id"},
		registry.Retry{MaxAttempts: 20, Backoff: time.Hour, Most: 15 * time.Minute},
	}
	if diff := cmp.Diff(want, public{got.Name, got.Description, got.Permissions, got.Idempotency, got.Timeout,
		got.ReceiptFields, got.Retry(true)}); diff != "" {
		t.Error(diff)
	}
}

func TestParseFillsInDefaults(t *testing.T) {
	tool := toolWith(t, `{}`)
	for remote, want := range map[bool]registry.Retry{
		false: {MaxAttempts: 3, Backoff: 500 * time.Millisecond, Most: 15 * time.Minute},
		true:  {MaxAttempts: 12, Backoff: time.Second, Most: time.Minute},
	} {
		if got := tool.Retry(remote); got != want {
			t.Errorf("remote %t: %+v, want %+v", remote, got, want)
		}
	}
	own, _ := parse(t, file(entry(fields{"retry": `{"max_attempts": 5}`}))).Tool("leads.create")
	if got, want := own.Retry(true), (registry.Retry{MaxAttempts: 5, Backoff: 500 * time.Millisecond,
		Most: 15 * time.Minute}); got != want {
		t.Errorf("an entry with its own retry: %+v, want %+v", got, want)
	}
	if len(tool.Permissions)+len(tool.ReceiptFields)+len(tool.Description) > 0 {
		t.Errorf("fields that were left out are not empty: %+v", tool)
	}
}

func TestToolsGiveOutTheirSchemas(t *testing.T) {
	const draft7 = `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"b": {"maximum": 1.50, "pattern": "^<&>$"}, "a": true}}`
	tool, _ := parse(t, file(entry(fields{"input_schema": draft7, "output_schema": `false`}))).Tool("leads.create")
	want := `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":true,"b":{"maximum":1.5,"pattern":"^<&>$"}},"type":"object"}`
	if got := string(tool.InputSchema); got != want {
		t.Errorf("InputSchema = %s, want %s", got, want)
	}
	if got := string(tool.OutputSchema); got != "false" {
		t.Errorf("OutputSchema = %s, want false", got)
	}
	// They are the same after the registry was recorded and read again.
	again, _ := parse(t, file(entry(fields{"input_schema": string(tool.InputSchema), "output_schema": "false"}))).
		Tool("leads.create")
	if diff := cmp.Diff(tool.InputSchema, again.InputSchema); diff != "" {
		t.Error(diff)
	}
}

func TestToolsAreInTheOrderOfTheFile(t *testing.T) {
	r := parse(t, file(entry(fields{"name": `"z.last"`}), entry(fields{"name": `"a.first"`}),
		entry(fields{"name": `"m.middle"`})))
	if diff := cmp.Diff([]string{"z.last", "a.first", "m.middle", "wait.answer", "wait.approval"},
		namesOf(r)); diff != "" {
		t.Error(diff)
	}
	r.Tools()[0] = nil
	if r.Tools()[0] == nil {
		t.Error("a caller can change the registry's list")
	}
	if _, ok := r.Tool("Z.last"); ok {
		t.Error("a tool is found by another name than its own")
	}
}

func TestTheChoicesOfAQuestionAreTextsThatAPersonCanRead(t *testing.T) {
	r := parse(t, `{"version": "1", "include": ["wait.event"], "tools": []}`)
	for _, name := range []string{"wait.answer", "wait.event"} {
		tool, _ := r.Tool(name)
		for choice, fits := range map[string]bool{
			"yes \u2713\ufe0f": true, strings.Repeat("x", 500): true, strings.Repeat("x", 501): false, "a\nb": false,
			"\u009b2J": false,
		} {
			field, _ := json.Marshal(map[string]any{"type": "string", "enum": []string{choice}})
			for _, schema := range []string{string(field), fmt.Sprintf(`{"type": "object", "properties": {"f": %s}}`, field)} {
				input := fmt.Sprintf(`{"text": "Which?", "schema": %s}`, schema)
				faults, _ := tool.CheckInput(json.RawMessage(input), true)
				if (len(faults) == 0) != fits {
					t.Errorf("%s with %.60s: got %v", name, schema, faults)
				}
			}
		}
	}
}

func TestRegistryWithoutToolsIsRight(t *testing.T) {
	if got := len(parse(t, `{"version": "0", "tools": []}`).Tools()); got != len(registry.Always) {
		t.Errorf("%d tools", got)
	}
}

func TestHashIsThatOfTheContents(t *testing.T) {
	original := resolve(t, `{"version": "1.0.0", "owner": "a\u0062c/ä", "tools": [`+entry(fields{
		"input_schema": `{"properties": {"n": {"maximum": 1000, "multipleOf": 0.5}}}`}, // not <, > nor &
	)+`]}`)
	for name, text := range map[string]string{
		"white space":      strings.ReplaceAll(string(original.JSON()), `,`, " ,\n\t"),
		"$schema":          `{"$schema": "./registry.schema.json", ` + string(original.JSON())[1:],
		"byte order mark":  "\ufeff" + string(original.JSON()),
		"escapes":          strings.Replace(string(original.JSON()), `abc/ä`, `\u0061bc\/\u00e4`, 1),
		"ways of a number": strings.NewReplacer(`:1000`, `:1.0e3`, `:0.5`, `:5.0E-1`).Replace(string(original.JSON())),
		"order of keys": `{"tools": ` + regexp.MustCompile(`\[.*\]`).FindString(string(original.JSON())) +
			`, "version": "1.0.0", "owner": "abc/ä"}`,
	} {
		if got := parse(t, text).SHA256(); got != original.SHA256() {
			t.Errorf("%s changes the hash", name)
		}
	}
	for name, text := range map[string]string{
		"a version":                   strings.Replace(string(original.JSON()), `1.0.0`, `1.0.1`, 1),
		"a field that we do not read": strings.Replace(string(original.JSON()), `abc`, `abd`, 1),
		"a timeout":                   strings.Replace(string(original.JSON()), `15000`, `15001`, 1),
		"a $schema inside": strings.Replace(string(original.JSON()), `"input_schema":{`,
			`"input_schema":{"$schema":"http://json-schema.org/draft-07/schema#",`, 1),
	} {
		if text == string(original.JSON()) {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if got := parse(t, text).SHA256(); got == original.SHA256() {
			t.Errorf("%s does not change the hash", name)
		}
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(original.SHA256()) {
		t.Errorf("SHA256 = %q", original.SHA256())
	}
}

func TestCanonicalFormOfTheLongestNumbersIsRead(t *testing.T) {
	long := strings.Repeat("9", 399) // and one more after the point
	r := parse(t, `{"version": "1", "tools": [], "x": [1e400, -1e-400, `+long+`.9e400, -0.`+long+`e-400]}`)
	if again, err := registry.ParseRecorded(r.JSON()); err != nil || again.SHA256() != r.SHA256() {
		t.Errorf("it is another registry: %v", err)
	}
}

// anyJSON draws a value that a registry may hold under a key of its own.
func anyJSON(depth int) *rapid.Generator[any] {
	leaf := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.StringMatching(`(\PC|\t|\n|[\x{2028}\x{fffd}"\\<>&]){0,20}`).AsAny(),
		rapid.Map(rapid.Float64(), func(f float64) any { return f }),
		rapid.Map(rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?`),
			func(s string) any { return json.Number(s) }),
	}
	if depth == 0 {
		return rapid.OneOf(leaf...)
	}
	return rapid.OneOf(append(leaf,
		rapid.SliceOfN(anyJSON(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.StringN(0, 8, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }),
			anyJSON(depth-1), 0, 4).AsAny(),
	)...)
}

func TestCanonicalFormParsesToTheSameRegistry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		note := anyJSON(3).Draw(t, "note")
		indent := rapid.StringMatching(`[ \t]{0,3}`).Draw(t, "indent")
		doc := map[string]any{
			"version": "1",
			"note":    note,
			"tools": []any{map[string]any{
				"name": "a.b", "input_schema": map[string]any{"default": note}, "output_schema": true,
				"idempotency": map[string]any{"mode": "none"}, "timeout_ms": 1, "x-note": note,
			}},
		}
		text, err := json.MarshalIndent(doc, "", indent)
		if err != nil {
			t.Skip("not JSON")
		}
		first, err := registry.Parse(text)
		if err != nil {
			t.Fatalf("Parse(%s): %v", text, err)
		}
		second, err := registry.ParseRecorded(first.JSON())
		if err != nil {
			t.Fatalf("ParseRecorded(JSON()): %v", err)
		}
		if first.SHA256() != second.SHA256() || string(first.JSON()) != string(second.JSON()) {
			t.Fatalf("the canonical form is not stable:\n%s\n%s", first.JSON(), second.JSON())
		}
		if changes := registry.Compare(first, second); len(changes) > 0 {
			t.Fatalf("Compare finds changes: %v", changes)
		}
		// encoding/json is the measure of what the text says.
		var want, got any
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(first.JSON(), &got); err != nil {
			t.Fatal(err)
		}
		resolved := got.(map[string]any) // has two tools more, and says so
		if diff := cmp.Diff([]any{"wait.answer", "wait.approval"}, resolved["added"]); diff != "" {
			t.Fatal(diff)
		}
		delete(resolved, "added")
		resolved["tools"] = resolved["tools"].([]any)[:1]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestReadFile(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "tools.registry.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := registry.ReadFile(write(file(entry(nil)))); err != nil {
		t.Errorf("a right file: %v", err)
	}
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"missing": {filepath.Join(t.TempDir(), "none.json"),
			[]string{"none.json", "there is no registry", "TOOLS_REGISTRY"}},
		"a folder": {t.TempDir(), []string{"cannot read the registry"}},
		"broken JSON": {write("{\n  \"version\": \"1\",\n  \"tools\": [}\n"),
			[]string{"tools.registry.json is invalid", "line 3, column 13"}},
		"cut off": {write("{\n  \"version\": \"1\""), []string{"line 2, column 16", "unexpected end of JSON input"}},
		"empty":   {write(""), []string{"unexpected end of JSON input"}},
		"wrong":   {write(`{"tools": []}`), []string{"tools.registry.json is invalid", "version: is missing"}},
	} {
		_, err := registry.ReadFile(c.path)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error lacks %q: %v", name, want, err)
			}
		}
	}
	var invalid *defects.InvalidError
	if _, err := registry.ReadFile(write(`{`)); !errors.As(err, &invalid) {
		t.Errorf("the error of a broken file is no *defects.InvalidError: %v", err)
	}
}

func TestThousandToolsAreParsed(t *testing.T) {
	var entries []string
	for i := range 1000 {
		entries = append(entries, entry(fields{
			"name":          fmt.Sprintf(`"domain.tool_%d"`, i),
			"input_schema":  leadSchema,
			"output_schema": `{"type": "object", "required": ["lead_id"], "properties": {"lead_id": {"type": "string"}}}`,
		}))
	}
	text := file(entries...)
	if got := len(parse(t, text).Tools()); got != 1000+len(registry.Always) {
		t.Errorf("%d tools", got)
	}
}

func TestAToolIsClosedToSignedInUsersUnlessItOnlyUsesTheDatabase(t *testing.T) {
	for _, c := range []struct {
		permissions, frontends, why string // why it is closed; empty for an open one
	}{
		{``, ``, ""},
		{`[]`, ``, ""},
		{`["read:db"]`, ``, ""},
		{`["write:db", "read:db"]`, ``, ""},
		{`["write:db", "send:sms"]`, ``, "needs the permission send:sms"},
		{`["net:http", "send:sms"]`, ``, "needs the permission net:http and send:sms"},
		{`["read:files"]`, ``, "needs the permission read:files"},
		{`["net:http"]`, `true`, ""},
		{`["read:db"]`, `false`, `has "frontends": false in the registry`},
	} {
		tool, _ := parse(t, file(entry(fields{"permissions": c.permissions, "frontends": c.frontends}))).Tool("leads.create")
		if why := tool.ClosedBecause(); why != c.why || tool.Frontends != (c.why == "") {
			t.Errorf("%s %s: open %v, %q; want %q", c.permissions, c.frontends, tool.Frontends, why, c.why)
		}
	}
}
