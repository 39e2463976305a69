package provider_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/google/go-cmp/cmp"
)

const planted = `Ab9-planted/"key"-0123`

// Whatever way of writing a text has in JSON, Postgres stores the text.
func TestAKeyIsCutOutHoweverItIsEscaped(t *testing.T) {
	t.Parallel()
	for _, written := range []string{planted, `Ab9-planted\/\"key\"-0123`,
		`\u0041b9-planted\u002F\u0022key\"-\u00301\u00323`, `Ab9-planted%2F%22key%22-0123`} {
		if got := provider.Clean("the key "+written+" is wrong", planted); got != "the key [cut] is wrong" {
			t.Errorf("%s: %q", written, got)
		}
		if got := provider.Word("model-"+written, planted); got != "model-[cut]" {
			t.Errorf("%s: %q", written, got)
		}
	}
}

func TestAKeyIsCutOutOfAnAnswer(t *testing.T) {
	t.Parallel()
	all := func(key, inJSON string) *provider.Answer {
		return &provider.Answer{Model: "model " + key, ProviderStop: key, RequestID: "req " + key, Stop: provider.ToolUse,
			Parts: []provider.Part{
				{Type: provider.Thinking, Text: "I think " + key, Signature: key},
				{Type: provider.Text, Text: "it is " + key + key},
				{Type: provider.ToolCall, ID: "call " + key, Name: key,
					Arguments: json.RawMessage(`{"a":"` + inJSON + `","` + inJSON + `":["` + inJSON + `",1.0]}`)},
				{Type: provider.ToolCall, ID: "1", Name: "n", RawArguments: `{"` + key},
			}}
	}
	got, want := all(planted, `Ab9-planted/\"key\"-\u00301\u00323`), all("[cut]", "[cut]")
	got.CutKeys("", "short", planted)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A short key may be a word, and what looks like a key may be what was asked for.
	about := all("ollama or sk-0123456789", "ollama")
	about.Model, about.ProviderStop, about.RequestID = "", "", ""
	same := all("ollama or sk-0123456789", "ollama")
	same.Model, same.ProviderStop, same.RequestID = "", "", ""
	if about.CutKeys("ollama"); !cmp.Equal(about, same) {
		t.Error(cmp.Diff(same, about))
	}
	// Here the n of a line break looks like the first letter of the key, and without it the JSON is invalid.
	odd := &provider.Answer{Parts: []provider.Part{{Type: provider.ToolCall,
		Arguments: json.RawMessage(`{"a":"\nb9-planted-key-0123"}`)}}}
	if odd.CutKeys("nb9-planted-key-0123"); string(odd.Parts[0].Arguments) != "{}" ||
		strings.Contains(odd.Parts[0].RawArguments, "key") {
		t.Errorf("%+v", odd.Parts[0])
	}
}

// Text joins the texts, so a key that is split over parts would be whole again.
func TestAKeyThatIsSplitOverPartsIsCutOut(t *testing.T) {
	t.Parallel()
	part := func(kind provider.PartType, text string) provider.Part { return provider.Part{Type: kind, Text: text} }
	signed := func(p provider.Part) provider.Part { p.Signature = "signed"; return p }
	text, thought := provider.Text, provider.Thinking
	for name, c := range map[string]struct{ parts, want []provider.Part }{
		"two texts": {
			[]provider.Part{signed(part(text, "it is "+planted[:9])), part(text, planted[9:]+".")},
			[]provider.Part{signed(part(text, "it is [cut]")), part(text, ".")},
		},
		"a thought between": {
			[]provider.Part{part(text, planted[:9]), part(thought, "hm"), part(text, planted[9:])},
			[]provider.Part{part(text, "[cut]"), part(thought, "hm")},
		},
		"three texts": {
			[]provider.Part{part(text, planted[:5]), part(text, planted[5:9]), signed(part(text, planted[9:]+" or")),
				part(text, " x")},
			[]provider.Part{part(text, "[cut]"), signed(part(text, " or")), part(text, " x")},
		},
		"two keys": {
			[]provider.Part{part(text, planted[:9]), part(text, planted[9:]+" and "+planted[:3]), part(text, planted[3:])},
			[]provider.Part{part(text, "[cut]"), part(text, " and [cut]")},
		},
		"escaped": {
			[]provider.Part{part(text, `\u0041b9-planted\/\`), part(text, `"key\"-\u00301\u00323`)},
			[]provider.Part{part(text, "[cut]")},
		},
		"escaped as in a URL": {
			[]provider.Part{part(text, "Ab9-planted%2"), part(text, "F%22key%22-0123")},
			[]provider.Part{part(text, "[cut]")},
		},
		"two thoughts": {
			[]provider.Part{part(thought, planted[:9]), part(text, "yes"), part(thought, planted[9:])},
			[]provider.Part{part(thought, "[cut]"), part(text, "yes")},
		},
		"an empty part": {
			[]provider.Part{part(text, ""), part(text, "yes")},
			[]provider.Part{part(text, ""), part(text, "yes")},
		},
	} {
		a := &provider.Answer{Parts: c.parts}
		a.CutKeys("", "short", planted)
		if diff := cmp.Diff(c.want, a.Parts); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What is shown of an answer while it comes is joined too, piece by piece.
func TestAKeyIsCutOutOfPiecesHoweverItIsEscaped(t *testing.T) {
	t.Parallel()
	for _, written := range []string{planted, `Ab9-planted\/\"key\"-0123`,
		`\u0041b9-planted\u002F\u0022key\"-\u00301\u00323`, `Ab9-planted%2F%22key%22-0123`} {
		for size := 1; size <= len(written); size++ {
			c, got := provider.NewCutter(planted), ""
			for rest := `is "` + written + `" it`; rest != ""; {
				n := min(size, len(rest))
				got += c.Add(rest[:n])
				rest = rest[n:]
			}
			if got += c.Rest(); got != `is "[cut]" it` {
				t.Errorf("%s in pieces of %d: %s", written, size, got)
			}
		}
	}
}

func TestTheNameOfAModelStaysAsItIs(t *testing.T) {
	t.Parallel()
	const name = "accounts/fireworks/models/Llama-v3p1-405b-instruct"
	if got := provider.Word(name, planted); got != name {
		t.Error(got)
	}
	if got := provider.Word(" a\x00b\n" + strings.Repeat("x", 200)); len([]rune(got)) != 128 ||
		!strings.HasPrefix(got, "a b x") {
		t.Errorf("%q", got)
	}
}
