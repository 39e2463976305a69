package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/notify"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func notifyCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Check the notices to people, test a channel, or stop all notices",
		Long: `
Notices tell people about questions, failures, refusals, budgets and schedules.
See docs/notices.md. check and test read the file or JSON in GEM_NOTIFY, or else
notify.json in the working directory.`,
		Example: "  gem notify check\n  gem notify test ops",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(notifyCheckCommand(p), notifyTestCommand(p), notifyOffCommand())
	return cmd
}

func notifyCheckCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a notify.json, and print every fault",
		Long: `
The exit code is 0 for a file that a worker of this program would accept,
otherwise 1: each channel's tool must be in the registry, its input must fit the
tool, and the tool's idempotency mode may not be none.`,
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, from, err := p.checkedNotify(args)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ok: %s, %s, version %s (%s)\n", count(len(set.Channels()), "channel"),
				count(set.Rules(), "rule"), set.Version, from)
			return err
		},
	}
}

// checkedNotify reads the file in args, or the one that a worker would load here, and compares it with the registry.
func (p *Program) checkedNotify(args []string) (set *notify.Set, from string, err error) {
	if len(args) > 0 {
		from = args[0]
		set, err = notify.ReadFile(from)
	} else {
		set, from, err = notify.Find(os.Getenv("GEM_NOTIFY"))
	}
	if err != nil {
		return nil, "", err
	}
	if set == nil {
		return nil, "", usage("found no %s: create it here, or set GEM_NOTIFY to its path", notify.File)
	}
	r, _, err := p.chosenRegistry(nil)
	if err != nil {
		return nil, "", err
	}
	return set, from, set.Check(r)
}

func notifyTestCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "test CHANNEL",
		Short: "Deliver a test notice through a channel, and print the receipt",
		Long: `
It makes the call that would deliver a notice, with the channel's tool and input,
and waits up to a minute for the receipt. The exit code is 0 if the call
succeeded.
` + usesDatabase,
		Example: "  gem notify test ops",
		Args:    takes("one channel", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, _, err := p.checkedNotify(nil)
			if err != nil {
				return err
			}
			tool, err := set.Tool(args[0])
			if err != nil {
				return usageError{err}
			}
			return makeCall(cmd, client.NewCall{Tool: tool, Input: set.Input(args[0], notify.TestMessage(time.Now()))}, true,
				time.Minute)
		},
	}
}

func notifyOffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "off",
		Short: "Stop all notices until a worker with a notify.json starts",
		Long: `
It discards undelivered notices and stops new ones. A worker that starts with a
notify.json turns them on again, so remove the file first.
` + usesDatabase,
		Args: takes("no arguments", 0, 0),
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, _ []string) error {
			dropped, err := store.StopNotices(cmd.Context(), db)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "notices are off; %s dropped\n", count(int(dropped), "notice"))
			return err
		}),
	}
}
