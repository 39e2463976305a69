package grounding

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/internal/schema"
)

// firstValue returns the first complete value in a text, as JSON. It skips prose in brackets. It returns false if the
// value is cut or there is none.
func firstValue(text string) (string, bool) {
	for at := range len(text) {
		if text[at] != '{' && text[at] != '[' {
			continue
		}
		p := parser{s: text, at: at}
		if v, ok := p.read(); ok {
			return string(schema.Canonical(v.plain())), true
		} else if p.cut {
			return "", false
		}
	}
	return "", false
}

func TestWhatIsNoGuessIsRepaired(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, given, want string }{
		// Behaviour of ekchylisma that is kept.
		{"a byte order mark and a comma too many", "\ufeff{\"a\":1,}", `{"a":1}`},
		{"text around", `x {"a":[1,2,],} y`, `{"a":[1,2]}`},
		{"a code block", "```json\n{\"a\":1}\n```", `{"a":1}`},
		{"what looks like a comma too many in a string", `{"a":"x,]"}`, `{"a":"x,]"}`},
		{"a control character", "{\"a\":\"\x01b\"}", `{"a":"b"}`},
		{"a second value", `{"a":1}{"b":2}`, `{"a":1}`},
		{"a name twice", `{"a":1,"a":2}`, `{"a":2}`},
		// Input that ekchylisma rejects or changes.
		{"a number of many digits", `{"n":12345678901234567890}`, `{"n":12345678901234567890}`},
		{"a line end in a string", "{\"a\":\"x\ny\tz\"}", `{"a":"x\ny\tz"}`},
		{"a path", `{"a":"c:\path\q"}`, `{"a":"c:\\path\\q"}`},
		{"half of an escape", `{"a":"\u12"}`, `{"a":"\\u12"}`},
		{"commas too many", `[1,2,,]`, `[1,2]`},
		{"a comma first", `[,1]`, `[1]`},
		{"NaN", `{"a":NaN,"b":-Infinity,"c":undefined}`, `{"a":null,"b":null,"c":null}`},
		{"comments", "{\"a\":1 /*c }*/, // d ]\n \"b\":\"//e\"}", `{"a":1,"b":"//e"}`},
		{"single quotation marks", `{'a':'it\'s "b"'}`, `{"a":"it's \"b\""}`},
		{"literals of Python", `{'a': True, 'b': None, 'c': False}`, `{"a":true,"b":null,"c":false}`},
		{"curly quotation marks", `{“a”：“b, “c” d”，“e”:1}`, `{"a":"b, “c” d","e":1}`},
		{"names without quotation marks", `{a: 1, b_2: "x"}`, `{"a":1,"b_2":"x"}`},
		{"bare quotation marks in a string", `{"a":"he said "no", and "yes"","b":["x "y" z","w"]}`,
			`{"a":"he said \"no\", and \"yes\"","b":["x \"y\" z","w"]}`},
		{"objects without a comma between", `[{"a":1} {"b":2}]`, `[{"a":1},{"b":2}]`},
		{"members without a comma between", `{"a":"x" "b":1 "c":[] "d":"y"}`, `{"a":"x","b":1,"c":[],"d":"y"}`},
		{"a bracket that closes nothing", `{"a":[{"b":1}}],"c":[2]]}`, `{"a":[{"b":1}],"c":[2]}`},
		{"a number that JSON does not have", `{"a":007,"b":2026-05-03}`, `{"a":"007","b":"2026-05-03"}`},
		{"a pair of surrogates, and half of one", `{"a":"\ud83d\ude00\ud83d!"}`, `{"a":"😀�!"}`},
		{"NUL, which no database stores", `{"a":"x\u0000y"}`, `{"a":"xy"}`},
		{"prose in brackets", `I see {one} thing [here]: {"a":1}`, `{"a":1}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := firstValue(test.given); got != test.want || !ok {
				t.Errorf("%s: got %s, want %s", test.given, got, test.want)
			}
		})
	}
}

func TestACutValueIsNeverClosed(t *testing.T) {
	t.Parallel()
	const whole = `{"a":[{"b":"c\u00e9\\ \"d\"","e":-1.5e3},[],{},true,null],'f': // g` + "\n" + ` “h”}`
	if _, ok := firstValue(whole); !ok {
		t.Fatal("the whole is not read")
	}
	for cut := 1; cut < len(whole); cut++ {
		p := parser{s: whole[:cut]}
		if _, ok := p.read(); ok || !p.cut {
			t.Errorf("%q: whole %t, cut %t", whole[:cut], ok, p.cut)
		}
	}
}

func TestAValueThatIsNestedTooDeeplyIsNotRead(t *testing.T) {
	t.Parallel()
	for _, levels := range []int{maxNested, maxNested + 1, 1_000_000} {
		p := parser{s: strings.Repeat("[", levels) + strings.Repeat("]", levels)}
		if _, ok := p.read(); ok != (levels <= maxNested) {
			t.Errorf("%d levels: read %t", levels, ok)
		}
	}
}

// FuzzParser checks that the parser reads valid JSON as encoding/json does, and rejects every proper prefix of it.
func FuzzParser(f *testing.F) {
	for _, seed := range []string{
		`{"a":"b","c":[1,-2.5e10,"x",{"":null}],"d\"":true}`, `["a" , "b",
"c"]`, `{"a":"\\","b\\":"\\\""}`, `[{"a":{}},[],[[]]]`, `{"k":",\"x\":","m":"},"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.TrimSpace(text)
		if !json.Valid([]byte(text)) || text[0] != '{' && text[0] != '[' || strings.Contains(text, `\u0000`) ||
			strings.Contains(text, "\x7f") {
			return
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil {
			return
		}
		p := parser{s: text}
		v, ok := p.read()
		if !ok {
			if strings.Count(text, "[")+strings.Count(text, "{") > maxNested {
				return
			}
			t.Fatalf("%q is not read", text)
		}
		if diff := cmp.Diff(want, v.plain()); diff != "" && strings.ToValidUTF8(text, "") == text {
			t.Fatalf("%q (-want +got):\n%s", text, diff)
		}
		for cut := range text {
			p := parser{s: text[:cut]}
			if _, ok := p.read(); ok {
				t.Fatalf("%q is read as a whole", text[:cut])
			}
		}
	})
}
