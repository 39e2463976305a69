package registry

import "github.com/gemworker/gem/internal/schema"

// DidYouMean names the tool whose name is most like this one, as the end of a sentence: ": did you mean leads.create?" It is empty if
// none is like it.
func (r *Registry) DidYouMean(tool string) string {
	names := make([]string, len(r.tools))
	for i, t := range r.tools {
		names[i] = t.Name
	}
	return schema.DidYouMean(tool, names)
}
