package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
)

func registryCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Check the tool registry, list and export its tools, or show their entries",
		Long: `
They read FILE, or else the file or JSON in TOOLS_REGISTRY, or else
tools.registry.json in the working directory, or else the registry that is built
into this program. "include" in it adds GEM's own entries, and the commands show
the registry with them, as a worker records it. They need no database; with
DATABASE_URL or a gem dev in this folder, list and check also look for tools in
SQL.`,
		Example: "  gem registry list\n  gem registry check tools.registry.json",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(registryCheckCommand(p), registryListCommand(p), registryShowCommand(p), registryExportCommand(p),
		registryImportCommand(p))
	return cmd
}

func registryCheckCommand(p *Program) *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a registry, and print every fault",
		Long: `
The exit code is 0 for a registry that a worker of this program would accept,
otherwise 1: its schemas must fit the structs of the handlers, the program must
have the domains of the included tools, and a tool in a backend has one attempt,
no calls and no deadline_ms. A warning names a schema whose inputs can be too
expensive to check. It prints the tools that signed-in users may not call, each
with the reason: "frontends": true in an entry or an override opens the tool.
With --against it compares the tools with an earlier file: it prints the
additions, removals and changes and, like a worker, rejects other contents under
the same version. With DATABASE_URL or a gem dev in this folder, it looks for
the SQL functions that the tools need.`,
		Example: "  gem registry check\n  git show main:tools.registry.json > old.json && gem registry check --against " +
			"old.json",
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, from, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			d, _, err := p.loadDomains(os.Getenv("GEM_DOMAINS"))
			if err != nil {
				return err
			}
			bound, without, err := p.fit(r, d)
			if err != nil {
				return err
			}
			if without != "" { // unless it is in SQL
				place, note, done := lookForFunctions(cmd.Context(), bound)
				defer done()
				if without, err = fit(r, bound); err != nil {
					return err
				}
				for _, t := range r.Tools() {
					if why := place.Fault(t.Name); why != "" {
						fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: calls end as not_configured: %s\n", t.Name, why)
					}
				}
				for _, text := range []string{note, without} {
					if text != "" {
						fmt.Fprintln(cmd.ErrOrStderr(), "note:", text)
					}
				}
			}
			for _, note := range domainsWithoutTools(d, r) {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			said := []string{fmt.Sprintf("ok: %s, version %s (%s)", toolsOf(r), r.Version, from)}
			for _, warning := range r.Warnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
			}
			if against != "" {
				old, err := registry.ReadFile(against)
				if err != nil {
					return fmt.Errorf("--against: %w", err)
				}
				if err := registry.CheckUpgrade(old, r); err != nil {
					return err
				}
				said = append(said, registry.Compare(old, r)...)
				if len(said) == 1 {
					said = append(said, "no tool changed against "+against)
				}
			}
			for _, t := range r.Tools() {
				if why := t.ClosedBecause(); why != "" {
					said = append(said, fmt.Sprintf("closed to signed-in users: %s %s", t.Name, why))
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(said, "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "an earlier registry `file` to compare with")
	return cmd
}

func registryListCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "list [FILE]",
		Short: "List the tools, and the function of each",
		Long: `
It prints a line for each tool: its idempotency (with the key field, if it is
keyed), its timeout, its permissions, and the handler's file and function, or
"no handler": calls of such a tool end as not_configured. With DATABASE_URL or a
gem dev in this folder, it looks for tools that are functions in SQL.`,
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			bound, err := p.boundHere(r)
			if err != nil {
				return err
			}
			place, note, done := lookForFunctions(cmd.Context(), bound)
			defer done()
			alone := false
			rows := [][]string{{"TOOL", "IDEMPOTENCY", "TIMEOUT", "PERMISSIONS", "HANDLER"}}
			for _, t := range r.Tools() {
				idempotency, handler := string(t.Idempotency.Mode), "no handler"
				if field := t.Idempotency.KeyField; field != "" {
					idempotency = "keyed by " + field
				}
				h, ok := bound.For(t.Name)
				if alone = alone || !ok; ok {
					handler = h.File + " " + h.Func + hidden(place, t, h)
				}
				rows = append(rows, []string{t.Name, idempotency, span(t.Timeout), cmp.Or(strings.Join(t.Permissions, " "), "-"),
					handler})
			}
			if alone && note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
}

func registryShowCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "show TOOL…",
		Short: "Print the entries of tools",
		Long: `
It prints JSON, with sorted keys and with the overrides of the registry. It also
shows GEM's tools that the registry lacks; a note explains how to include them.
It reads no FILE.`,
		Example: "  gem registry show leads.create\n  gem registry show llm.chat",
		Args:    takes("the names of tools", 1, 1000),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, from, err := p.chosenRegistry(nil)
			if err != nil {
				return err
			}
			var entries []json.RawMessage
			for _, name := range args {
				t, note, err := p.shown(r, from, name)
				if err != nil {
					return err
				}
				if note != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
				}
				entries = append(entries, t.JSON())
			}
			return printJSON(cmd.OutOrStdout(), entries)
		},
	}
}

// toolsOf counts the tools of a registry by the source of their entries.
func toolsOf(r *registry.Registry) string {
	var own, included, always int
	for _, t := range r.Tools() {
		switch {
		case t.Included && slices.Contains(registry.Always, t.Name):
			always++
		case t.Included:
			included++
		default:
			own++
		}
	}
	parts := []string{fmt.Sprintf("%d defined in the registry", own)}
	if included > 0 {
		parts = append(parts, fmt.Sprintf("%d included", included))
	}
	if always > 0 {
		parts = append(parts, fmt.Sprintf("%d that every registry has", always))
	}
	return fmt.Sprintf("%s (%s)", count(own+included+always, "tool"), strings.Join(parts, ", "))
}

// shown returns a tool from the registry r, otherwise from GEM's own entries or the built-in registry. note explains
// how to add the tool to a registry that lacks it.
func (p *Program) shown(r *registry.Registry, from, name string) (t *registry.Tool, note string, err error) {
	if t, ok := r.Tool(name); ok {
		return t, "", nil
	}
	if t, ok := registry.Own().Tool(name); ok {
		return t, fmt.Sprintf(`%s comes with GEM, and the registry (%s) lacks it: to include it, add %[1]q to "include"`,
			name, from), nil
	}
	builtIn, err := registry.Parse(p.Registry)
	if err != nil {
		return nil, "", fmt.Errorf("the registry (built in) is invalid:\n%w", err)
	}
	if t, ok := builtIn.Tool(name); ok {
		return t, fmt.Sprintf(`%s is built into this program, and the registry (%s) lacks it: to use it, copy this entry `+
			`into "tools"`, name, from), nil
	}
	return nil, "", usage("the registry (%s) has no tool %q%s", from, name, r.DidYouMean(name))
}

// chosenRegistry loads the file of the arguments, or the one that a worker would load here.
func (p *Program) chosenRegistry(args []string) (*registry.Registry, string, error) {
	return p.loadRegistry(cmp.Or(strings.Join(args, ""), os.Getenv("TOOLS_REGISTRY")))
}
