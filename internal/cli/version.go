package cli

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/gemworker/gem/notify"
	"github.com/spf13/cobra"
)

func versionCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the files that it would use",
		Long: `
A worker records the version in core_workers, and its log begins with it. The
command shows the registry, the rules, the notices, the backends and the routes
of models that a worker would load here, with their origins.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return printVersion(p, cmd) },
	}
}

func printVersion(p *Program, cmd *cobra.Command) error {
	version, commit := p.version()
	fmt.Fprintln(cmd.OutOrStdout(), versionLine(version, commit))
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
	notices, from, err := notify.Find(os.Getenv("GEM_NOTIFY"))
	switch {
	case err != nil:
		return usageError{err}
	case notices != nil:
		fmt.Fprintf(cmd.OutOrStdout(), "notices %s, %s (%s)\n", notices.Version, count(len(notices.Channels()), "channel"),
			from)
	}
	domains, from, err := p.loadDomains(os.Getenv("GEM_DOMAINS"))
	switch {
	case err != nil:
		return usageError{err}
	case domains == nil:
		fmt.Fprintln(cmd.OutOrStdout(), "no backends")
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "backends %s, %s (%s)\n", domains.Version,
			strings.Join(domains.Names(), ", "), from)
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

const developmentVersion = "dev"

// versionLine returns the version of this program. It leaves out an unknown commit, since "gem dev" would read as a
// command.
func versionLine(version, commit string) string {
	if version == developmentVersion {
		version = "(development build)"
	}
	if commit == "" {
		return "gem " + version
	}
	return fmt.Sprintf("gem %s (commit %s)", version, commit)
}

// asksModels reports whether the program has the domain llm.
func (p *Program) asksModels() bool {
	return slices.ContainsFunc(binding.Domains(p.Domains...), func(d handlers.Domain) bool { return d.Name() == "llm" })
}

// version returns the version, or dev if it is unknown, and the commit, which may be empty.
func (p *Program) version() (version, commit string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(p.Version, p.Commit, info, os.Getenv)
}

// versionOf prefers the values that the build set to the Go command's record. Render does not pass the commit to its
// builds, only to its processes.
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
	return cmp.Or(version, developmentVersion), c[:min(len(c), 12)] + modified
}
