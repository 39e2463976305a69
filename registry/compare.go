package registry

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// ChangeKind says what became of a tool.
type ChangeKind string

// The kinds of a change.
const (
	Added   ChangeKind = "added"
	Removed ChangeKind = "removed"
	Changed ChangeKind = "changed"
)

// Change is what became of one tool between two registries.
type Change struct {
	Tool   string
	Kind   ChangeKind
	Fields []string // of a changed tool, those that differ, sorted
}

func (c Change) String() string {
	if len(c.Fields) == 0 {
		return fmt.Sprintf("%s was %s", c.Tool, c.Kind)
	}
	return fmt.Sprintf("%s was %s (%s)", c.Tool, c.Kind, strings.Join(c.Fields, ", "))
}

// Compare returns what became of the tools, sorted by their names. Formatting and order are no change.
func Compare(old, new *Registry) []Change {
	var changes []Change
	for name, was := range old.byName {
		now, ok := new.byName[name]
		if !ok {
			changes = append(changes, Change{Tool: name, Kind: Removed})
		} else if fields := differing(was.entry, now.entry); len(fields) > 0 {
			changes = append(changes, Change{name, Changed, fields})
		}
	}
	for name := range new.byName {
		if _, ok := old.byName[name]; !ok {
			changes = append(changes, Change{Tool: name, Kind: Added})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Tool, b.Tool) })
	return changes
}

// differing returns the keys whose values differ, or that only one of the two has.
func differing(a, b map[string]any) []string {
	var keys []string
	for key, v := range a {
		if w, ok := b[key]; !ok || !bytes.Equal(canonical(v), canonical(w)) {
			keys = append(keys, key)
		}
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// CheckUpgrade refuses a registry that has the version of another and not its contents: receipts name the version, and
// must mean one registry by it.
func CheckUpgrade(old, new *Registry) error {
	if old.Version != new.Version || old.sha256 == new.sha256 {
		return nil
	}
	var what []string
	for _, c := range Compare(old, new) {
		what = append(what, c.String())
	}
	const most = 20
	if more := len(what) - most; more > 0 {
		what = append(what[:most], fmt.Sprintf("and %d more", more))
	}
	if len(what) == 0 {
		what = []string{"the order of the tools was changed"}
		if fields := slices.DeleteFunc(differing(old.doc, new.doc), func(f string) bool { return f == "tools" }); len(fields) > 0 {
			what = []string{strings.Join(fields, ", ") + " at the top was changed"}
		}
	}
	return fmt.Errorf("version %s of the registry has other contents than the version %[1]s that is recorded: %s; "+
		"raise \"version\" in the registry file, or restore what it said", old.Version, strings.Join(what, "; "))
}
