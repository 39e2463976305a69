package registry_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/registry"
)

func TestCompareNamesWhatBecameOfEachTool(t *testing.T) {
	old := parse(t, file(
		entry(fields{"name": `"a.same"`}),
		entry(fields{"name": `"b.changed"`, "timeout_ms": `1000`, "permissions": `["read:db"]`, "x-note": `1`}),
		entry(fields{"name": `"c.removed"`}),
	))
	new := parse(t, file(
		entry(fields{"name": `"d.added"`}),
		entry(fields{"name": `"b.changed"`, "timeout_ms": `2000`, "description": `"new"`, "x-note": `1.0`}),
		entry(fields{"name": `"a.same"`, "timeout_ms": `15e3`}),
	))
	want := []string{"b.changed was changed (description, permissions, timeout_ms)", "c.removed was removed",
		"d.added was added"}
	if diff := cmp.Diff(want, registry.Compare(old, new)); diff != "" {
		t.Error(diff)
	}
	if got := registry.Compare(old, old); len(got) > 0 {
		t.Errorf("a registry differs from itself: %v", got)
	}
}

func TestCheckUpgradeRefusesOtherContentsUnderOneVersion(t *testing.T) {
	version := func(v, top string, entries ...string) *registry.Registry {
		return parse(t, `{"version": "`+v+`", `+top+`"tools": [`+strings.Join(entries, ",")+`]}`)
	}
	a, b, slow := entry(fields{"name": `"a.a"`}), entry(fields{"name": `"b.b"`}),
		entry(fields{"name": `"a.a"`, "timeout_ms": `2`})
	var many []string
	for _, name := range numbered(`"many.t%d"`, 30) {
		many = append(many, entry(fields{"name": name}))
	}
	recorded := version("1.0.0", "", a, b)
	for name, c := range map[string]struct {
		new  *registry.Registry
		want []string // in the error; none means that it is accepted
	}{
		"the same":                   {version("1.0.0", `"$schema": "x", `, a, b), nil},
		"other contents and version": {version("1.0.1", "", slow), nil},
		"an older version":           {version("0.9.0", "", slow), nil},
		"a changed tool": {version("1.0.0", "", slow, b),
			[]string{"version 1.0.0", "a.a was changed (timeout_ms)", `raise "version"`}},
		"added and removed tools": {version("1.0.0", "", a, entry(fields{"name": `"c.c"`})),
			[]string{"b.b was removed; c.c was added"}},
		"another order":            {version("1.0.0", "", b, a), []string{"order of the tools"}},
		"another field at the top": {version("1.0.0", `"owner": 1, `, a, b), []string{"owner at the top"}},
		"many tools":               {version("1.0.0", "", many...), []string{"and 12 more"}},
	} {
		err := registry.CheckUpgrade(recorded, c.new)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error lacks %q: %v", name, want, err)
			}
		}
	}
}
