package registry

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// DidYouMean ends a sentence about a tool that the registry lacks. For a tool of GEM's own it says how to include it,
// otherwise it names the tool whose name is most like this one: ": did you mean leads.create?" It is empty if none is.
func (r *Registry) DidYouMean(tool string) string {
	if item := strings.TrimSuffix(tool, ".*"); len(r.own.matching(item)) > 0 {
		return fmt.Sprintf(`: it comes with GEM, so add %q to "include".`, item)
	}
	names := make([]string, len(r.tools))
	for i, t := range r.tools {
		names[i] = t.Name
	}
	return schema.DidYouMean(tool, names)
}
