package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// A release sets these: go build -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc". Where it does not, they come
// from what the Go command records in the binary.
var version, commit string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version and the commit of this program",
		Long:    describe("Print the version and the commit of this program", "A worker records the version in core_workers, and its log begins with it."),
		Example: "  gem version",
		Args:    takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	v, c := buildVersion()
	if c == "" {
		c = "unknown"
	}
	return fmt.Sprintf("gem %s (commit %s)", v, c)
}

// buildVersion returns the version, dev when nobody knows it, and the commit, which may be empty.
func buildVersion() (v, c string) {
	v, c = version, commit
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if v == "" && info.Main.Version != "(devel)" {
		v = info.Main.Version
	}
	if v == "" {
		v = "dev"
	}
	if c == "" {
		built := map[string]string{}
		for _, s := range info.Settings {
			built[s.Key] = s.Value
		}
		c = built["vcs.revision"]
		c = c[:min(len(c), 12)]
		if c != "" && built["vcs.modified"] == "true" {
			c += ", modified"
		}
	}
	return v, c
}
