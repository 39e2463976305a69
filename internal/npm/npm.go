// Package npm installs packages with the user's npm client, which knows the user's proxy and registry and verifies what
// it downloads.
package npm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// environment is the one that this process started with. gem dev adds the variables of a folder's .env later, and a
// folder must not choose what npm loads or where it downloads from.
var environment = os.Environ()

// Install installs a package, such as name@1.2.3, into dir/node_modules, without its scripts. The error has the output
// of the client, or is the cause of ctx.
func Install(ctx context.Context, client, dir, pkg string, flags ...string) error {
	args := slices.Concat([]string{"install"}, flags, []string{"--prefix", dir, "--global=false", "--ignore-scripts",
		"--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", pkg})
	cmd := exec.CommandContext(ctx, client, args...)
	cmd.Dir = dir // the current folder may have npm settings of another project
	cmd.Env = environment
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return context.Cause(ctx)
}
