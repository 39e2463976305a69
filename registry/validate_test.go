package registry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/receipts"
)

// leadSchema is that of leads.create.
const leadSchema = `{
	"type": "object", "additionalProperties": false, "required": ["name", "phone", "suburb"],
	"properties": {
		"name": {"type": "string", "minLength": 1, "maxLength": 200},
		"phone": {"type": "string", "minLength": 1},
		"suburb": {"type": "string"},
		"email": {"type": "string", "format": "email"},
		"source": {"type": "string", "enum": ["gmb", "google_ads", "meta", "referral", "repeat", "other"]},
		"notes": {"type": "string"}
	}
}`

func decode(t testing.TB, text string) any {
	t.Helper()
	var v any
	unmarshal(t, []byte(text), &v)
	return v
}

func unmarshal(t testing.TB, text []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		t.Fatal(err)
	}
}

func TestRightInputHasNoFaults(t *testing.T) {
	tool := toolWith(t, leadSchema)
	if faults := tool.ValidateInput(json.RawMessage(
		` {"name": "Ann", "phone": "1", "suburb": "Fitzroy", "email": "ann@example.com", "source": "gmb"} `)); faults != nil {
		t.Error(faults)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, schema, doc string
		want              []receipts.Fault
	}{
		{"each missing property", leadSchema, `{"phone": "1"}`, []receipts.Fault{
			{Path: "/name", Keyword: "required", Message: "name is required"},
			{Path: "/suburb", Keyword: "required", Message: "suburb is required"},
		}},
		{"each unexpected property", leadSchema,
			`{"name": "a", "phone": "1", "suburb": "", "Sourse": "gmb", "a/b ~'\"c": 1, "zzz": {}}`, []receipts.Fault{
				{Path: "/Sourse", Keyword: "additionalProperties", Message: "Sourse is an unknown property: did you mean source?"},
				{Path: "/a~1b ~0'\"c", Keyword: "additionalProperties",
					Message: `"a/b ~'\"c" is an unknown property: leave it out`},
				{Path: "/zzz", Keyword: "additionalProperties", Message: "zzz is an unknown property: leave it out"},
			}},
		{"all of one document", leadSchema, `{"name": "", "phone": 3, "email": "x", "source": "tv", "more": 1}`,
			[]receipts.Fault{
				{Path: "/email", Keyword: "format", Message: "email is not a valid email address, such as ann@example.com"},
				{Path: "/more", Keyword: "additionalProperties", Message: "more is an unknown property: leave it out"},
				{Path: "/name", Keyword: "minLength", Message: "name is too short: its length is 0 and must be at least 1"},
				{Path: "/phone", Keyword: "type", Message: "phone must be a string but is a number"},
				{Path: "/source", Keyword: "enum", Message: "source must be one of gmb, google_ads, meta, referral, repeat, other"},
				{Path: "/suburb", Keyword: "required", Message: "suburb is required"},
			}},
		{"inside lists and objects",
			`{"properties": {"refs": {"items": {"required": ["id"], "properties": {"type": {"type": ["string", "null"]}}}}}}`,
			`{"refs": [{"id": 1}, {"type": 1}, 0, {"id": 1, "type": []}]}`, []receipts.Fault{
				{Path: "/refs/1/id", Keyword: "required", Message: "refs[1].id is required"},
				{Path: "/refs/1/type", Keyword: "type", Message: "refs[1].type must be a string or null but is a number"},
				{Path: "/refs/3/type", Keyword: "type", Message: "refs[3].type must be a string or null but is a list"},
			}},
		{"in the order of the document", `{"properties": {"a": {"items": {"type": "string"}}}}`,
			`{"a": [` + strings.Repeat(`"", `, 9) + `1, 2, "", 3]}`, []receipts.Fault{
				{Path: "/a/9", Keyword: "type", Message: "a[9] must be a string but is a number"},
				{Path: "/a/10", Keyword: "type", Message: "a[10] must be a string but is a number"},
				{Path: "/a/12", Keyword: "type", Message: "a[12] must be a string but is a number"},
			}},
		{"through a reference",
			`{"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"maxLength": 3, "pattern": "^b+$"}}}`, `{"a": "aaaa"}`,
			[]receipts.Fault{
				{Path: "/a", Keyword: "maxLength", Message: "a is too long: its length is 4 and must be at most 3"},
				{Path: "/a", Keyword: "pattern", Message: `a does not match the pattern "^b+$"`},
			}},
		{"of numbers", `{"properties": {"a": {"minimum": 1}, "b": {"exclusiveMaximum": 10}, "c": {"multipleOf": 0.5}, "d": {"type": "integer"}, "e": {"maximum": 0.10}, "f": {"exclusiveMinimum": 1e2}}}`,
			`{"a": 0, "b": 10, "c": 0.7, "d": 1.5, "e": 1, "f": 1}`, []receipts.Fault{
				{Path: "/a", Keyword: "minimum", Message: "a must be at least 1"},
				{Path: "/b", Keyword: "exclusiveMaximum", Message: "b must be less than 10"},
				{Path: "/c", Keyword: "multipleOf", Message: "c must be a multiple of 0.5"},
				{Path: "/d", Keyword: "type", Message: "d must be a whole number but is 1.5"},
				{Path: "/e", Keyword: "maximum", Message: "e must be at most 0.1"},
				{Path: "/f", Keyword: "exclusiveMinimum", Message: "f must be greater than 100"},
			}},
		{"of draft 4's limits",
			`{"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}}}`, `{"a": 1}`, []receipts.Fault{
				{Path: "/a", Keyword: "exclusiveMinimum", Message: "a must be greater than 1"}}},
		{"of sizes", `{"properties": {"a": {"minItems": 2}, "b": {"maxItems": 1}, "c": {"minProperties": 1}, "d": {"maxProperties": 1}, "e": {"uniqueItems": true}, "f": {"minLength": 2}}}`,
			`{"a": [], "b": [1, 2], "c": {}, "d": {"x": 1, "y": 2}, "e": [1, 1.0], "f": "ä"}`, []receipts.Fault{
				{Path: "/a", Keyword: "minItems", Message: "a has too few items: the number is 0 and must be at least 2"},
				{Path: "/b", Keyword: "maxItems", Message: "b has too many items: the number is 2 and must be at most 1"},
				{Path: "/c", Keyword: "minProperties", Message: "c has too few properties: the number is 0 and must be at least 1"},
				{Path: "/d", Keyword: "maxProperties", Message: "d has too many properties: the number is 2 and must be at most 1"},
				{Path: "/e", Keyword: "uniqueItems", Message: "e must not contain the same item twice"},
				{Path: "/f", Keyword: "minLength", Message: "f is too short: its length is 1 and must be at least 2"},
			}},
		{"of constants", `{"properties": {"a": {"const": "x"}, "b": {"const": {"y": [1]}}, "c": {"enum": [null, 1, "a b"]}}}`,
			`{"a": 1, "b": 1, "c": 2}`, []receipts.Fault{
				{Path: "/a", Keyword: "const", Message: "a must be x"},
				{Path: "/b", Keyword: "const", Message: `b must be {"y":[1]}`},
				{Path: "/c", Keyword: "enum", Message: `c must be one of null, 1, "a b"`}}},
		{"of alternatives",
			`{"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}, "b": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}`,
			`{"a": "soon", "b": 3}`, []receipts.Fault{
				{Path: "/a", Keyword: "format", Message: "a is not a valid date-time, such as 2026-01-31T09:30:00Z (alternative " +
					"2 of anyOf)"},
				{Path: "/a", Keyword: "type", Message: "a must be null but is a string (alternative 1 of anyOf)"},
				{Path: "/b", Keyword: "oneOf", Message: "b matches more than one alternative of oneOf and must match exactly one"},
			}},
		{"of alternatives that are properties", `{"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]}`,
			`{}`, []receipts.Fault{
				{Path: "/a", Keyword: "required", Message: "a is required, unless b or c is present"},
				{Path: "/b", Keyword: "required", Message: "b is required, unless a or c is present"},
				{Path: "/c", Keyword: "required", Message: "c is required, unless a or b is present"},
			}},
		{"of one property too many", `{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}`, `{"a": 1, "b": 1}`,
			[]receipts.Fault{
				{Path: "", Keyword: "oneOf", Message: "the output must have only one of a, b"}}},
		{"of patterns",
			`{"properties": {"a": {"pattern": "\\S"}, "b": {"pattern": "^[a-z]+$", "description": "A name, such as ada. It is shown."}}}`,
			`{"a": " ", "b": "Ada"}`, []receipts.Fault{
				{Path: "/a", Keyword: "pattern", Message: "a must not be blank"},
				{Path: "/b", Keyword: "pattern", Message: `b does not match the pattern "^[a-z]+$": A name, such as ada`},
			}},
		{"of conditions",
			`{"if": {"required": ["a"]}, "then": {"required": ["b"]}, "dependentRequired": {"a": ["c", "d"]}, "not": {"required": ["x"]}}`, `{"a": 1, "x": 1}`, []receipts.Fault{
				{Path: "", Keyword: "not", Message: `the output must not match {"required":["x"]}`},
				{Path: "/b", Keyword: "required", Message: "b is required"},
				{Path: "/c", Keyword: "dependentRequired", Message: "c is required when a is present"},
				{Path: "/d", Keyword: "dependentRequired", Message: "d is required when a is present"},
			}},
		{"of contains",
			`{"properties": {"a": {"contains": {"const": 1}}, "b": {"contains": {"const": 1}, "minContains": 2}, "c": {"contains": {"const": 1}, "maxContains": 1}}}`,
			`{"a": [2, 3], "b": [1, 2], "c": [1, 1]}`, []receipts.Fault{
				{Path: "/a", Keyword: "contains", Message: "a must contain an item that matches contains"},
				{Path: "/b", Keyword: "minContains", Message: "b has too few items that match contains: the number must be at " +
					"least 2"},
				{Path: "/c", Keyword: "maxContains", Message: "c has too many items that match contains: the number must be at " +
					"most 1"},
			}},
		{"of property names", `{"propertyNames": {"pattern": "^[a-z]+$"}}`, `{"ok": 1, "Not": 2}`, []receipts.Fault{
			{Path: "/Not", Keyword: "pattern", Message: `the property name Not does not match the pattern "^[a-z]+$"`}}},
		{"of what is never allowed",
			`{"properties": {"a": false, "b": {"prefixItems": [true], "items": false}}, "unevaluatedProperties": false}`,
			`{"a": 1, "b": [1, 2], "c": 3}`, []receipts.Fault{
				{Path: "/a", Keyword: "properties", Message: "a is not allowed here: leave it out"},
				{Path: "/b/1", Keyword: "items", Message: "b[1] is not allowed here: leave it out"},
				{Path: "/c", Keyword: "unevaluatedProperties", Message: "c is an unknown property: leave it out"},
			}},
		{"of properties called like keywords",
			`{"properties": {"minContains": {"minLength": 3, "pattern": "^x"}, "anyOf": {"properties": {"0": {"type": "string"}}}, "required": {"required": ["required"]}, "propertyNames": {"type": "null"}}}`,
			`{"minContains": "a", "anyOf": {"0": 1}, "required": {}, "propertyNames": 1}`, []receipts.Fault{
				{Path: "/anyOf/0", Keyword: "type", Message: `anyOf[0] must be a string but is a number`},
				{Path: "/minContains", Keyword: "minLength", Message: "minContains is too short: its length is 1 and must be at " +
					"least 3"},
				{Path: "/minContains", Keyword: "pattern", Message: `minContains does not match the pattern "^x"`},
				{Path: "/propertyNames", Keyword: "type", Message: "propertyNames must be null but is a number"},
				{Path: "/required/required", Keyword: "required", Message: "required.required is required"},
			}},
		{"with patterns of names",
			`{"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": false}`,
			`{"a": 1, "xyz": 1, "b": 1, "%41": 1}`, []receipts.Fault{
				{Path: "/%41", Keyword: "additionalProperties", Message: `"%41" is an unknown property: leave it out`},
				{Path: "/b", Keyword: "additionalProperties", Message: "b is an unknown property: leave it out"},
			}},
		{"of draft 7's contents",
			`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"contentEncoding": "base64"}, "b": {"contentMediaType": "application/json"}}}`,
			`{"a": "?", "b": "{"}`, []receipts.Fault{
				{Path: "/a", Keyword: "contentEncoding", Message: "a does not match contentEncoding base64"},
				{Path: "/b", Keyword: "contentMediaType", Message: `b does not match contentMediaType "application/json"`},
			}},
		{"of the whole", `{"type": "array"}`, `{}`, []receipts.Fault{{Path: "", Keyword: "type",
			Message: "the output must be a list but is an object"}}},
		{"of the whole, never allowed", `false`, `{}`, []receipts.Fault{{Path: "", Keyword: "schema",
			Message: "the output is not allowed here: leave it out"}}},
		{"of the top's items", `{"items": {"type": "string"}}`, `[1]`,
			[]receipts.Fault{{Path: "/0", Keyword: "type", Message: "the output[0] must be a string but is a number"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool, _ := parse(t, file(entry(fields{"output_schema": c.schema}))).Tool("leads.create")
			for range 5 { // maps are walked in another order each time
				if diff := cmp.Diff(c.want, tool.ValidateOutput(json.RawMessage(c.doc))); diff != "" {
					t.Fatal(diff)
				}
			}
		})
	}
}

func TestPoisonIsAFault(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for _, c := range []struct {
		name, doc     string
		path, keyword string
		message       string
	}{
		{"nothing", ``, "", "json", "unexpected end of JSON input"},
		{"white space", " \n", "", "json", "unexpected end of JSON input"},
		{"no value", `nul`, "", "json", "line 1, column 3: invalid character ' ' in literal null"},
		{"trailing comma", "{\n \"a\": 1,\n}", "", "json",
			"line 3, column 1: invalid character '}' looking for beginning of object key"},
		{"trailing data", `{} {}`, "", "json", "line 1, column 4: invalid character '{' after top-level value"},
		{"cut off", `{"a": "b`, "", "json", "unexpected end of JSON input"},
		{"leading zero", `{"a": 01}`, "", "json", "column 8"},
		{"no digits", `{"a": 1.}`, "", "json", "after decimal point in numeric literal"},
		{"in string literal", "{\"a\": \"\n\"}", "", "json", "in string literal"},
		{"bare NUL", "{\"a\": \"\x00\"}", "", "json", "in string literal"},
		{"wrong escape", `{"a": "\x"}`, "", "json", "in string escape code"},
		{"half an escape", `{"a": "\u12"}`, "", "json", "hexadecimal"},
		{"byte order mark", "\ufeff{}", "", "json", "looking for beginning of value"},
		{"NaN", `{"a": NaN}`, "", "json", "looking for beginning of value"},
		{"deep", deep(201), "", "depth", "more than 200 levels"},
		{"very deep", strings.Repeat("[", 100_000), "", "depth", "more than 200 levels"},
		{"large exponent", `{"a": [1e10000000]}`, "/a/0", "number", "exponent"},
		{"large negative exponent", `{"a": -1E-10000000}`, "/a", "number", "exponent"},
		{"exponent beyond integers", `{"a": 1e99999999999999999999}`, "/a", "number", "exponent"},
		{"many digits", `{"a": 1` + strings.Repeat("0", 400) + `}`, "/a", "number", "400 digits"},
		{"many decimals", `{"a": 0.` + strings.Repeat("1", 401) + `}`, "/a", "number", "400 digits"},
		{"NUL", `{"a": "x\u0000y"}`, "/a", "nul", "NUL"},
		{"NUL in a key", `{"b": {"x\u0000y": 1}}`, "/b", "nul", "a key of this value"},
		{"half a surrogate pair", `{"a": "\ud83d"}`, "/a", "unicode", "surrogate"},
		{"other half", `{"a": "\ude00x"}`, "/a", "unicode", "surrogate"},
		{"halves in the wrong order", `{"a": "\ude00\ud83d"}`, "/a", "unicode", "surrogate"},
		{"half and a letter", `{"a": "\ud83d\u0041"}`, "/a", "unicode", "surrogate"},
		{"no UTF-8", "{\"a\": \"\xff\"}", "/a", "unicode", "UTF-8"},
		{"no UTF-8 after an escape", "{\"a\": \"\\n\xc3\"}", "/a", "unicode", "UTF-8"},
		{"no UTF-8 in a key", "{\"\xff\": 1}", "", "unicode", "a key of this value"},
		{"large", `{"a": "` + strings.Repeat("x", 1<<20) + `"}`, "", "size", "may have at most 1048576"},
		{"many values", `{"a": [` + strings.Repeat("1,", 500_000) + `1]}`, "", "size", "too many values"},
		{"many values under a long key", `{"` + strings.Repeat("k", 500_000) + `": [` + strings.Repeat("1,", 200_000) + `1]}`,
			"", "size", "too long keys"},
		{"many large numbers", `{"a": [` + strings.Repeat("1e308,", 150_000) + `1]}`, "", "size", "numbers written out"},
		{"a number that no program can read", `{"a": [-1.8e308]}`, "/a/0", "number", "at most 1.7976931348623157e308"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool := toolWith(t, `{"properties": {"a": {"items": {"type": "string", "multipleOf": 0.1}}}}`)
			for what, faults := range map[string][]receipts.Fault{"input": tool.ValidateInput([]byte(c.doc)),
				"output": tool.ValidateOutput([]byte(c.doc))} {
				if len(faults) != 1 || faults[0].Path != c.path || faults[0].Keyword != c.keyword ||
					!strings.Contains(faults[0].Message, c.message) {
					t.Errorf("%s: %+v", what, faults)
				}
			}
		})
	}
}

func TestEveryPoisonedValueIsReported(t *testing.T) {
	got := toolWith(t, `{}`).ValidateInput([]byte(`{"a": ["\u0000", 1e999], "b\u0000": {"c": "\ud800"}, "d": 1}`))
	var paths []string
	for _, f := range got {
		paths = append(paths, f.Path+" "+f.Keyword)
	}
	if diff := cmp.Diff([]string{"/a/0 nul", "/a/1 number", " nul", "/b\ufffd/c unicode"}, paths); diff != "" {
		t.Error(diff)
	}
}

// What Postgres and the library can take must pass: a guard that refuses too much breaks tools.
func TestNoPoison(t *testing.T) {
	tool := toolWith(t, `{"additionalProperties": {"items": {"minimum": -1e400, "multipleOf": 1e-400}}}`)
	for name, doc := range map[string]string{
		"nested 200 levels": strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
		"400 digits": `{"a": [1` + strings.Repeat("0", 308) + `, 1.7976931348623157e308, 0.` +
			strings.Repeat("1", 399) + `, -1E+0, 1e-400, -0.0]}`,
		"an escaped backslash":   `{"a": "\\u0000"}`,
		"escapes":                `{"a": "\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00\uFFFD"}`,
		"text":                   "{\"ä\": \"😀\u2028\u007f\"}",
		"empty key":              `{"": {"": 1}}`,
		"the same key twice":     `{"a": 1, "a": 2}`,
		"a megabyte":             `{"a": "` + strings.Repeat("x", 1<<20-9) + `"}`,
		"a long list of numbers": `{"a": [` + strings.Repeat("0.123,", 150_000) + `1]}`,
		"white space":            " \t\r\n{ \"a\" : [ 1 , 2 ] } ",
	} {
		if faults := tool.ValidateInput([]byte(doc)); faults != nil {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

// jsonb keeps the last of two equal keys, so that is the one to check.
func TestLastOfTwoEqualKeysIsChecked(t *testing.T) {
	tool := toolWith(t, `{"properties": {"a": {"type": "string"}}}`)
	if faults := tool.ValidateInput([]byte(`{"a": 1, "a": "x"}`)); faults != nil {
		t.Error(faults)
	}
	if faults := tool.ValidateInput([]byte(`{"a": "x", "a": 1}`)); len(faults) != 1 {
		t.Error(faults)
	}
}

func TestInputIsAlwaysAnObject(t *testing.T) {
	tool := toolWith(t, `{}`)
	for doc, kind := range map[string]string{`null`: "null", `[]`: "a list", `"{}"`: "a string", `1`: "a number",
		`true`: "a boolean"} {
		want := []receipts.Fault{{Path: "", Keyword: "type", Message: "the input must be an object but is " + kind}}
		if diff := cmp.Diff(want, tool.ValidateInput([]byte(doc))); diff != "" {
			t.Error(diff)
		}
		if faults := tool.ValidateOutput([]byte(doc)); faults != nil {
			t.Errorf("an output may be anything: %v", faults)
		}
	}
}

func TestFaultsAreBounded(t *testing.T) {
	long := strings.Repeat("k", 5000)
	tool := toolWith(t, `{"properties": {"list": {"items": {"type": "string"}}, "o": {"additionalProperties": false}, "`+
		long+`": {"pattern": "^`+long+`$"},
		"e": {"enum": ["`+long+`", "b"]}, "f": {"format": "email"}}}`)
	secret := "s3cret" + strings.Repeat("!", 10_000)
	for name, c := range map[string]struct {
		doc   string
		count int
		last  string
	}{
		"51 faults":      {`{"list": [` + strings.Repeat("1,", 50) + `1]}`, 51, "more faults were left out: 1"},
		"50 faults":      {`{"list": [` + strings.Repeat("1,", 49) + `1]}`, 50, ""},
		"100,000 faults": {`{"list": [` + strings.Repeat("1,", 99_999) + `1]}`, 51, "more faults were left out: 99950"},
		"unexpected names": {`{"o": {` + strings.Join(numbered(`"p%d": 1`, 5000), ",") + `}}`, 51,
			"more faults were left out: 4950"},
		"poisoned values": {`{"list": [` + strings.Repeat(`"\u0000",`, 1000) + `1]}`, 51, "more faults were left out: 950"},
		"long names":      {`{"o": {"` + strings.Repeat(secret, 3) + `": 1}, "` + long + `": "x"}`, 2, ""},
		"long values": {`{"e": "` + secret + `", "f": "` + secret + `", "list": [` + strings.Repeat("[", 50) +
			strings.Repeat("]", 50) + `]}`, 3, ""},
	} {
		faults := tool.ValidateInput([]byte(c.doc))
		if len(faults) != c.count {
			t.Errorf("%s: %d faults, want %d", name, len(faults), c.count)
			continue
		}
		for i, f := range faults {
			if n := utf8.RuneCountInString(f.Message); n > 300 || n == 0 {
				t.Errorf("%s: a message of %d characters", name, n)
			}
			if utf8.RuneCountInString(f.Path) > 500 {
				t.Errorf("%s: a path of %d bytes", name, len(f.Path))
			}
			if name == "long values" && strings.Contains(f.Message, "s3cret") {
				t.Errorf("%s: the value is echoed: %s", name, f.Message)
			}
			if (f.Keyword == "more") != (c.last != "" && i == len(faults)-1) {
				t.Errorf("%s: fault %d is %+v", name, i, f)
			}
		}
		if last := faults[len(faults)-1]; c.last != "" && last.Message != c.last {
			t.Errorf("%s: it ends with %q, want %q", name, last.Message, c.last)
		}
	}
}

func numbered(format string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}

func TestFaultsReadAsJSON(t *testing.T) {
	got, err := json.Marshal(toolWith(t, leadSchema).ValidateInput([]byte(`{"phone": "1", "suburb": "x"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"path":"/name","keyword":"required","message":"name is required"}]`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRecursiveSchemaChecksDeepDocuments(t *testing.T) {
	tool := toolWith(t, `{"properties": {"c": {"$ref": "#"}, "n": {"type": "string"}}, "additionalProperties": false}`)
	doc := func(leaf string) string { return strings.Repeat(`{"c":`, 198) + leaf + strings.Repeat("}", 198) }
	if faults := tool.ValidateInput([]byte(doc(`{"n": "x"}`))); faults != nil {
		t.Error(faults)
	}
	faults := tool.ValidateInput([]byte(doc(`{"n": 1}`)))
	if len(faults) != 1 || faults[0].Path != strings.Repeat("/c", 198)+"/n" {
		t.Errorf("%+v", faults)
	}
}

// Each level of such a filter doubles what a validation does, and two of its alternatives hold filters.
func TestCostOfAlternativesThatRecurIsBounded(t *testing.T) {
	tool := toolWith(t, `{"$ref": "#/$defs/filter", "$defs": {"filter": {"anyOf": [
		{"required": ["and", "of"], "properties": {"and": {"const": true}, "of": {"items": {"$ref": "#/$defs/filter"}}}},
		{"required": ["or", "of"], "properties": {"or": {"const": true}, "of": {"items": {"$ref": "#/$defs/filter"}}}},
		{"required": ["field"], "properties": {"field": {"type": "string"}}}
	]}}}`)
	filter := func(levels int, leaf string) []byte {
		return []byte(strings.Repeat(`{"or": true, "of": [`, levels) + leaf + strings.Repeat("]}", levels))
	}
	if faults := tool.ValidateInput(filter(5, `{"field": "x"}, {"field": "y"}`)); faults != nil {
		t.Errorf("a small filter: %v", faults)
	}
	for _, doc := range [][]byte{filter(20, `{"field": "x"}`), filter(99, `{"field": "x"}`), filter(99, `{"field": 1}`)} {
		if faults := tool.ValidateInput(doc); len(faults) != 1 || faults[0].Keyword != "size" ||
			!strings.Contains(faults[0].Message, "nest it less") {
			t.Errorf("%v", faults)
		}
	}
	if faults := tool.ValidateInput(filter(1, `{"field": 1}`)); len(faults) == 0 || faults[0].Keyword == "size" {
		t.Errorf("after a document that cost too much, another: %v", faults)
	}
}

func TestLongListsPassThroughReferences(t *testing.T) {
	tool := toolWith(t,
		`{"properties": {"list": {"items": {"$ref": "#/$defs/point"}}}, "$defs": {"point": {"required": ["x", "y"], "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}}}, "n": {"type": "integer"}}}`)
	if faults := tool.ValidateInput([]byte(`{"list": [` + strings.Repeat(`{"x": 1, "y": 2}, `, 50_000) +
		`{"x": 1, "y": 2}]}`)); faults != nil {
		t.Errorf("%v", faults)
	}
}

func TestValidationFromManyGoroutines(t *testing.T) {
	tool := toolWith(t, leadSchema)
	recursive := toolWith(t, `{"properties": {"c": {"$ref": "#"}, "n": {"type": "string"}}}`)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 200 {
				if faults := tool.ValidateInput([]byte(`{"name": 1}`)); len(faults) != 3 {
					t.Errorf("%v", faults)
				}
				if faults := recursive.ValidateInput([]byte(`{"c": {"c": {"n": 1}}}`)); len(faults) != 1 {
					t.Errorf("%v", faults)
				}
			}
			tool.ValidateOutput([]byte(`{"name": "` + strings.Repeat("x", 100_000) + `"}`))
		})
	}
	group.Wait()
}

// A document that could cost too much is refused before it is checked, with references and without.
func TestWhatIsTooExpensiveToCheckIsRefusedUnchecked(t *testing.T) {
	list := func(item string, n int) string { return `{"list": [` + strings.Repeat(item+",", n-1) + item + `]}` }
	alternatives := func(format string) string { return `[` + strings.Join(numbered(format, 300), ",") + `]` }
	for name, c := range map[string]struct{ schema, small, large string }{
		"many alternatives": {`{"properties": {"list": {"items": {"anyOf": ` + alternatives(`{"required": ["a%d"]}`) + `}}}}`,
			list(`{"a7":1}`, 50), list(`{"b":1}`, 7000)},
		"alternatives of another type": {`{"properties": {"list": {"items": {"anyOf": ` +
			alternatives(`{"type": "string", "minLength": %d}`) + `}}}}`,
			list(`"x"`, 50), list(`1`, 30_000)},
		"alternatives for a long list": {`{"properties": {"list": {"oneOf": ` +
			alternatives(`{"minItems": %d, "maxItems": %[1]d, "items": {"type": "null"}}`) + `}}}`,
			list(`null`, 50), list(`1`, 30_000)},
		"alternatives by reference": {`{"properties": {"list": {"items": {"$ref": "#/$defs/a"}}}, "$defs": {"a": {"anyOf": ` +
			alternatives(`{"required": ["a%d"]}`) + `}}}`,
			list(`{"a7":1}`, 50), list(`{"b":1}`, 7000)},
		"unknown names": {`{"anyOf": ` + alternatives(`{"properties": {"y%d":{}}, "additionalProperties": false}`) + `}`,
			`{"y7": 1}`, `{` + strings.Join(numbered(`"n%d":1`, 5000), ",") + `}`},
		"a long pattern": {`{"properties": {"s": {"pattern": "^([ab]{0,200}c?){1,3}$"}}}`,
			`{"s": "abc"}`, `{"s": "` + strings.Repeat("ab", 500_000) + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			tool := toolWith(t, c.schema)
			if faults := tool.ValidateInput([]byte(c.small)); faults != nil {
				t.Errorf("a small one: %v", faults)
			}
			if faults := tool.ValidateInput([]byte(c.large)); len(faults) != 1 || faults[0].Keyword != "size" {
				t.Errorf("a large one: %v", faults)
			}
		})
	}
}

// A document that is expensive to check is left for later, unless the caller says that nothing else is checked at the
// same time. That is not a refusal.
func TestWhatIsExpensiveToCheckIsLeftUntilItIsAlone(t *testing.T) {
	list := func(item string, n int) string { return `{"list": [` + strings.Repeat(item+",", n-1) + item + `]}` }
	alternatives := `[` + strings.Join(numbered(`{"required": ["a%d"]}`, 30), ",") + `]`
	for name, c := range map[string]struct {
		schema, doc string
		left        bool
	}{
		"a small document":        {`{}`, `{"a": 1}`, false},
		"a small one with faults": {`{"required": ["b"]}`, `{"a": 1}`, false},
		"a large one":             {`{}`, `{"a": "` + strings.Repeat("x", 70_000) + `"}`, true},
		"one that takes long": {`{"properties": {"s": {"pattern": "^([ab]{0,200}c?){1,3}$"}}}`,
			`{"s": "` + strings.Repeat("b", 40_000) + `"}`, true},
		"one with many errors": {`{"properties": {"list": {"items": {"anyOf": ` + alternatives + `}}}}`,
			list(`{"a29":1}`, 3000), true},
		"a small dynamic one": {dynamicTree, list(`{"list": []}`, 10), false},
		"a deep dynamic one":  {dynamicTree, strings.Repeat(`{"list":[`, 90) + `{}` + strings.Repeat("]}", 90), true},
	} {
		t.Run(name, func(t *testing.T) {
			tool, _ := parse(t, file(entry(fields{"input_schema": c.schema, "output_schema": c.schema}))).Tool("leads.create")
			for what, check := range map[string]func(json.RawMessage, bool) ([]receipts.Fault, bool){
				"input": tool.CheckInput, "output": tool.CheckOutput} {
				faults, left := check([]byte(c.doc), false)
				if left != c.left {
					t.Errorf("%s: left is %t", what, left)
				}
				all, left := check([]byte(c.doc), true)
				if left || len(all) > 0 && all[0].Keyword == "size" {
					t.Errorf("%s, alone: left is %t, %v", what, left, all)
				}
				if diff := cmp.Diff(all, faults); !c.left && diff != "" {
					t.Errorf("%s: %s", what, diff)
				}
			}
		})
	}
}

const dynamicTree = `{"$dynamicAnchor": "node", "properties": {"list": {"items": {"$dynamicRef": "#node"}}}}`

// The library hashes [[],[]] and [[[]]] alike, and would compare all such items with one another.
func TestItemsAreComparedByReadingEachOnce(t *testing.T) {
	tool := toolWith(t,
		`{"properties": {"list": {"uniqueItems": true}, "sub": {"$ref": "#/$defs/set"}}, "$defs": {"set": {"items": {"uniqueItems": true}}}}`)
	if tool.LibraryComparesItems() {
		t.Error("the library compares items")
	}
	for doc, valid := range map[string]bool{
		`[1, 1.0]`: false, `[100, 1e2]`: false, `[0, -0.0]`: false, `[0.10, 1e-1]`: false,
		`[{"a":1,"b":2}, {"b":2.0,"a":1}]`: false, `["a","a"]`: false,
		`[[],[]]`: false, `[null, null]`: false,
		`[1, -1, 10, 0.1, true, false, null, "1", "", "true", [], {}, [[]], [[],[]], [[[]]], {"a": null}, ["a"], {"a": "b"}, ["a","b"], ["ab"]]`: true,
	} {
		for _, doc := range []string{`{"list": ` + doc + `}`, `{"sub": [` + doc + `]}`} {
			if faults := tool.ValidateOutput([]byte(doc)); valid != (faults == nil) || !valid &&
				faults[0].Keyword != "uniqueItems" {
				t.Errorf("%s: %v", doc, faults)
			}
		}
	}
}

func TestSchemasThatInviteExpensiveInputsAreNamed(t *testing.T) {
	many := strings.Join(numbered(`{"required": ["a%d"]}`, 60), ",")
	r := parse(t, file(entry(fields{"input_schema": `{"properties": {
		"open": {"items": {"anyOf": [` + many + `]}}, "bounded": {"maxItems": 10, "items": {"anyOf": [` + many + `]}},
		"filter": {"$ref": "#/$defs/f"}, "tree": {"$ref": "#/$defs/t"},
		"text": {"pattern": "^[ab]{0,900}c?[de]{0,900}$"}, "short": {"maxLength": 20, "pattern": "^[ab]{0,900}c?[de]{0,900}$"}},
		"$defs": {"f": {"anyOf": [{"items": {"$ref": "#/$defs/f"}}, {"properties": {"not": {"$ref": "#/$defs/f"}}}]},
			"t": {"anyOf": [{"items": {"$ref": "#/$defs/t"}}, {"type": "string"}]}}}`})))
	var got []string
	for _, w := range r.Warnings() {
		got = append(got, w.Part+" "+w.Field)
	}
	want := []string{"leads.create input_schema/$defs/f", "leads.create input_schema/properties/open",
		"leads.create input_schema/properties/text"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
