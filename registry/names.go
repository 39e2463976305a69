package registry

import (
	"path"
	"strings"
)

// Agents see names without dots, which many models and clients refuse: leads_create for leads.create. A registry is
// invalid if two of its tools share such a name, or if it has a tool of the domain gem, whose names are GEM's.

// longName is the length beyond which a client's prefix, such as mcp__server__, may make a name longer than the 64
// characters that models allow.
const longName = 45

// FlatName returns the tool's name with underscores in place of dots, as agents see it. It is unique in the registry.
func (t *Tool) FlatName() string { return flat(t.Name) }

func flat(name string) string { return strings.ReplaceAll(name, ".", "_") }

// Named returns the tool with a name in either form, leads.create or leads_create. It returns false if there is none.
func (r *Registry) Named(name string) (*Tool, bool) {
	t, ok := r.byFlatName[flat(name)]
	if !ok || name != t.Name && name != t.FlatName() {
		return nil, false
	}
	return t, true
}

// Matches reports whether a name or a pattern, such as leads.* or os.list_tasks, matches either form of the tool's
// name. A malformed pattern matches nothing.
func (t *Tool) Matches(pattern string) bool {
	own, _ := path.Match(pattern, t.Name) // names have no slash
	flat, _ := path.Match(pattern, t.FlatName())
	return own || flat
}
