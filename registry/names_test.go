package registry_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/registry"
)

func TestAToolIsFoundByBothFormsOfItsName(t *testing.T) {
	r := parse(t, file(entry(fields{"name": `"integrations.google_drive.search"`}),
		entry(fields{"name": `"leads.create"`})))
	for name, want := range map[string]string{
		"integrations.google_drive.search": "integrations.google_drive.search",
		"integrations_google_drive_search": "integrations.google_drive.search",
		"leads_create":                     "leads.create",
		"integrations_google_drive.search": "", // neither form
		"integrations.google.drive.search": "",
		"leads_Create":                     "",
		"":                                 "",
	} {
		got, ok := r.Named(name)
		if ok != (want != "") || ok && got.Name != want {
			t.Errorf("%s: got %v, want %q", name, got, want)
		}
	}
	if tool, _ := r.Tool("integrations.google_drive.search"); tool.FlatName() != "integrations_google_drive_search" {
		t.Errorf("FlatName() = %s", tool.FlatName())
	}
}

func TestPatternsMeanToolsByBothFormsOfTheirNames(t *testing.T) {
	tool, _ := parse(t, file(entry(fields{"name": `"leads.list_by_stage"`}))).Tool("leads.list_by_stage")
	for pattern, want := range map[string]bool{
		"leads.*": true, "leads_*": true, "*": true, "leads.list_by_stage": true, "leads_list_by_stage": true,
		"leads.list_*": true,
		"lead.*":       false, "leads": false, "leads.list_by_stage.*": false, "": false, "[": false,
	} {
		if got := tool.Matches(pattern); got != want {
			t.Errorf("%s: got %t", pattern, got)
		}
	}
}

func TestNamesThatAreLongForClientsAreWarnedOf(t *testing.T) {
	longest := "a." + strings.Repeat("b", 43) // of 45 characters
	got := parse(t, file(entry(fields{"name": `"` + longest + `"`}), entry(fields{"name": `"` + longest + `c"`}))).
		Warnings()
	if len(got) != 1 || got[0].Part != longest+"c" || got[0].Field != "name" ||
		!strings.Contains(got[0].Problem, "has 46 characters") {
		t.Errorf("got %v", got)
	}
}

func TestHintsAreRead(t *testing.T) {
	no, yes := false, true
	for text, want := range map[string]registry.Hints{
		``:                       {},
		`{}`:                     {},
		`{"title": "New lead"}`:  {Title: "New lead"},
		`{"destructive": false}`: {Destructive: &no},
		`{"destructive": true, "title": "Refund"}`: {Title: "Refund", Destructive: &yes},
	} {
		tool, _ := parse(t, file(entry(fields{"hints": text}))).Tool("leads.create")
		if diff := cmp.Diff(want, tool.Hints); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestCompareNamesChangedHints(t *testing.T) {
	old, new := parse(t, file(entry(nil))), parse(t, file(entry(fields{"hints": `{"destructive": true}`})))
	if diff := cmp.Diff([]string{"leads.create was changed (hints)"}, registry.Compare(old, new)); diff != "" {
		t.Error(diff)
	}
}
