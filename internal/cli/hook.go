package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/hook"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/rules"
	"github.com/spf13/cobra"
)

func hookCommand(p *Program) *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Judge the actions of a coding agent, as its hook",
		Long: `
It handles the events PreToolUse, PostToolUse and PostToolUseFailure of Claude
Code and similar agents. It reads the event from stdin, and prints the verdict
of the rules in "coding" of rules.json. TOOLS_RULES is the path or the JSON of
that file; the default is rules.json in CLAUDE_PROJECT_DIR, then in the working
directory. All rules are off unless the file turns them on:

  no_edit_unread          an edit of a file that was not read
  test_after_edits        an edit after 3 others without a test run
  no_commit_failing       a commit while a test fails
  fix_regressions_first   an edit elsewhere, while another edit broke a test
  no_thrashing            an edit of a file after 3 that left tests failing
  no_pointless_rerun      a test run with no change since the last one
  scope_check             an edit of a file that was not read, and imports nothing
                          that was edited

Each is "warn", "ask" or "block", or a list with options, as in
["block", {"threshold": 5, "unknown": "ask"}]. The Postgres of DATABASE_URL
stores the history of a session for at most 30 days: the files that were read
and edited, and the tests that ran and failed. If Postgres does not answer
within GEM_HOOK_TIMEOUT (200ms), the action is allowed with a message or, if the
rule's unknown is "ask", the user is asked.

The exit code is always 0. No output means that no rule objects; the
agent's own permissions decide in any case.`,
		Example: `  gem hook < event.json
  {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "gem hook"}]}]}}`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().StringVar(&source, "source", "claude-code",
		"the kind of agent; each kind has its own sessions")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), "gem hook: "+format+"\n", args...) }
		if len(args) > 0 {
			say("it takes no arguments, and ignores %q", args)
		}
		timeout, err := hookTimeout(os.Getenv("GEM_HOOK_TIMEOUT"))
		if err != nil {
			say("%v", err)
		}
		dir, err := os.Getwd()
		if err != nil {
			dir = string(filepath.Separator)
		}
		type outcome struct {
			printed []byte
			err     error
		}
		ran := make(chan outcome, 1)
		go func() {
			printed, err := hook.Run(cmd.Context(), hook.Options{
				Source: source, Coding: p.codingRules, DatabaseURL: strings.TrimSpace(os.Getenv("DATABASE_URL")), Timeout: timeout,
				Dir: dir, Reason: refusal,
			}, cmd.InOrStdin())
			ran <- outcome{printed, err}
		}()
		select {
		case o := <-ran:
			if o.err != nil {
				say("%v", o.err)
			}
			_, _ = cmd.OutOrStdout().Write(o.printed)
		case <-cmd.Context().Done(): // nothing else ends a read of stdin that nobody closes
			say("%v", context.Cause(cmd.Context()))
		}
		return nil
	}
	// For an agent the exit code 2, wrong usage, would mean that the action is blocked.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		fmt.Fprintf(cmd.ErrOrStderr(), "gem hook: %v\n", err)
		return exitError{code: exitDone}
	})
	return cmd
}

// codingRules returns the rules of the file that TOOLS_RULES names or holds, of rules.json in the agent's project or
// the working directory, or of the program, in this order.
func (p *Program) codingRules() (rules.Coding, error) {
	chosen := strings.TrimSpace(os.Getenv("TOOLS_RULES"))
	if strings.HasPrefix(chosen, "{") {
		return rules.ReadCoding([]byte(chosen))
	}
	paths := []string{chosen}
	if chosen == "" {
		paths = []string{filepath.Join(os.Getenv("CLAUDE_PROJECT_DIR"), "rules.json"), "rules.json"}
	}
	for _, path := range paths {
		data, err := plainfile.Read(path)
		switch {
		case os.IsNotExist(err) && chosen == "":
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot read the rules: %w", err)
		}
		coding, err := rules.ReadCoding(data)
		if err != nil {
			err = fmt.Errorf("the rules %s are invalid: %w", path, err)
		}
		return coding, err
	}
	if len(p.Rules) == 0 {
		return nil, nil
	}
	return rules.ReadCoding(p.Rules)
}

// hookTimeout reads the variable GEM_HOOK_TIMEOUT. With an error it returns the default.
func hookTimeout(text string) (time.Duration, error) {
	const usual = 200 * time.Millisecond
	if text = strings.TrimSpace(text); text == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond || d > time.Minute {
		return usual, fmt.Errorf("GEM_HOOK_TIMEOUT is %q, and must be a duration from 1ms to 1m, such as 200ms", text)
	}
	return d, nil
}
