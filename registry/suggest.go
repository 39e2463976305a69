package registry

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// DidYouMean ends a sentence about a tool that the registry lacks. For a tool of GEM's own it is ": add "llm.chat" to "include".", otherwise
// the tool whose name is most like this one, as in ": did you mean leads.create?" It is empty if none is like it.
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
