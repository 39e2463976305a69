package schema

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// File is a valid file of the program's own, whose version names its contents.
type File struct {
	Noun, List string // the registry, tools
	Version    string
	Doc        map[string]any            // all of it
	Entries    map[string]map[string]any // of the list, by name
	// Others lists further fields of the document whose entries are among Entries.
	Others []string
}

// Compare returns a line for each entry that was added, removed or changed, sorted by name. Formatting and order do not
// count.
func Compare(old, new File) []string {
	var changes []string
	for _, name := range keysOf(old.Entries, new.Entries) {
		was, now := old.Entries[name], new.Entries[name]
		switch {
		case was == nil:
			changes = append(changes, name+" was added")
		case now == nil:
			changes = append(changes, name+" was removed")
		default:
			if fields := differing(was, now); len(fields) > 0 {
				changes = append(changes, fmt.Sprintf("%s was changed (%s)", name, strings.Join(fields, ", ")))
			}
		}
	}
	return changes
}

// CompareTop does the same for the fields other than the list and the version.
func CompareTop(old, new File) []string {
	var changes []string
	for _, field := range differing(old.Doc, new.Doc) {
		if field != old.List && field != "version" && !slices.Contains(old.Others, field) {
			changes = append(changes, field+" at the top was changed")
		}
	}
	return changes
}

// CheckUpgrade returns an error if new has the version of old and other contents.
func CheckUpgrade(old, new File) error {
	if old.Version != new.Version || bytes.Equal(Canonical(old.Doc), Canonical(new.Doc)) {
		return nil
	}
	changes := append(Compare(old, new), CompareTop(old, new)...)
	if len(changes) == 0 {
		changes = append(changes, "the order of the "+old.List+" was changed")
	}
	const most = 20
	if more := len(changes) - most; more > 0 {
		changes = append(changes[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("version %s of %s has other contents than the recorded version %[1]s: %[3]s; raise \"version\" in "+
		"the file, or undo the change",
		old.Version, old.Noun, strings.Join(changes, "; "))
}

// differing returns the keys whose values differ, or that only one of the two has.
func differing(a, b map[string]any) []string {
	return slices.DeleteFunc(keysOf(a, b), func(key string) bool {
		v, ok := a[key]
		w, also := b[key]
		return ok && also && bytes.Equal(Canonical(v), Canonical(w))
	})
}

// keysOf returns the keys of both, sorted.
func keysOf[V any](a, b map[string]V) []string {
	both := maps.Clone(a)
	if both == nil {
		both = map[string]V{}
	}
	maps.Copy(both, b)
	return slices.Sorted(maps.Keys(both))
}
