package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/mcp"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
)

// exports maps each API to the form of its tools. Names have underscores instead of dots.
var exports = map[string]func(*registry.Tool) any{
	// The API's default for strict is true, which accepts few schemas unchanged.
	"openai": func(t *registry.Tool) any {
		return struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      bool            `json:"strict"`
		}{"function", t.FlatName(), t.Description, provider.Parameters(t.InputSchema), false}
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
		}{"function", function{t.FlatName(), t.Description, provider.Parameters(t.InputSchema)}}
	},
	"anthropic": func(t *registry.Tool) any {
		return struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			InputSchema json.RawMessage `json:"input_schema"`
		}{t.FlatName(), t.Description, provider.Parameters(t.InputSchema)}
	},
}

// mostExported is the number of tools that providers accept in one request.
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
--format openai prints the list "tools" for OpenAI's Responses API, openai-chat
for Chat Completions, which many other providers also accept, and anthropic for
Anthropic's Messages API. mcp prints the result of tools/list of gem mcp: open
tools only, and GEM's own two. Names have underscores instead of dots; calls
need the names with dots, as in list_tools() and the registry. These APIs reject
allOf, anyOf, oneOf and similar keywords at the top of a schema, so the command
moves such a keyword into the description; the worker still checks it. Without
--tools it prints all tools except the domain wait.`,
		Example: "  gem registry export --format anthropic\n  gem registry export --format openai --tools " +
			"'leads.*,os.create_task' --frontends",
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(formats, format) {
				return usage("--format must be one of %s", strings.Join(formats, ", "))
			}
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			if format == "mcp" {
				server, err := mcp.New(mcp.Options{Registry: r, Tools: patterns})
				if err != nil {
					return usageError{err}
				}
				defer server.Close()
				return printJSON(cmd.OutOrStdout(), map[string]any{"tools": server.Listed()})
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
				fmt.Fprintf(cmd.ErrOrStderr(), "note: these are %d tools, and providers accept at most %d in a request: choose "+
					"some with --tools\n", len(list), mostExported)
			}
			return printJSON(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "the form: "+strings.Join(formats, ", "))
	cmd.Flags().StringSliceVar(&patterns, "tools", nil,
		"only these: names and `patterns` such as leads.*, separated by commas")
	cmd.Flags().BoolVar(&frontends, "frontends", false, "only the tools that signed-in users may call")
	return cmd
}

// meant returns the tools that match patterns, sorted by name; without patterns, all except those of the domain wait.
// It returns an error for a pattern that matches none.
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
