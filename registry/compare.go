package registry

import "github.com/gemworker/gem/internal/schema"

// Compare returns a line for each tool that was added, removed or changed, sorted by name, such as "leads.create was changed
// (timeout_ms)". Formatting and order do not count.
func Compare(old, new *Registry) []string { return schema.Compare(old.file(), new.file()) }

// CheckUpgrade returns an error if new has the version of old and other contents: receipts name the version, which must
// stand for one registry only.
func CheckUpgrade(old, new *Registry) error { return schema.CheckUpgrade(old.file(), new.file()) }

func (r *Registry) file() schema.File {
	f := schema.File{Noun: "the registry", List: "tools", Version: r.Version, Doc: r.doc, Entries: map[string]map[string]any{}}
	for _, t := range r.tools {
		f.Entries[t.Name] = t.entry
	}
	return f
}
