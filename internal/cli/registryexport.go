package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/mcp"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
)

// exports write tools as an API takes them. In each their names have underscores for dots.
var exports = map[string]func(*registry.Tool) any{
	// The API's default for strict is true, and then it takes few schemas as they are.
	"openai": func(t *registry.Tool) any {
		return struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      bool            `json:"strict"`
		}{"function", t.FlatName(), t.Description, llm.Parameters(t.InputSchema), false}
	},
	"openai-chat": func(t *registry.Tool) any {
		type function struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters"`
		}
		return struct {
			Type     string   `json:"type"`
			Function function `json:"function"`
		}{"function", function{t.FlatName(), t.Description, llm.Parameters(t.InputSchema)}}
	},
	"anthropic": func(t *registry.Tool) any {
		return struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			InputSchema json.RawMessage `json:"input_schema"`
		}{t.FlatName(), t.Description, llm.Parameters(t.InputSchema)}
	},
}

// mostExported is how many tools providers take in one request.
const mostExported = 128

func registryExportCommand(p *Program) *cobra.Command {
	var (
		format    string
		patterns  []string
		frontends bool
	)
	formats := append(slices.Sorted(maps.Keys(exports)), "mcp")
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Print the tools as JSON for the API of a model's provider, or for MCP",
		Long: `
With --format openai it prints the list "tools" of OpenAI's Responses API, with
openai-chat that of Chat Completions, which many other providers take too, and
with anthropic that of Anthropic's Messages API. mcp is the result of
tools/list as gem mcp gives it: open tools only, and GEM's own two. Names have
underscores for dots; list_tools() and the registry have those with dots,
which calls need. At the top of a schema these APIs refuse allOf, anyOf, oneOf
and the like: such a keyword is put into the description, and the worker checks
it all the same. Without --tools all are printed but those of the domain wait.`,
		Example: "  gem registry export --format anthropic\n  gem registry export --format openai --tools 'leads.*,os.create_task' --frontends",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(formats, format) {
				return usage("--format must be one of %s", strings.Join(formats, ", "))
			}
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			if format == "mcp" {
				door, err := mcp.New(mcp.Options{Registry: r, Tools: patterns})
				if err != nil {
					return usageError{err}
				}
				defer door.Close()
				return printJSON(cmd.OutOrStdout(), map[string]any{"tools": door.Listed()})
			}
			tools, err := meant(r, patterns)
			if err != nil {
				return err
			}
			list := []any{}
			for _, t := range tools {
				if t.Frontends || !frontends {
					list = append(list, exports[format](t))
				}
			}
			if len(list) > mostExported {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: these are %d tools, and providers take at most %d in a request: choose some with --tools\n", len(list), mostExported)
			}
			return printJSON(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "the form: "+strings.Join(formats, ", "))
	cmd.Flags().StringSliceVar(&patterns, "tools", nil, "only these: names, and `patterns` such as leads.*, with commas between them")
	cmd.Flags().BoolVar(&frontends, "frontends", false, "only the tools that signed-in users may call")
	return cmd
}

// meant are the tools that patterns mean, sorted by name; without patterns all but those of the domain wait. Each pattern must mean one.
func meant(r *registry.Registry, patterns []string) (tools []*registry.Tool, err error) {
	all := r.Tools()
	for _, pattern := range patterns {
		if !slices.ContainsFunc(all, func(t *registry.Tool) bool { return t.Matches(pattern) }) {
			return nil, usage("the registry has no tool %q%s", pattern, r.DidYouMean(pattern))
		}
	}
	for _, t := range all {
		if slices.ContainsFunc(patterns, t.Matches) || len(patterns) == 0 && !strings.HasPrefix(t.Name, "wait.") {
			tools = append(tools, t)
		}
	}
	slices.SortFunc(tools, func(a, b *registry.Tool) int { return strings.Compare(a.Name, b.Name) })
	return tools, nil
}
