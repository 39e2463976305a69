package cli

import (
	"fmt"

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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, l := range typesLanguages {
		cmd.AddCommand(typesLanguageCommand(p, l))
	}
	return cmd
}

// typesLanguage is a language in which types are written.
type typesLanguage struct {
	name, title, file, has string
	write                  func(*registry.Registry) []byte
}

var typesLanguages = []typesLanguage{
	{"typescript", "TypeScript", "tools.ts", `
It reads FILE, or else the registry that a worker would load here. It writes the
types of each tool's input and output, a map from the tools' names to both
(Tools), and the receipt with its three outcomes.
`, types.TypeScript},
	{"python", "Python", "gem_tools.py", `
It reads FILE, or else the registry that a worker would load here. It writes a
TypedDict for each tool's input and output, and DurableCall: the type of a
durable handler's call, whose start, run and approve know the tools. The file
runs on Python 3.10 or newer, next to gem_handlers.py, and needs no package.
Some types have extra_items (PEP 728), which pyright knows.
`, types.Python},
}

func typesLanguageCommand(p *Program, l typesLanguage) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   l.name + " [FILE]",
		Short: "Write the types in " + l.title,
		Long: l.has + `
The same registry always gives the same text. A type accepts every value that
the schema accepts, but is less exact: it has no lengths, ranges, patterns or
formats.`,
		Example: "  gem types " + l.name + " --out " + l.file,
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
