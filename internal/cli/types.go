package cli

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/types"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
)

func typesCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "types",
		Short: "Write types for the tools' inputs and outputs in a programming language",
	}
	var examples []string
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, l := range typesLanguages {
		cmd.AddCommand(typesLanguageCommand(p, l))
		examples = append(examples, l.example())
	}
	cmd.Example = strings.Join(examples, "\n")
	return cmd
}

// typesLanguage is a language for which gem types writes types.
type typesLanguage struct {
	name, title, file, help string
	write                   func(*registry.Registry) []byte
}

var typesLanguages = []typesLanguage{
	{"typescript", "TypeScript", "tools.ts", `
It reads FILE, or else the registry that a worker would load here. It writes the
types of each tool's input and output, a map from the tools' names to both
(Tools), and the receipt with its three outcomes. A type accepts every value
that the schema accepts.
`, types.TypeScript},
	{"python", "Python", "gem_tools.py", `
It reads FILE, or else the registry that a worker would load here. It writes a
TypedDict for each tool's input and output, and DurableCall: the type of a
durable handler's call, with start, run and approve typed for each tool. The
file runs on Python 3.10 or newer, next to gem_handlers.py, and needs no other
package. Some types use extra_items (PEP 728), which pyright supports. A type
accepts every value that the schema accepts, except that an integer must be an
int: the schema also accepts 1.0.
`, types.Python},
}

func (l typesLanguage) example() string { return "  gem types " + l.name + " --out " + l.file }

func typesLanguageCommand(p *Program, l typesLanguage) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   l.name + " [FILE]",
		Short: "Write the types in " + l.title,
		Long: l.help + `
The same registry always gives the same text. A type is less exact than the
schema: it has no lengths, ranges, patterns or formats.`,
		Example: l.example(),
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			text := l.write(r)
			if out == "" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			if err := plainfile.Write(out, text, 0o644); err != nil {
				return fmt.Errorf("cannot write the types: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write, instead of stdout")
	return cmd
}
