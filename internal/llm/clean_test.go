package llm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/llm"
	"github.com/google/go-cmp/cmp"
)

const planted = `Ab9-planted/"key"-0123`

// Whatever way of writing a text has in JSON, Postgres stores the text.
func TestAKeyIsCutOutHoweverItIsEscaped(t *testing.T) {
	t.Parallel()
	for _, written := range []string{planted, `Ab9-planted\/\"key\"-0123`, `\u0041b9-planted\u002F\u0022key\"-\u00301\u00323`, `Ab9-planted%2F%22key%22-0123`} {
		if got := llm.Clean("the key "+written+" is wrong", planted); got != "the key [cut] is wrong" {
			t.Errorf("%s: %q", written, got)
		}
		if got := llm.Word("model-"+written, planted); got != "model-[cut]" {
			t.Errorf("%s: %q", written, got)
		}
	}
}

func TestAKeyIsCutOutOfAnAnswer(t *testing.T) {
	t.Parallel()
	all := func(key, inJSON string) *llm.Answer {
		return &llm.Answer{Model: "model " + key, ProviderStop: key, RequestID: "req " + key, Stop: llm.ToolUse, Parts: []llm.Part{
			{Type: llm.Thinking, Text: "I think " + key, Signature: key},
			{Type: llm.Text, Text: "it is " + key + key},
			{Type: llm.ToolCall, ID: "call " + key, Name: key, Arguments: json.RawMessage(`{"a":"` + inJSON + `","` + inJSON + `":["` + inJSON + `",1.0]}`)},
			{Type: llm.ToolCall, ID: "1", Name: "n", RawArguments: `{"` + key},
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
	// What is no JSON any more without it, is no object.
	odd := &llm.Answer{Parts: []llm.Part{{Type: llm.ToolCall, Arguments: json.RawMessage(`{"a":"\\u0041b9-planted/\"key\"-0123"}`)}}}
	if odd.CutKeys(planted); string(odd.Parts[0].Arguments) != "{}" || strings.Contains(odd.Parts[0].RawArguments, "key") {
		t.Errorf("%+v", odd.Parts[0])
	}
}

func TestTheNameOfAModelStaysAsItIs(t *testing.T) {
	t.Parallel()
	const name = "accounts/fireworks/models/Llama-v3p1-405b-instruct"
	if got := llm.Word(name, planted); got != name {
		t.Error(got)
	}
	if got := llm.Word(" a\x00b\n" + strings.Repeat("x", 200)); len([]rune(got)) != 128 || !strings.HasPrefix(got, "a b x") {
		t.Errorf("%q", got)
	}
}
