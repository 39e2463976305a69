package grounding

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// program returns a program from JSON. It fills in valid values that the test omits.
func program(t testing.TB, text string) *Program {
	t.Helper()
	p := &Program{Instructions: "Extract.", Classes: []Class{{Name: "token"}}}
	if err := json.Unmarshal([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// withAttributes returns the JSON of a program with one class that has a schema of attributes.
func withAttributes(schema string) string {
	return `{"classes":[{"name":"a","attributes":` + schema + `}]}`
}

func TestAFaultOfAProgramHasItsPlace(t *testing.T) {
	t.Parallel()
	deep := func(n int) string {
		return strings.Repeat(`{"type":"object","properties":{"x":`, n) + `{"type":"string"}` + strings.Repeat(`}}`, n)
	}
	wide := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"p%d":{"type":"string"}`, i)
		}
		return `{"type":"object","properties":{` + b.String()[1:] + `}}`
	}
	example := func(extraction string) string {
		return `{"classes":[{"name":"org"},{"name":"amount","attributes":{"type":"object","properties":{"value":{"type":"number"}},"required":["value"]}}],
			"examples":[{"text":"Acme paid 5.","extractions":[` + extraction + `]}]}`
	}
	for _, test := range []struct{ name, program, pointer, message string }{
		{"blank instructions", `{"instructions":" \n"}`, "/instructions", "is empty"},
		{"long instructions", `{"instructions":"` + strings.Repeat("ä", 20001) + `"}`, "/instructions",
			"has 20001 characters and may have at most 20000"},
		{"no classes", `{"classes":[]}`, "/classes", "has 0 classes"},
		{"a name", `{"classes":[{"name":"a"},{"name":"Org"}]}`, "/classes/1/name", "must begin with a small letter"},
		{"a name twice", `{"classes":[{"name":"a"},{"name":"a"}]}`, "/classes/1/name", "two classes of the name a"},
		{"a long description", `{"classes":[{"name":"a","description":"` + strings.Repeat("x", 2001) + `"}]}`,
			"/classes/0/description", "2001 characters"},
		{"a negative max", `{"classes":[{"name":"a","max":-1}]}`, "/classes/0/max", "at least 1"},
		{"a program of half a mebibyte", `{"instructions":"` + strings.Repeat("x", 512<<10) + `"}`, "",
			"and may have at most 262144"},

		{"no object", withAttributes(`[]`), "/classes/0/attributes", "is an object"},
		{"no type", withAttributes(`{"properties":{}}`), "/classes/0/attributes/type", `must be "object"`},
		{"a key twice", withAttributes(`{"type":"object","type":"object"}`), "/classes/0/attributes", "appears twice"},
		{"nullable", withAttributes(`{"type":"object","properties":{"a/b":{"type":"string","nullable":true}}}`),
			"/classes/0/attributes/properties/a~1b/nullable", `write "type": ["string", "null"]`},
		{"a reference", withAttributes(`{"type":"object","properties":{"a":{"$ref":"#"}}}`),
			"/classes/0/attributes/properties/a/$ref", "cannot be used"},
		{"a pattern", withAttributes(`{"type":"object","properties":{"a":{"type":"array","items":{"pattern":"x"}}}}`),
			"/classes/0/attributes/properties/a/items/pattern", "cannot be used"},
		{"a mistyped keyword", withAttributes(`{"type":"object","require":["a"]}`), "/classes/0/attributes/require",
			"did you mean required?"},
		{"an open object", withAttributes(`{"type":"object","additionalProperties":true}`),
			"/classes/0/attributes/additionalProperties", "must be false"},
		{"two types", withAttributes(`{"type":"object","properties":{"a":{"type":["string","number"]}}}`),
			"/classes/0/attributes/properties/a/type", `"null"`},
		{"an unknown type", withAttributes(`{"type":"object","properties":{"a":{"type":"text"}}}`),
			"/classes/0/attributes/properties/a/type", ""},
		{"an empty enum", withAttributes(`{"type":"object","properties":{"a":{"enum":[]}}}`),
			"/classes/0/attributes/properties/a/enum", "is empty"},
		{"properties that are a list", withAttributes(`{"type":"object","properties":[]}`),
			"/classes/0/attributes/properties", ""},
		{"a property that is true", withAttributes(`{"type":"object","properties":{"a":true}}`),
			"/classes/0/attributes/properties/a", "must be a schema"},
		{"a required property that is missing", withAttributes(`{"type":"object","required":["a"]}`),
			"/classes/0/attributes/required/0", "not among the properties"},
		{"six levels", withAttributes(deep(5)),
			"/classes/0/attributes/properties/x/properties/x/properties/x/properties/x/properties/x", "more than 5 levels"},
		{"101 properties", withAttributes(wide(101)), "/classes/0/attributes", "has 101 properties and may have at most 100"},

		{"an unknown attribute in verbatim",
			`{"classes":[{"name":"a","attributes":{"type":"object","properties":{"amount":{"type":"string"}}},"verbatim":["amounts"]}]}`,
			"/classes/0/verbatim/0", "amounts is not an attribute of the class: did you mean amount?"},
		{"an object in verbatim",
			`{"classes":[{"name":"a","attributes":{"type":"object","properties":{"amount":{"type":["object","null"]}}},"verbatim":["amount"]}]}`,
			"/classes/0/verbatim/0", "is an object"},
		{"verbatim without attributes", `{"classes":[{"name":"a","verbatim":["amount"]}]}`, "/classes/0/verbatim/0",
			"is not an attribute"},

		{"an example of no class", example(`{"class":"orgs","quote":"Acme"}`), "/examples/0/extractions/0/class",
			"did you mean org?"},
		{"an example's quote", example(`{"class":"org","quote":"acme"}`), "/examples/0/extractions/0/quote",
			"is not in the example's text"},
		{"an example that is inferred", example(`{"class":"org","quote":"Acme","inferred":true}`),
			"/examples/0/extractions/0/inferred", "does not allow"},
		{"an example's attributes",
			example(`{"class":"org","quote":"Acme"},{"class":"amount","quote":"5","attributes":{"value":"5"}}`),
			"/examples/0/extractions/1/attributes/value", "must be a number"},
		{"an example without its attributes", example(`{"class":"amount","quote":"5"}`),
			"/examples/0/extractions/0/attributes/value", "is required"},
		{"an example with attributes of no schema", example(`{"class":"org","quote":"Acme","attributes":{}}`),
			"/examples/0/extractions/0/attributes", "has no attributes"},
		{"an example's verbatim attribute", strings.Replace(invoice, `{"value":"5",`, `{"value":"6",`, 1),
			"/examples/0/extractions/1/attributes/value", "is not in the quote, and the class requires that"},
		{"21 examples", `{"examples":[` + strings.Repeat(`{"text":"x","extractions":[]},`, 20) +
			`{"text":"x","extractions":[]}]}`, "/examples", "has 21 examples"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := program(t, test.program).Compile()
			var fault *Fault
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			if fault.Pointer != test.pointer || !strings.Contains(fault.Message, test.message) {
				t.Errorf("got %s: %s\nwant %s: %s", fault.Pointer, fault.Message, test.pointer, test.message)
			}
		})
	}
}

// invoice is a program that uses every feature.
const invoice = `{"instructions":"Find who pays what.",
	"classes":[
		{"name":"org"},
		{"name":"person","description":"A human being."},
		{"name":"amount","verbatim":["value"],"max":9,"attributes":{"required":["value"],"type":"object","properties":{
			"value":{"type":"string"},"currency":{"type":["string","null"],"enum":["AUD","USD",null],"description":"ISO 4217"},
			"lines":{"type":"array","items":{"type":"object","properties":{"no":{"type":"integer"}},"additionalProperties":false}}}}},
		{"name":"payer","inferred":true}],
	"examples":[{"text":"Acme <b>paid</b> \"5 USD\".","extractions":[{"class":"org","quote":"Acme"},{"class":"amount","quote":"5 USD","attributes":{"value":"5","currency":"USD"}}]},
		{"text":"Nobody did.","extractions":[]}]}`

func TestAnAnswerHasASchema(t *testing.T) {
	t.Parallel()
	const closed = `"additionalProperties":false`
	item := func(classes, more, required string) string {
		return `{"type":"object","properties":{"class":{"type":"string","enum":[` + classes + `]},"quote":{"type":"string"}` +
			more + `},"required":["class","quote"` +
			required + `],` + closed + `}`
	}
	list := func(items string) string {
		return `{"type":"object","properties":{"extractions":{"type":"array","items":` + items +
			`}},"required":["extractions"],` + closed + `}`
	}
	amount := `{` + closed +
		`,"properties":{"currency":{"description":"ISO 4217","enum":["AUD","USD",null],"type":["string","null"]},` +
		`"lines":{"items":{` + closed +
		`,"properties":{"no":{"type":"integer"}},"type":"object"},"type":"array"},"value":{"type":"string"}},"required":["value"],"type":"object"}`
	for _, test := range []struct{ name, program, want string }{
		{"one class", `{}`, list(item(`"token"`, "", ""))},
		{"classes of one form", `{"classes":[{"name":"a","max":2},{"name":"b","description":"B"}]}`,
			list(item(`"a","b"`, "", ""))},
		{"all", invoice, list(`{"anyOf":[` + item(`"org","person"`, "", "") + `,` +
			item(`"amount"`, `,"attributes":`+amount, `,"attributes"`) + `,` +
			item(`"payer"`, `,"inferred":{"type":"boolean"}`, `,"inferred"`) + `]}`)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := string(compiled(t, program(t, test.program)).Schema()); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestEqualProgramsHaveOneHash(t *testing.T) {
	t.Parallel()
	want := compiled(t, program(t, invoice)).Hash()
	var anyProgram any
	if err := json.Unmarshal([]byte(invoice), &anyProgram); err != nil {
		t.Fatal(err)
	}
	sorted, err := json.MarshalIndent(anyProgram, "", "  ") // as a database might return it
	if err != nil {
		t.Fatal(err)
	}
	same := compiled(t, program(t, string(sorted)))
	if same.Hash() != want || same.system != compiled(t, program(t, invoice)).system {
		t.Error("the order of keys changes the hash, or the prompt")
	}
	for _, change := range [][2]string{
		{"who pays", "who  pays"}, {`"max":9`, `"max":8`}, {"A human being.", "A human."},
		{`"inferred":true`, `"inferred":false`}, {"Nobody did.", "Nobody did"},
		{`"verbatim":["value"],`, ``}, {`"integer"`, `"number"`}, {`{"name":"org"},`, `{"name":"org","description":"x"},`},
	} {
		other := strings.Replace(invoice, change[0], change[1], 1)
		if other == invoice || compiled(t, program(t, other)).Hash() == want {
			t.Errorf("%s for %s does not change the hash", change[1], change[0])
		}
	}
}

func FuzzCompile(f *testing.F) {
	f.Add([]byte(invoice))
	f.Add([]byte(withAttributes(`{"type":"object","properties":{"a":{"const":{"items":1}}},"required":[1,"a"]}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Program
		if json.Unmarshal(text, &p) != nil {
			return
		}
		c, err := p.Compile()
		if err != nil {
			var fault *Fault
			if !errors.As(err, &fault) || fault.Message == "" {
				t.Fatalf("got %v", err)
			}
			return
		}
		if !json.Valid(c.Schema()) {
			t.Fatalf("the schema of answers is no JSON: %s", c.Schema())
		}
		r := c.Request(Window{Body: "x"}, "", "", "", nil)
		again, err := r.Program.Compile()
		if r.Hash == "" || r.Sum() != r.Hash || err != nil || again.Hash() != c.Hash() ||
			again.Prompt(r.Window()) != c.Prompt(r.Window()) {
			t.Fatalf("the program of the request differs (%v)", err)
		}
	})
}
