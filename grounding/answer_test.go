package grounding

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// alpha is the text of many test cases.
const alpha = "Alpha Beta Gamma"

func tokens(t testing.TB) *CompiledProgram {
	return compiled(t, &Program{Instructions: "Extract tokens.", Classes: []Class{{Name: "token"}}})
}

// token returns an item of an answer.
func token(quote string) string { return `{"class":"token","quote":"` + quote + `"}` }

func extractions(items ...string) string { return `{"extractions":[` + strings.Join(items, ",") + `]}` }

// outcome summarises a reading: its failure, its quotes and the reasons of its rejections.
func outcome(r Reading) string {
	var words []string
	if r.Failure != "" {
		words = append(words, r.Failure)
	}
	for _, item := range r.Items {
		words = append(words, item.Quote)
	}
	for _, rejected := range r.Rejected {
		words = append(words, "!"+rejected.Reason)
	}
	if len(words) == 0 {
		return "empty"
	}
	return strings.Join(words, " ")
}

func TestTheItemsOfAnAnswerAreFoundWhateverStandsAroundThem(t *testing.T) {
	t.Parallel()
	const a = `{"class":"token","quote":"Alpha"}`
	whole := extractions(token("Alpha"), token("Gamma"))
	inner := strings.ReplaceAll(whole, `"`, `\"`)
	for _, test := range []struct{ name, answer, want string }{
		{"alone", whole, "Alpha Gamma"},
		{"a list", "[" + token("Alpha") + "," + token("Gamma") + "]", "Alpha Gamma"},
		{"a list in prose", "Here: [" + token("Alpha") + "]. Done.", "Alpha"},
		{"one object in place of a list", `{"extractions":` + a + `}`, "Alpha"},
		{"an object a line", token("Alpha") + "\n" + token("Gamma"), "Alpha Gamma"},
		{"an empty list in prose before", "If nothing is found I return []. Result: " + whole, "Alpha Gamma"},
		{"an example of an empty list", "Example: [] Result: " + whole, "Alpha Gamma"},
		{"braces in prose", "I saw {something} and {} and [1]. " + whole + " }]", "Alpha Gamma"},
		{"an empty draft", `{"extractions":[]} Wait: ` + whole, "Alpha Gamma"},
		{"a draft, then less", whole + " Corrected: " + extractions(a), "Alpha"},
		{"an empty list after it", whole + ` The form of nothing would be {"extractions":[]}`, "Alpha Gamma"},
		{"a thought", "<think>maybe {\"extractions\":[]} or [\"</think>" + whole, "Alpha Gamma"},
		{"a thought in capitals", "<Thinking>" + extractions(token("Beta")) + "</THINKING>" + extractions(a), "Alpha"},
		{"a thought whose beginning is missing", extractions(token("Beta")) + " no</think>" + extractions(a), "Alpha"},
		{"a damaged thought whose beginning is missing",
			`{"extractions":[{"class":"token","quote":"Be</think>` + extractions(a), "Alpha"},
		{"a call to a tool", `{"name":"emit","arguments":` + whole + `}`, "Alpha Gamma"},
		{"calls to tools with arguments as a string", `{"tool_calls":[{"function":{"name":"emit","arguments":"` + inner +
			`"}}]}`, "Alpha Gamma"},
		{"a list of calls", `[{"name":"emit","input":` + whole + `}]`, "Alpha Gamma"},
		{"items as a string", `{"extractions":"[` + strings.ReplaceAll(a, `"`, `\"`) + `]"}`, "Alpha"},
		{"written twice", `"` + inner + `"`, "Alpha Gamma"},
		{"written twice in a code block", "```json\n\"" + inner + "\"\n```", "Alpha Gamma"},
		{"escaped without quotation marks", inner, "Alpha Gamma"},
		{"an envelope that is not closed", `{"name":"emit","arguments":` + whole, "Alpha Gamma"},
		{"lines that look like events", "id: 7\nevent: found\ndata: " + whole, "Alpha Gamma"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(tokens(t).Read(Window{Body: alpha}, test.answer, false)); got != test.want {
				t.Errorf("%s\ngot %s, want %s", test.answer, got, test.want)
			}
		})
	}
}

func TestAnAnswerIsEmptyOnlyIfItSaysSoAndClaimsNothing(t *testing.T) {
	t.Parallel()
	const empty = `{"extractions":[]}`
	item := token("Alpha")
	for _, test := range []struct{ name, answer, want string }{
		{"an empty object", empty, "empty"},
		{"in prose", "Nothing of that kind:\n```json\n" + empty + "\n```\nLet me know!", "empty"},
		{"with other members", `{"extractions":[],"note":"nothing [here]"}`, "empty"},
		{"in a call", `{"name":"emit","arguments":"{\"extractions\":[]}"}`, "empty"},
		{"an empty list alone", "\ufeff [ ]\n", "empty"},
		{"an empty list in a code block", "```json\n[]\n```", "empty"},
		{"an empty list after a thought", "<think>[1]</think> []", "empty"},
		{"an empty list in prose", "I return [] here.", Unreadable},
		{"an empty object, then a list under another name", empty + ` {"items":[` + item + `]}`, Unreadable},
		{"an empty list beside a list under another name", `{"extractions":[],"more":[` + item + `]}`, Unreadable},
		{"an empty object, then a cut one", empty + ` Or: {"extractions":[{"cl`, Truncated},
		{"an empty object, then anything cut", empty + ` Or: {"extr`, Truncated},
		{"an empty list in a cut one", `{"extractions":[{"class":"t","tags":[],"quote":"Al`, Truncated},
		{"an empty object in a cut one", `{"name":"emit","arguments":{"extractions":[]}`, Truncated},
		{"an empty object in a thought", "<think>" + empty + "</think>", Unreadable},
		{"an empty object in a thought that is cut", "<think>" + empty, Truncated},
		{"null in place of a list", `{"extractions":null}`, Unreadable},
		{"another name", `{"items":[` + item + `]}`, Unreadable},
		{"a refusal", "I cannot help with that.", Unreadable},
		{"nothing", "", Unreadable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(tokens(t).Read(Window{Body: alpha}, test.answer, false)); got != test.want {
				t.Errorf("%s\ngot %s, want %s", test.answer, got, test.want)
			}
		})
	}
}

// The domain llm unpacks streams, so Read treats a frame of a stream as text. ekchylisma parses it as a frame and loses
// the parts that do not fit.
func TestFramesOfAStreamAreText(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"id: 5\n" + `{"extractions":[]}`:                   "empty",
		"event: found\n" + `{"extractions":[]}`:            "empty",
		"id: 5\n" + extractions(token("Beta")):             "Beta",
		"data: " + extractions(token("Beta")) + "\n: ping": "Beta",
		"data: {oops": Truncated,
		`data: {"choices":[{"delta":{"content":"{\"extra"}}]}` + "\n" +
			`data: {"choices":[{"delta":{"content":"ctions\":[]}"}}]}` + "\ndata: [DONE]": Unreadable,
	} {
		if got := outcome(tokens(t).Read(Window{Body: alpha}, answer, false)); got != want {
			t.Errorf("%s: got %s, want %s", answer, got, want)
		}
	}
}

func TestAListThatIsCutOrBrokenIsNotReadInPart(t *testing.T) {
	t.Parallel()
	whole := extractions(token("Alpha"), token("Gamma"))
	for _, test := range []struct{ name, answer, want string }{
		{"before the last bracket", strings.TrimSuffix(whole, "}"), Truncated},
		{"in a list without a name", "[" + token("Alpha") + `,{"cla`, Truncated},
		{"after an object a line", token("Alpha") + "\n" + `{"cla`, Truncated},
		{"in a code block that is closed", "```json\n" + whole[:40] + "\n```", Truncated},
		{"in arguments that are a string", `{"name":"emit","arguments":"{\"extractions\":[{\"class\":\"tok"}`, Truncated},
		{"in an envelope", `{"name":"emit","arguments":` + whole[:40], Truncated},
		{"written twice", `"` + strings.ReplaceAll(whole[:40], `"`, `\"`), Truncated},
		{"behind a whole draft", extractions(token("Alpha")) + " Once more:\n" + whole[:40], Truncated},
		{"broken", extractions(token("Alpha")+` oops `, token("Gamma")), Unreadable},
		{"broken behind a whole draft", extractions(token("Alpha")) + extractions(token("Alpha")+` oops `, token("Gamma")),
			Unreadable},
		{"broken, then whole", extractions(token("Alpha")+` oops `) + " Again: " + whole, "Alpha Gamma"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(tokens(t).Read(Window{Body: alpha}, test.answer, false)); got != test.want {
				t.Errorf("%s\ngot %s, want %s", test.answer, got, test.want)
			}
		})
	}
}

func TestAnAnswerThatEndedAtALimitOrIsTooLargeIsNotRead(t *testing.T) {
	t.Parallel()
	c, w := tokens(t), Window{Body: alpha}
	if got := outcome(c.Read(w, extractions(token("Alpha")), true)); got != Truncated {
		t.Errorf("at a limit: %s", got)
	}
	large := extractions(token("Alpha")) + strings.Repeat(" ", MaxAnswer)
	if got := outcome(c.Read(w, large, false)); got != AnswerTooLarge {
		t.Errorf("too large: %s", got)
	}
	if got := outcome(c.Read(w, large[:MaxAnswer], false)); got != "Alpha" {
		t.Errorf("as large as can be: %s", got)
	}
}

func TestAnotherAnswerIsAskedForOnlyIfItMayHelp(t *testing.T) {
	t.Parallel()
	c, w := tokens(t), Window{Body: alpha}
	got := map[string]bool{}
	for _, answer := range []string{extractions(token("Alpha")), extractions(), extractions(token("Nobody")), "no",
		`{"extractions":[`} {
		r := c.Read(w, answer, false)
		got[outcome(r)] = r.AskAgain()
	}
	want := map[string]bool{"Alpha": false, "empty": false, "!" + QuoteNotFound: true, Unreadable: true, Truncated: false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
