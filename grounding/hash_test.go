package grounding

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestsHaveOneHashWhereTheyAreEqual(t *testing.T) {
	t.Parallel()
	programs := []Program{
		{Instructions: "a", Classes: []Class{{Name: "x"}}},
		{Instructions: "a", Classes: []Class{{Name: "y"}}},
		{Instructions: "a\nb", Classes: []Class{{Name: "x"}}},
	}
	rapid.Check(t, func(t *rapid.T) {
		var sums, inputs [2]string
		for i := range sums {
			// Use few values, so that both requests are often equal or have the same letters in different fields.
			word := func(name string) string {
				return rapid.SampledFrom([]string{"", "a", "b", "ab", `a","b`}).Draw(t, name)
			}
			n := rapid.IntRange(0, len(programs)-1).Draw(t, "program")
			params := rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{"a":2}`}).Draw(t, "params")
			r := Request{
				Scope: word("scope"), Program: programs[n], Model: word("model"), Params: json.RawMessage(params),
				Before: word("before"), Text: word("text"),
				After: word("after"), Prompt: rapid.IntRange(1, 2).Draw(t, "prompt"), Route: word("route"), Hash: word("hash"),
			}
			sums[i] = r.Sum()
			inputs[i] = fmt.Sprintf("%q", []any{r.Scope, n, r.Model, params, r.Before, r.Text, r.After, r.Prompt})
		}
		if (sums[0] == sums[1]) != (inputs[0] == inputs[1]) {
			t.Fatalf("%s has %s\n%s has %s", inputs[0], sums[0], inputs[1], sums[1])
		}
	})
}

func TestARequestKeepsItsHashThroughJSON(t *testing.T) {
	t.Parallel()
	c := compiled(t, program(t, invoice))
	r := c.Request(Window{"<b>\u2028", "Zoë & 😀\u0001", "\\"}, "user:1", "default", "m1,m2",
		json.RawMessage(`{"temperature":0.50,"max":1}`))
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var value any // loses the order of keys, as the database does
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var read Request
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if read.Hash != r.Hash || read.Sum() != r.Hash || len(r.Hash) != 64 {
		t.Errorf("got %s and %s, want %s", read.Hash, read.Sum(), r.Hash)
	}
	if again, err := read.Program.Compile(); err != nil || again.Prompt(read.Window()) != c.Prompt(r.Window()) {
		t.Errorf("the prompt differs (%v)", err)
	}
}

func TestWhatIsNoJSONHasNoHash(t *testing.T) {
	t.Parallel()
	for _, r := range []Request{
		{Params: json.RawMessage(`{`)},
		{Params: json.RawMessage(`{}`), Program: Program{Classes: []Class{{Name: "a", Attributes: json.RawMessage(`{`)}}}},
		{},
	} {
		if got := r.Sum(); got != "" {
			t.Errorf("%+v: got %s", r, got)
		}
	}
}

func TestAChangedParagraphChangesOnlyTheRequestsThatSeeIt(t *testing.T) {
	t.Parallel()
	c := compiled(t, program(t, `{}`))
	var paragraphs []string
	for i := range 400 {
		paragraphs = append(paragraphs, fmt.Sprintf("Paragraph %03d says that the tenant of house %03d pays the "+
			"rent.\nNobody else does.", i, i))
	}
	hashes := func() map[string]bool {
		shards, err := Cut(Normalise(strings.Join(paragraphs, "\n\n")), 1000, 200)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		for _, s := range shards {
			all[c.Request(s.Window, "", "", "", nil).Hash] = true
		}
		return all
	}
	before := hashes()
	paragraphs[200] = strings.Replace(paragraphs[200], "pays", "owns", 1)
	changed := 0
	for hash := range hashes() {
		if !before[hash] {
			changed++
		}
	}
	if len(before) < 30 || changed < 1 || changed > 3 {
		t.Errorf("%d of %d requests changed, want at most 3", changed, len(before))
	}
}
