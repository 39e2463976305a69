package registry_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// poison is what has broken JSON libraries, databases and validators.
var poison = []string{
	``, ` `, `{}`, `{`, `[]`, `null`, `{"a":}`, `{"a":1,}`, `{} {}`, `{"a":01}`, `{"a":-}`, `{"a":.5}`, `{"a":1e}`,
	`{"a":+1}`, "\x00", "\ufeff{}",
	`{"a":1e400}`, `{"a":1e10000000}`, `{"a":-1e-10000000}`, `{"a":1e99999999999999999999}`, `{"a":0.1e-400}`,
	`{"a":-0.0}`, `{"a":123456789012345678901234567890}`,
	`{"a":"\u0000"}`, `{"\u0000":1}`, `{"a":"\\u0000"}`, `{"a":"\ud800"}`, `{"a":"\ud800\ud800"}`, `{"a":"\ud83d\ude00"}`,
	`{"a":"\u12"}`, `{"a":"\`,
	"{\"a\":\"\xff\"}", "{\"\xc3\x28\":1}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\n\"}", "{\"a\":\"\u2028\"}",
	`{"a":1,"a":"x"}`, `{"a":[1,1,1.0,10e-1]}`, `{"c":{"c":{"c":{"a":3}}}}`, `{"c":[{"c":[]}]}`,
	`{"due":"2026-02-30T25:61:61Z"}`, `{"due":"2016-12-31T23:59:60Z"}`,
	`{"mail":"a@b@c","uri":"http://[::1","re":"(((","ip":"1.2.3.4.5","host":"-a-"}`,
	`{"kind":"x","x~1y":{},"x/y":1,"%2F":2,"":3}`,
	`{"name":"Ann","phone":"+61400000000","suburb":"Fitzroy"}`, `{"\u0000":"\u0000"}`, "{\"\xff\":\"\xff\"}",
	`{"u":[[1],[1],{"a":1},{"a":1.0}]}`,
}

func fuzzTools(t testing.TB) []*registry.Tool {
	var entries []string
	for i, schema := range []string{
		`{}`,
		leadSchema,
		`{"properties": {"c": {"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}, "a": {"type": ["string", "null"]}}, "additionalProperties": false}`,
		`{"properties": {"a": {"multipleOf": 0.01, "minimum": -1e300, "exclusiveMaximum": 1e300}, "u": {"uniqueItems": true, "maxItems": 3, "contains": {"type": "object"}}}, "minProperties": 1}`,
		`{"properties": {"due": {"format": "date-time"}, "mail": {"format": "email"}, "uri": {"format": "uri"}, "re": {"format": "regex"}, "ip": {"format": "ipv4"}, "host": {"format": "hostname"}},
			"propertyNames": {"maxLength": 4}, "patternProperties": {"^x": {"not": {"type": "object"}}}, "unevaluatedProperties": false}`,
		`{"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true, "enum": [1, 2, "x"]}}, "dependencies": {"a": ["b"], "b": {"required": ["c"]}}}`,
		`{"anyOf": [{"properties": {"c": {"$ref": "#"}}, "required": ["c"]}, {"properties": {"c": {"$ref": "#"}}, "required": ["a"]}, {"type": "string"}, {"items": {"$ref": "#"}}]}`,
		`{"if": {"required": ["kind"]}, "then": {"required": ["a", "b"]}, "else": false, "oneOf": [{}, {"const": {}}]}`,
	} {
		entries = append(entries, entry(fields{"name": `"fuzz.t` + string(rune('0'+i)) + `"`, "input_schema": schema,
			"output_schema": schema}))
	}
	return parse(t, file(entries...)).Tools()
}

func FuzzValidate(f *testing.F) {
	for _, doc := range poison {
		f.Add([]byte(doc))
	}
	f.Add([]byte(strings.Repeat(`{"c":`, 300)))
	f.Add([]byte(strings.Repeat(`{"c":[`, 99) + strings.Repeat(`]}`, 99)))
	f.Add([]byte(`{"a":1` + strings.Repeat("0", 500) + `}`))
	f.Add([]byte(`{"u":[` + strings.Repeat("1,", 300) + `1]}`))
	tools := fuzzTools(f)
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, tool := range tools {
			input, output := tool.ValidateInput(doc), tool.ValidateOutput(doc)
			checkFaults(t, input)
			checkFaults(t, output)
			if diff := cmp.Diff(output, tool.ValidateOutput(doc)); diff != "" {
				t.Errorf("%s: twice the same document, and other faults: %s", tool.Name, diff)
			}
			if len(output) > 0 {
				continue
			}
			// What is accepted is stored, so encoding/json and Postgres must be able to read it.
			var v any
			if !json.Valid(doc) {
				t.Fatalf("%s accepted what is not JSON", tool.Name)
			}
			unmarshal(t, doc, &v)
			if !storable(v) || !utf8.Valid(doc) {
				t.Errorf("%s accepted what jsonb refuses", tool.Name)
			}
			if _, object := v.(map[string]any); !object && len(input) == 0 {
				t.Errorf("%s accepted an input that is no object", tool.Name)
			}
		}
		// The first tool accepts everything that has no poison in it.
		var v any
		if json.Unmarshal(doc, &v) == nil && harmless(doc) && len(tools[0].ValidateOutput(doc)) > 0 {
			t.Errorf("harmless JSON was refused: %v", tools[0].ValidateOutput(doc))
		}
		for _, tool := range tools {
			if steps, most := tool.Steps(doc); steps > most && len(tool.ValidateOutput(doc)) != 1 {
				t.Errorf("%s: a document that costs %d steps was checked, and %d are allowed", tool.Name, steps, most)
			}
		}
	})
}

func checkFaults(t *testing.T, faults []receipts.Fault) {
	t.Helper()
	if len(faults) > 51 {
		t.Errorf("%d faults", len(faults))
	}
	for _, f := range faults {
		if f.Keyword == "schema" && strings.Contains(f.Message, "failed") {
			t.Errorf("the library panicked: %+v", f)
		}
		if f.Keyword == "" || f.Message == "" || utf8.RuneCountInString(f.Message) > 300 ||
			utf8.RuneCountInString(f.Path) > 500 {
			t.Errorf("a fault out of form: %+v", f)
		}
		// Faults are stored on the receipt.
		if !utf8.ValidString(f.Path+f.Message) || strings.Contains(f.Path+f.Message, "\x00") {
			t.Errorf("a fault that jsonb refuses: %+v", f)
		}
	}
}

func storable(v any) bool {
	switch v := v.(type) {
	case string:
		return !strings.Contains(v, "\x00")
	case []any:
		for _, item := range v {
			if !storable(item) {
				return false
			}
		}
	case map[string]any:
		for key, item := range v {
			if !storable(key) || !storable(item) {
				return false
			}
		}
	}
	return true
}

// harmless is a rough rule: short text without what the guards look for.
func harmless(doc []byte) bool {
	return len(doc) < 200 && utf8.Valid(doc) && !strings.ContainsAny(string(doc), `\eE`)
}

// FuzzParse holds the decoder against encoding/json: what both read must be the same.
func FuzzParse(f *testing.F) {
	for _, doc := range poison {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var want any
		standard := json.Unmarshal(doc, &want)
		r, err := registry.Parse([]byte(`{"version": "1", "tools": [], "doc": ` + string(doc) + `}`))
		if err != nil {
			return
		}
		if standard != nil {
			// Text such as 1, "a": 2 is not a value, and fits into the object all the same.
			if !json.Valid([]byte(`{"doc": ` + string(doc) + `}`)) {
				t.Fatalf("Parse accepted what is not JSON: %v", standard)
			}
			return
		}
		var got struct{ Doc any }
		if err := json.Unmarshal(r.JSON(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Doc); diff != "" {
			t.Fatal(diff)
		}
	})
}
