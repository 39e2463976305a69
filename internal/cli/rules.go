package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/spf13/cobra"
)

func rulesCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Check the rules for calls, list them by tool, test or replay them, or require them",
		Long: `
Rules restrict calls: they warn, let a call wait, ask a person, or block it.
check and list read FILE, or else the file or JSON in TOOLS_RULES, or else
rules.json in the working directory, or else the rules that are built into this
program, if any. They check the rules against the registry that a worker would
load here. Only replay and require need a database.`,
		Example: "  gem rules list\n  gem rules check rules.json",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(rulesCheckCommand(p), rulesListCommand(p), rulesTestCommand(p), rulesReplayCommand(p),
		rulesRequireCommand())
	return cmd
}

func rulesCheckCommand(p *Program) *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check rules, and print every fault",
		Long: `
The exit code is 0 for rules that a worker of this program would accept,
otherwise 1: the tools must be in the registry, and a rule that blocks by a
handler's effects needs a transactional handler. A note names settings that are
allowed but may surprise. With --against it compares the rules with an earlier
file: it prints the additions, removals and changes and, like a worker, rejects
other contents under the same version.`,
		Example: "  gem rules check\n  git show main:rules.json > old.json && gem rules check --against old.json",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, from, err := p.chosenRules(args)
			if err != nil {
				return err
			}
			r, _, err := p.chosenRegistry(nil)
			if err != nil {
				return err
			}
			bound, err := p.boundHere(r)
			if err != nil {
				return err
			}
			notes, err := rulesFit(set, r, bound)
			for _, note := range notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			if err != nil {
				return err
			}
			said := []string{fmt.Sprintf("ok: %s, version %s (%s)", count(len(set.Rules()), "rule"), set.Version, from)}
			if against != "" {
				old, err := rules.ReadFile(against)
				if err != nil {
					return fmt.Errorf("--against: %w", err)
				}
				if err := rules.CheckUpgrade(old, set); err != nil {
					return err
				}
				said = append(said, rules.Compare(old, set)...)
				if len(said) == 1 {
					said = append(said, "no rule changed against "+against)
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(said, "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "an earlier rules `file` to compare with")
	return cmd
}

func rulesListCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "list [FILE]",
		Short: "List the tools, and the rules for each",
		Long: `
It prints a line for each tool and rule: the rule's action and its condition. It
omits tools without rules.`,
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, _, err := p.chosenRules(args)
			if err != nil {
				return err
			}
			r, _, err := p.chosenRegistry(nil)
			if err != nil {
				return err
			}
			rows := [][]string{{"TOOL", "RULE", "ACTION", "LOOKS AT"}}
			for _, tool := range r.Tools() {
				for _, rule := range set.Rules() {
					if rule.IsFor(tool) {
						rows = append(rows, []string{tool.Name, rule.Name, string(rule.Action), rule.LooksAt()})
					}
				}
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
}

// loadRules reads the rules that chosen (TOOLS_RULES) names or holds, those in the working directory, or the
// program's own, in this order. from is their source. If there are none, set and err are nil.
func (p *Program) loadRules(chosen string) (set *rules.Set, from string, err error) {
	const file = "rules.json"
	if chosen = strings.TrimSpace(chosen); chosen == "" {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			chosen = file
		}
	}
	contents, from := p.Rules, "built in"
	switch {
	case strings.HasPrefix(chosen, "{"):
		contents, from = []byte(chosen), "the JSON of TOOLS_RULES"
	case chosen != "":
		set, err = rules.ReadFile(chosen)
		return set, chosen, err
	case len(contents) == 0:
		return nil, "none", nil
	}
	if set, err = rules.Parse(contents); err != nil {
		err = fmt.Errorf("the rules (%s) are invalid:\n%w", from, err)
	}
	return set, from, err
}

// chosenRules loads the file of the arguments, or the rules that a worker would load here. It returns an error if
// there are none.
func (p *Program) chosenRules(args []string) (*rules.Set, string, error) {
	set, from, err := p.loadRules(cmp.Or(strings.Join(args, ""), os.Getenv("TOOLS_RULES")))
	if err == nil && set == nil {
		err = errors.New("there are no rules here: name a FILE, set TOOLS_RULES, or write them into rules.json")
	}
	return set, from, err
}

// rulesFit holds the rules against the registry and the program's handlers. The error has a line for each defect.
func rulesFit(set *rules.Set, r *registry.Registry, bound *binding.Handlers) (notes []string, err error) {
	found, notes := set.Check(r)
	for _, tool := range r.Tools() {
		rule, blocks := set.BlocksResult(tool)
		if handler, ok := bound.For(tool.Name); blocks && ok && !handler.Transactional {
			found = append(found, defects.Defect{Part: rule, Field: "action", Problem: fmt.Sprintf("is block, but the effects "+
				"of %s cannot be rolled back, because its handler %s is not transactional: write warn, name other tools, or test "+
				"the input", tool.Name, handler.Func)})
		}
	}
	if len(found) > 0 {
		return notes, fmt.Errorf("the rules do not fit the registry and the program:\n%w",
			&defects.InvalidError{Defects: found})
	}
	return notes, nil
}
