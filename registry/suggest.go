package registry

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// DidYouMean returns the end of a sentence about a tool that the registry lacks. For a tool of GEM it explains how to
// include it. Otherwise it suggests the most similar name: ": did you mean leads.create?" It returns "" if no name is
// similar.
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
