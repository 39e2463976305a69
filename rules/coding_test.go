package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
)

func parseCoding(t *testing.T, text string) (rules.Coding, []schema.Problem) {
	t.Helper()
	doc, err := schema.Decode("coding", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules.ParseCoding(doc)
}

func TestCodingRulesAreOffUnlessTheFileSaysOtherwise(t *testing.T) {
	t.Parallel()
	if got, problems := rules.ParseCoding(nil); len(got) > 0 || problems != nil {
		t.Errorf("without coding: %v, %v", got, problems)
	}
	got, problems := parseCoding(t,
		`{"no_edit_unread": "warn", "test_after_edits": ["block", {"threshold": 5, "unknown": "ask"}], "no_thrashing": "ask",
		"scope_check": "off", "no_commit_failing": ["block"], "no_pointless_rerun": ["warn", {"unknown": "allow", "x-why": 1}], "x-note": "ours"}`)
	want := rules.Coding{
		"no_edit_unread":     {Action: rules.Warn, Unknown: rules.Off},
		"test_after_edits":   {Action: rules.Block, Threshold: 5, Unknown: rules.Ask},
		"no_thrashing":       {Action: rules.Ask, Threshold: 3, Unknown: rules.Off},
		"no_commit_failing":  {Action: rules.Block, Unknown: rules.Off},
		"no_pointless_rerun": {Action: rules.Warn, Unknown: rules.Off},
	}
	if diff := cmp.Diff(want, got); diff != "" || problems != nil {
		t.Errorf("%s%v", diff, problems)
	}
}

func TestDefectsOfCodingAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	set, err := rules.Parse([]byte(`{"version": "1", "rules": [], "coding": {"scope_check": "ask", "x-why": "ours"}}`))
	if err != nil || set.Coding()["scope_check"].Action != rules.Ask {
		t.Errorf("got %v, %v", set, err)
	}
	_, err = rules.Parse(
		[]byte(`{"rules": [], "coding": {"scope_chek": "ask", "no_thrashing": ["ask", {"threshold": 0}]}}`))
	for _, want := range []string{"version", "coding.scope_chek: unknown rule: did you mean scope_check?",
		"coding.no_thrashing[1].threshold: is 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if _, err = rules.Parse([]byte(`{"version": "1", "rules": [], "coding": 5}`)); err == nil ||
		strings.Count(err.Error(), "must be an object") != 1 {
		t.Errorf("got %v", err)
	}
}

// A hook judges by a file whose other parts a worker would refuse.
func TestCodingIsReadWithoutTheRestOfTheFile(t *testing.T) {
	t.Parallel()
	got, err := rules.ReadCoding([]byte("\ufeff" + `{"rules": 5, "coding": {"scope_check": "ask"}}`))
	if err != nil || got["scope_check"].Action != rules.Ask {
		t.Errorf("got %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"": "the rules file", "{": "the rules file", `{"coding": 1}`: "must be an object",
		`{"coding": {"x": 1, "scope_check": 2}}`:           "the known ones are",
		`{"coding": {"scope_check": "ask"}, "coding": {}}`: "appears twice", strings.Repeat(" ", 1<<20+1): "may have at most",
	} {
		if got, err := rules.ReadCoding([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: got %v, %v", text, got, err)
		}
	}
	if got, err := rules.ReadCoding([]byte("{}")); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestEveryDefectOfCodingHasItsPlaceAndWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`[]`:                        {`/coding must be an object of rules, as in {"no_edit_unread": "warn"}`},
		`{"no_edit_unred": "warn"}`: {"/coding/no_edit_unred unknown rule: did you mean no_edit_unread?"},
		`{"zzz": 1}`: {"/coding/zzz unknown rule: the known ones are no_edit_unread, " +
			"test_after_edits, no_commit_failing, fix_regressions_first, no_thrashing, no_pointless_rerun, scope_check"},
		`{"scope_check": "blok"}`: {`/coding/scope_check is blok, and must be an action: did you mean block?`},
		`{"scope_check": "wait"}`: {`/coding/scope_check is wait, and must be an action: the known ones are off, warn, ask, block`},
		`{"scope_check": null}`: {"/coding/scope_check is null, and must be an action: the known " +
			"ones are off, warn, ask, block"},
		`{"scope_check": []}`:          {`/coding/scope_check must be an action, or a list of an action and its options, as in ["warn", {"unknown": "ask"}]`},
		`{"scope_check": ["warn", 3]}`: {`/coding/scope_check/1 must be an object of options, as in {"unknown": "ask"}`},
		`{"scope_check": ["warn", {"threshold": 3}]}`: {"/coding/scope_check/1/threshold unknown option of scope_check: " +
			"the known ones are unknown"},
		`{"no_thrashing": ["warm", {"treshold": 3, "unknown": "block"}], "a": 0}`: {
			"/coding/a unknown rule: the known ones are no_edit_unread, test_after_edits, no_commit_failing, " +
				"fix_regressions_first, no_thrashing, no_pointless_rerun, scope_check",
			`/coding/no_thrashing/0 is warm, and must be an action: did you mean warn?`,
			"/coding/no_thrashing/1/treshold unknown option of no_thrashing: did you mean threshold?",
			`/coding/no_thrashing/1/unknown is block, and must be "allow" or "ask": what becomes of an act while the history cannot be asked`,
		},
		`{"no_thrashing": ["warn", {"threshold": 0}]}`: {"/coding/no_thrashing/1/threshold is 0, and must be a whole " +
			"number from 1 to 1000"},
		`{"no_thrashing": ["warn", {"threshold": 2.5}]}`: {"/coding/no_thrashing/1/threshold is 2.5, and must be a whole " +
			"number from 1 to 1000"},
		`{"no_thrashing": ["warn", {"threshold": "3"}]}`: {`/coding/no_thrashing/1/threshold is "3", and must be a whole number from 1 to 1000`},
		`{"no_thrashing": ["warn", {"threshold": 3000}]}`: {"/coding/no_thrashing/1/threshold is 3000, and must be a whole " +
			"number from 1 to 1000"},
	} {
		_, problems := parseCoding(t, text)
		var got []string
		for _, p := range problems {
			got = append(got, fmt.Sprint(p.Pointer, " ", p.Text))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
