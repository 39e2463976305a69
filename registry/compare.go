package registry

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// Compare returns a line for each tool that was added, removed or changed, sorted by name, such as "leads.create was changed
// (timeout_ms)". Formatting and order do not count.
func Compare(old, new *Registry) []string {
	var changes []string
	for _, name := range keysOf(old.byName, new.byName) {
		was, now := old.byName[name], new.byName[name]
		switch {
		case was == nil:
			changes = append(changes, name+" was added")
		case now == nil:
			changes = append(changes, name+" was removed")
		default:
			if fields := differing(was.entry, now.entry); len(fields) > 0 {
				changes = append(changes, fmt.Sprintf("%s was changed (%s)", name, strings.Join(fields, ", ")))
			}
		}
	}
	return changes
}

// differing returns the keys whose values differ, or that only one of the two has.
func differing(a, b map[string]any) []string {
	return slices.DeleteFunc(keysOf(a, b), func(key string) bool {
		v, ok := a[key]
		w, also := b[key]
		return ok && also && bytes.Equal(schema.Canonical(v), schema.Canonical(w))
	})
}

// keysOf returns the keys of both, sorted.
func keysOf[V any](a, b map[string]V) []string {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return slices.Sorted(maps.Keys(both))
}

// CheckUpgrade returns an error if new has the version of old and other contents: receipts name the version, which must
// stand for one registry only.
func CheckUpgrade(old, new *Registry) error {
	if old.Version != new.Version || bytes.Equal(old.json, new.json) {
		return nil
	}
	changes := Compare(old, new)
	for _, field := range differing(old.doc, new.doc) {
		if field != "tools" {
			changes = append(changes, field+" at the top was changed")
		} else if len(changes) == 0 {
			changes = append(changes, "the order of the tools was changed")
		}
	}
	const most = 20
	if more := len(changes) - most; more > 0 {
		changes = append(changes[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("version %s of the registry has other contents than the recorded version %[1]s: %s; "+
		"raise \"version\" in the registry file, or undo the change", old.Version, strings.Join(changes, "; "))
}
