package registry

import (
	"path"
	"strings"
)

// Agents are told names without dots, which many models and clients refuse: leads_create for leads.create. A registry in which two tools would meet in
// one such name is invalid, and so is one with a tool of the domain gem, whose names belong to GEM's own tools.

// longName is the length beyond which a client that puts its own prefix before a name, such as mcp__server__, may pass the 64 characters of models.
const longName = 45

// FlatName is the tool's name with underscores for its dots, as agents are told it. No other tool of the registry has it.
func (t *Tool) FlatName() string { return flat(t.Name) }

func flat(name string) string { return strings.ReplaceAll(name, ".", "_") }

// Named returns the tool of a name in either form, leads.create or leads_create, and whether there is one.
func (r *Registry) Named(name string) (*Tool, bool) {
	t, ok := r.byFlatName[flat(name)]
	if !ok || name != t.Name && name != t.FlatName() {
		return nil, false
	}
	return t, true
}

// Matches reports whether a name or a pattern, such as leads.* or os.list_tasks, means the tool, by either form of its name. No pattern that is
// malformed means one.
func (t *Tool) Matches(pattern string) bool {
	own, _ := path.Match(pattern, t.Name) // names have no slash
	flat, _ := path.Match(pattern, t.FlatName())
	return own || flat
}
