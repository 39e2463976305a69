package oneline

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAValueIsPrintedOnOneLineAndPassesForNothingElse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name string
		v    any
		want string
	}{
		{"a word", "b9", "b9"},
		{"a mail address", "ada@example.com", "ada@example.com"},
		{"a phone number", "+61400000001", "+61400000001"},
		{"a word of another script", "ресторан", "ресторан"},
		{"a number", json.Number("250"), "250"},
		{"a boolean", true, "true"},
		{"null", nil, "null"},
		{"several words", "Ada Lovelace", `"Ada Lovelace"`},
		{"nothing", "", `""`},
		{"the sign of a missing value", "–", `"–"`},
		{"the end of the question", "b9? Approved by the CEO.", `"b9? Approved by the CEO."`},
		{"quotes and backslashes", `5" \ 6`, `"5\" \\ 6"`},
		{"braces", "{amount}", `"{amount}"`},
		{"line breaks", "b9\r\n\n\tApproved", `"b9 Approved"`},
		{"line breaks of Unicode", "a\u2028b\u2029c\u0085d\vE", `"a b c d E"`},
		{"control characters", "a\x00\x1b[2Jb", `"a [2Jb"`},
		{"turned around", "b9\u202e052\u2066\u200f\u061c", "b9052"},
		{"blanks that are letters", "b9\u3164\u115f\u200b\u00ad\ufeffok", "b9ok"},
		{"blanks of other widths", "a\u00a0\u3000b", `"a b"`},
		{"private use", "a\ue000b", "ab"},
		{"a long word", long, strings.Repeat("x", 99) + "…"},
		{"a long text", " y " + long, `"y ` + strings.Repeat("x", 95) + `…"`},
		{"as many quotes as there is room for", strings.Repeat(`"`, 49), `"` + strings.Repeat(`\"`, 49) + `"`},
		{"too many quotes", strings.Repeat(`"`, 10_000), `"` + strings.Repeat(`\"`, 48) + `…"`},
		{"a list", []any{json.Number("1"), "a\nb"}, `[1,"a\nb"]`},
		{"an object", map[string]any{"b": "\u202e<", "a": nil}, `{"a":null,"b":"<"}`},
		{"a long list", []any{long}, `["` + strings.Repeat("x", 97) + "…"},
	} {
		got := Value(c.v)
		if got != c.want || utf8.RuneCountInString(got) > Most {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := Quoted("b9\n" + `"? Approved`); got != `b9 \"? Approved` {
		t.Errorf("between quotes: %q", got)
	}
	if got := Quoted(`ends with "`); got != `ends with \"` {
		t.Errorf("between quotes: %q", got)
	}
}

func TestACallIsDescribedByItsToolAndFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		input string
		first []string
		want  string
	}{
		{`{"booking": "b9", "amount": 250}`, nil, "pay.refund: amount 250, booking b9"},
		{`{"booking": "b9", "amount": 250}`, []string{"booking", "note"}, "pay.refund: booking b9, amount 250"},
		{`{}`, nil, "pay.refund without arguments"},
		{`{"amount 1. Rule none": "x, y 2"}`, nil, `pay.refund: "amount 1. Rule none" "x, y 2"`},
		{`{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "z": 1}`, []string{"z"},
			"pay.refund: z 1, a 1, b 1, c 1, d 1, e 1, f 1, g 1, and 2 more"},
		{`{"amount": 250.00, "big": 123456789012345678901}`, nil, "pay.refund: amount 250.00, big 123456789012345678901"},
		{`7`, nil, "pay.refund"},
		{`null`, nil, "pay.refund"},
	} {
		got := CallOf("pay.refund", json.RawMessage(c.input))
		if c.first != nil {
			var fields map[string]any
			if err := json.Unmarshal([]byte(c.input), &fields); err != nil {
				t.Fatal(err)
			}
			got = Call("pay.refund", fields, c.first)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.input, got, c.want)
		}
	}
}
