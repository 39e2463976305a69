package rules_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/rules"
)

// poison is what has broken JSON libraries, databases and validators.
var poison = []string{
	``, ` `, `{}`, `{`, `[]`, `null`, `true`, `{"a":}`, `{"a":1,}`, `{} {}`, `{"a":01}`, "\x00", "\ufeff{}",
	`{"a":1e400}`, `{"a":1e10000000}`, `{"a":-1e-10000000}`, `{"a":-0.0}`, `{"a":123456789012345678901234567890}`,
	`{"a":"\u0000"}`, `{"\u0000":1}`, `{"a":"\ud800"}`, `{"a":"\ud83d\ude00"}`, "{\"a\":\"\xff\"}", "{\"\xc3\x28\":1}",
	"{\"a\":\"\u2028\"}",
	`{"a":1,"a":"x"}`, `{"x~1y":{},"x/y":1,"%2F":2,"":3}`, `{"amount":1,"to":"bob"}`, `{"amount":-1}`, `{"amount":1e-400}`,
	`{"input":{"a":{"$ref":"#"}}}`, `{"input":{"a":{"pattern":"((("}}}`, `{"caller":{"child":{"not":true}}}`,
	`{"result":{"a":false}}`,
	`{"max":1,"within":"1m","per":["input:/amount"]}`, `{"max":1e3,"within":"9d","sum":"/a~1b"}`,
	`{"max":0,"within":"1s"}`, `{"of":["finance"]}`,
	`{"of":["finance"],"question":"{amount} {/a~1b/0} \"{a}\" {{"}`,
	`{"tool":"a.*"}`, `{"tools":["a.b"],"ended":["succeeded"]}`, `{"in_a_row":1,"cooldown":"1m"}`, `"block"`, `"ask"`,
	`"wait"`, `["billing.*"]`, `"99999999d"`,
}

// FuzzParse puts hostile values into each place of a file: it is refused with defects that can be shown, or every call
// can be judged by it.
func FuzzParse(f *testing.F) {
	for _, doc := range poison {
		for place := range byte(10) {
			f.Add(place, []byte(doc), []byte(`{"amount": 1}`))
		}
		f.Add(byte(6), []byte(`{"input":{"amount":{}}}`), []byte(doc))
		f.Add(byte(2), []byte(`{"max":1,"within":"1m","sum":"/amount","per":["session","input:/a"]}`), []byte(doc))
	}
	registry := tools(f, shop)
	tool, _ := registry.Tool("billing.refund")
	places := []string{"name", "tools", "limit", "requires", "after", "failures", "when", "unless", "action", "ask"}
	f.Fuzz(func(t *testing.T, place byte, value, input []byte) {
		if len(value) > 10_000 {
			return
		}
		entry := map[string]string{"name": `"a"`, "tools": `["billing.*"]`, "action": `"block"`}
		entry[places[int(place)%len(places)]] = string(value)
		var fields []string
		if _, asks := entry["ask"]; asks {
			entry["action"] = `"ask"`
		}
		for _, name := range places {
			if text, ok := entry[name]; ok {
				fields = append(fields, `"`+name+`": `+text)
			}
		}
		text := file(`{` + strings.Join(fields, ", ") + `}`)
		for _, text := range []string{text, string(value)} {
			s, err := rules.Parse([]byte(text))
			if err != nil {
				refused(t, err)
				continue
			}
			if !json.Valid([]byte(text)) && !strings.HasPrefix(text, "\ufeff") {
				t.Fatalf("Parse accepted what is not JSON: %s", text)
			}
			again, err := rules.Parse(s.JSON())
			if err != nil || again.SHA256() != s.SHA256() {
				t.Fatalf("the canonical form is another file: %v %s", err, s.JSON())
			}
			s.Check(registry)
			judge := s.For(registry)
			call := rules.Call{ID: "c", Tool: tool, Input: input, SessionID: "s"}
			j := judge.Judge(call)
			for _, v := range j.Verdicts {
				if v.Message == "" || v.Rule == "" {
					t.Errorf("got %+v", v)
				}
			}
			for _, c := range j.Checks {
				if c.Rule == "" || len(c.Counter) > 2000 {
					t.Errorf("got %+v", c)
				}
				var question struct{ Text string }
				err := json.Unmarshal(c.Question, &question)
				breaks := strings.ContainsFunc(question.Text, func(r rune) bool {
					return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp)
				})
				if c.Question != nil && (err != nil || breaks || len([]rune(question.Text)) > 4000) {
					t.Errorf("the question is not one line: %q %v", question.Text, err)
				}
			}
			if _, err := json.Marshal(j.Checks); err != nil {
				t.Error(err)
			}
			j.Rule("1", rules.Answer{Outcome: rules.Stopped, Met: []rules.Met{{Check: 0}, {Check: 9}, {Check: -1}}})
			judge.JudgeResult(call, input, input)
		}
	})
}

func refused(t *testing.T, err error) {
	t.Helper()
	var invalid *defects.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Defects) == 0 {
		t.Fatalf("got %v", err)
	}
	for _, d := range invalid.Defects {
		if d.Problem == "" || utf8.RuneCountInString(d.Problem) > 500 || !utf8.ValidString(d.String()) {
			t.Errorf("a defect out of form: %q", d)
		}
	}
}
