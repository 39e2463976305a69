package cli

import (
	"fmt"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/types"
	"github.com/spf13/cobra"
)

func typesCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "types",
		Short: "Write types for the tools' inputs and outputs in a programming language",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(typesTypeScriptCommand(p))
	return cmd
}

func typesTypeScriptCommand(p *Program) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "typescript [FILE]",
		Short: "Write the types in TypeScript",
		Long: `
It reads FILE, or else the registry that a worker would load here. It writes the
types of each tool's input and output, a map from the tools' names to both
(Tools), and the receipt with its three outcomes. The same registry always gives
the same text. A type accepts every value that the schema accepts, but is less
exact: it has no lengths, ranges, patterns or formats.`,
		Example: "  gem types typescript --out tools.ts",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			types := types.TypeScript(r)
			if out == "" {
				_, err = cmd.OutOrStdout().Write(types)
				return err
			}
			if err := plainfile.Write(out, types, 0o644); err != nil {
				return fmt.Errorf("cannot write the types: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write, instead of stdout")
	return cmd
}
