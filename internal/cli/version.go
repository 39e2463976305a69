package cli

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// A build sets these: go build -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc", as the Dockerfile does with its
// arguments VERSION and COMMIT. What it leaves empty comes from what the Go command records in the binary.
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
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(version, commit, info, os.Getenv)
}

// versionOf takes what the build was told before what the Go command recorded. Render builds an image without telling it
// the commit, and tells its processes.
func versionOf(version, commit string, recorded *debug.BuildInfo, env func(string) string) (v, c string) {
	v, c = version, commit
	if v == "" && recorded.Main.Version != "(devel)" {
		v = recorded.Main.Version
	}
	if v == "" {
		v = "dev"
	}
	modified := ""
	if c == "" {
		built := map[string]string{}
		for _, s := range recorded.Settings {
			built[s.Key] = s.Value
		}
		c = built["vcs.revision"]
		if built["vcs.modified"] == "true" {
			modified = ", modified"
		}
	}
	if c == "" {
		c, modified = strings.TrimSpace(env("RENDER_GIT_COMMIT")), ""
	}
	return v, c[:min(len(c), 12)] + modified
}
