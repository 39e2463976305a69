package cli

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/llm/routes"
	"github.com/spf13/cobra"
)

func versionCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the files that it would use",
		Long: `
A worker records the version in core_workers, and its log begins with it. The
registry, the rules, the domains elsewhere and the routes of models are those
that a worker would load here, with where they come from.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return printVersion(p, cmd) },
	}
}

func printVersion(p *Program, cmd *cobra.Command) error {
	version, commit := p.version()
	fmt.Fprintf(cmd.OutOrStdout(), "gem %s (commit %s)\n", version, cmp.Or(commit, "unknown"))
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/gemworker/gem" { // the program is another module's
				fmt.Fprintf(cmd.OutOrStdout(), "built from %s with %s %s\n", info.Main.Path, dep.Path, dep.Version)
			}
		}
	}
	reg, from, err := p.chosenRegistry(nil)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "registry %s, %s (%s)\n", reg.Version, count(len(reg.Tools()), "tool"), from)
	set, from, err := p.loadRules(os.Getenv("TOOLS_RULES"))
	switch {
	case err != nil:
		return usageError{err}
	case set == nil:
		fmt.Fprintln(cmd.OutOrStdout(), "no rules")
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "rules %s, %s (%s)\n", set.Version, count(len(set.Rules()), "rule"), from)
	}
	domains, from, err := p.loadDomains(os.Getenv("GEM_DOMAINS"))
	switch {
	case err != nil:
		return usageError{err}
	case domains == nil:
		fmt.Fprintln(cmd.OutOrStdout(), "no domains elsewhere")
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "domains elsewhere %s, %s (%s)\n", domains.Version, strings.Join(domains.Names(), ", "), from)
	}
	if !p.asksModels() {
		return nil
	}
	all, from, err := routes.Find(os.Getenv("LLM_ROUTES"))
	switch {
	case err != nil:
		return usageError{err}
	case all == nil:
		fmt.Fprintln(cmd.OutOrStdout(), "no routes of models")
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "routes of models %s, %s (%s)\n", all.Version, count(len(all.Routes()), "route"), from)
	}
	return nil
}

// asksModels reports whether the program has the domain llm.
func (p *Program) asksModels() bool {
	return slices.ContainsFunc(handlers.Domains(p.Domains...), func(d handlers.Domain) bool { return d.Name() == "llm" })
}

// version returns the version, dev when nobody knows it, and the commit, which may be empty.
func (p *Program) version() (version, commit string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(p.Version, p.Commit, info, os.Getenv)
}

// versionOf prefers what the build was told to what the Go command recorded. Render builds an image without telling it the
// commit, and tells its processes.
func versionOf(version, commit string, recorded *debug.BuildInfo, env func(string) string) (v, c string) {
	if recorded.Main.Version != "(devel)" {
		version = cmp.Or(version, recorded.Main.Version)
	}
	built := map[string]string{}
	for _, s := range recorded.Settings {
		built[s.Key] = s.Value
	}
	modified := ""
	if commit == "" && built["vcs.revision"] != "" && built["vcs.modified"] == "true" {
		modified = ", modified"
	}
	c = cmp.Or(commit, built["vcs.revision"], strings.TrimSpace(env("RENDER_GIT_COMMIT")))
	return cmp.Or(version, "dev"), c[:min(len(c), 12)] + modified
}
