package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/rulesreplay"
	"github.com/gemworker/gem/rules"
	"github.com/spf13/cobra"
)

func rulesReplayCommand(p *Program) *cobra.Command {
	var (
		since, file string
		asJSON      bool
	)
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Judge recorded calls again, by their rules or by a draft",
		Long: `
It recomputes each decision of the rules about the calls of that time, from the
versions of the rules that judged them and the recorded earlier calls, in one
read-only snapshot while workers keep running. It prints two lines for each
decision that differs from the recorded one; the exit code is 1 if there is any.
It only counts decisions that it cannot recompute, for example because gem prune
has removed rows.

With --rules FILE these rules judge the calls instead, in the order of their
first claims. A call that they stop does not run, a call that must wait runs
later, and a call that needs an approval runs. It prints a line for each rule:
its actions on the calls that it meets, the number of these that had succeeded,
and the first call. The tools come from the registry that was recorded last.

Connect as the owner of the tables, who sees every row.
` + usesDatabase,
		Example: "  gem rules replay --since 7d\n  gem rules replay --since 30d --rules draft.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			back, err := age("--since", "calls were made", since)
			if err != nil {
				return err
			}
			var draft *rules.Set
			if file != "" {
				if draft, err = rules.ReadFile(file); err != nil {
					return fmt.Errorf("--rules: %w", err)
				}
			}
			ctx := cmd.Context()
			db, err := connect(ctx)
			if err != nil {
				return err
			}
			defer db.Close()
			if err := checkSchema(ctx, db); err != nil {
				return err
			}
			var now time.Time
			if err := db.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
				return refusal(err)
			}
			if draft != nil {
				return p.replayDraft(ctx, cmd.OutOrStdout(), db, now.Add(-back), draft, asJSON)
			}
			report, err := rulesreplay.Recorded(ctx, db, now.Add(-back))
			if err != nil {
				return refusal(err)
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				err = printReplayed(cmd.OutOrStdout(), report)
			}
			if err == nil && len(report.Differences) > 0 {
				err = exitError{code: exitFailed}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&since, "since", "7d", "the age of the oldest calls to judge, such as 90d, 12h or 1d12h (w, "+
		"d, h, m, s)")
	cmd.Flags().StringVar(&file, "rules", "", "a rules `file` that judges the calls instead")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

func (p *Program) replayDraft(ctx context.Context, out io.Writer, db rulesreplay.Beginner, since time.Time,
	draft *rules.Set, asJSON bool) error {
	r, _, err := p.chosenRegistry(nil)
	if err != nil {
		return err
	}
	report, err := rulesreplay.Draft(ctx, db, since, draft, r)
	switch {
	case err != nil:
		return refusal(err)
	case asJSON:
		return printJSON(out, report)
	}
	rows := [][]string{{"RULE", "ACTION", "MET", "WARNED", "BLOCKED", "ASKED", "DELAYED", "MEDIAN DELAY",
		"SUCCEEDED", "CALLS"}}
	for _, e := range report.Rules {
		delay := ""
		if e.Delayed > 0 {
			delay = span(time.Duration(e.MedianDelayMS) * time.Millisecond)
		}
		row := []string{e.Rule, string(e.Action)}
		for _, n := range []int{e.Met, e.Warned, e.Blocked, e.Asked, e.Delayed} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, append(row, delay, strconv.Itoa(e.Succeeded), strings.Join(e.Examples, " ")))
	}
	if err := table(out, rows); err != nil {
		return err
	}
	if err := printUnknown(out, report.Unknown, "not judged"); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s judged by rules %s, with the tools of registry %s: %d would have been stopped\n",
		count(report.Calls, "call"), draft.Version,
		printable(report.Registry), report.Stopped)
	return err
}

// printUnknown prints how many calls were left out, by reason.
func printUnknown(w io.Writer, unknown map[string]int, what string) error {
	for _, why := range slices.Sorted(maps.Keys(unknown)) {
		if _, err := fmt.Fprintf(w, "%s: %s: %s\n", what, count(unknown[why], "call"), why); err != nil {
			return err
		}
	}
	return nil
}

func printReplayed(w io.Writer, report *rulesreplay.Report) error {
	for _, d := range report.Differences {
		if _, err := fmt.Fprintf(w, "differs: %s %s, rules %s, as of %s\n  recorded:   %s\n  recomputed: %s\n", d.CallID,
			printable(d.Tool), printable(d.Version),
			d.At.UTC().Format(time.RFC3339Nano), printable(d.Recorded), printable(d.Recomputed)); err != nil {
			return err
		}
	}
	if err := printUnknown(w, report.Unknown, "not computed again"); err != nil {
		return err
	}
	verdict := "none differs"
	if n := len(report.Differences); n > 0 {
		verdict = fmt.Sprintf("%d differ", n)
	}
	_, err := fmt.Fprintf(w, "%s, %s computed again: %s\n", count(report.Calls, "call"),
		count(report.Decisions, "decision"), verdict)
	return err
}
