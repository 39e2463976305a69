package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gemworker/gem/client/view"
	"github.com/spf13/cobra"
)

func epochsCommand() *cobra.Command {
	all := report[[]view.ServerChange]{read: view.ServerChanges, text: printServerChanges}
	all.hint = func(changes []view.ServerChange) string {
		if len(changes) == 0 {
			return "No worker has met a Postgres server yet. Start one: gem worker"
		}
		return ""
	}
	cmd := &cobra.Command{
		Use:   "epochs [EPOCH]",
		Short: "List the changes of the Postgres server, and what each lost",
		Long: `
A failover to a standby, or a restored backup, may lose the last commits. The
workers that live on write again what they still know. It lists the servers that
they met in the last 90 days. WHY is first, restart, promotion (a standby took
over), restore (another cluster), or unknown. Only the last three may have lost
commits.

With the number of an epoch, it lists the calls whose ends were lost:

  restored   the receipt was written again, with its id
  unknown    the call ended as outcome_unknown: look for its effect
  ran_twice  the call had run again, or another call had used its key
  missing    the call is gone, and its worker could not insert it again

The other calls run again. They are counted as RAN AGAIN: all their effects were
in Postgres, which lost them too.
` + usesDatabaseAsMonitor,
		Example: "  gem epochs\n  gem epochs 7\n  gem epochs --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return all.run(cmd)
			}
			epoch, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return usageError{fmt.Errorf("%s is not the number of an epoch: gem epochs lists them", printable(args[0]))}
			}
			one := report[*view.ServerChange]{asJSON: all.asJSON, watch: all.watch, text: printServerChange,
				read: func(ctx context.Context, db view.DB) (*view.ServerChange, error) {
					change, err := view.ReadServerChange(ctx, db, epoch)
					if err == nil && change == nil {
						err = fmt.Errorf("there is no epoch %d: gem epochs lists them", epoch)
					}
					return change, err
				}}
			return one.run(cmd)
		},
	}
	all.flags(cmd)
	return cmd
}

func printServerChanges(w io.Writer, changes []view.ServerChange) error {
	if len(changes) == 0 {
		return nil
	}
	rows := [][]string{{"EPOCH", "AT", "WHY", "TIMELINE", "RESTORED", "UNKNOWN", "RAN TWICE", "MISSING", "RAN AGAIN"}}
	for _, c := range changes {
		rows = append(rows, []string{fmt.Sprint(c.Epoch), moment(c.At), c.Why, timeline(c.Timeline), fmt.Sprint(c.Restored),
			fmt.Sprint(c.Unknown), fmt.Sprint(c.RanTwice), fmt.Sprint(c.Missing), fmt.Sprint(c.Reran)})
	}
	return table(w, rows)
}

func printServerChange(w io.Writer, c *view.ServerChange) error {
	text := serverChanged(c)
	fmt.Fprintln(w, strings.ToUpper(text[:1])+text[1:]+".")
	if len(c.Calls) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows := [][]string{{"CALL", "TOOL", "WHAT", "FOUND AS", "ATTEMPT", "RECEIPT", "WORKER"}}
	for _, l := range c.Calls {
		rows = append(rows, []string{l.CallID, name(l.Tool), l.What, l.Found, fmt.Sprint(l.Attempt), l.ReceiptID, l.WorkerID})
	}
	return table(w, rows)
}

// serverChanged describes a change of the server in one line, without a period.
func serverChanged(c *view.ServerChange) string {
	why := c.Why
	if c.EarlierTimeline != "" && c.Timeline != c.EarlierTimeline {
		why += fmt.Sprintf(", timeline %s → %s", timeline(c.EarlierTimeline), timeline(c.Timeline))
	}
	text := fmt.Sprintf("the Postgres server changed at %s (%s)", moment(c.At), why)
	if !c.MayLackCommits {
		return text
	}
	text += ": "
	var lost []string
	for _, one := range []struct {
		n    int
		text string
	}{
		{c.Restored, count(c.Restored, "receipt") + " restored"},
		{c.Unknown, does(c.Unknown, "end") + " as outcome_unknown"},
		{c.RanTwice, count(c.RanTwice, "call") + " ran twice"},
		{c.Missing, count(c.Missing, "call") + " missing"},
		{c.Reran, does(c.Reran, "run") + " again"},
	} {
		if one.n > 0 {
			lost = append(lost, one.text)
		}
	}
	if len(lost) == 0 {
		return text + "it lacks nothing that the workers remember"
	}
	return text + strings.Join(lost, ", ")
}

// timeline returns the number of a timeline, which Postgres prints in hexadecimal. It is empty if it is unknown.
func timeline(hex string) string {
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return ""
	}
	return fmt.Sprint(n)
}
