package registry

import "github.com/gemworker/gem/internal/schema"

// Compare returns a line for each tool that was added, removed or changed, sorted by name, such as "leads.create was
// changed (timeout_ms)". It ignores formatting and order.
func Compare(old, new *Registry) []string {
	return schema.Compare(old.file(old.doc), new.file(new.doc))
}

// CheckUpgrade returns an error if new has the version of old but other contents. Receipts name the version, which must
// identify one registry. It does not compare tools that a version does not cover: see [Always].
func CheckUpgrade(old, new *Registry) error {
	return schema.CheckUpgrade(old.file(old.named), new.file(new.named))
}

func (r *Registry) file(doc map[string]any) schema.File {
	f := schema.File{Noun: "the registry", List: "tools", Version: r.Version, Doc: doc}
	f.Entries = map[string]map[string]any{}
	for _, v := range list(doc, "tools") {
		entry := v.(map[string]any)
		f.Entries[schema.As[string](entry["name"])] = entry
	}
	return f
}
