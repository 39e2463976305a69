package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func traceCommand() *cobra.Command {
	var asJSON, results bool
	cmd := aboutCall(&cobra.Command{
		Use:   "trace",
		Short: "Print everything that happened to a call, in order",
		Long: `
The journal of the call is printed as a timeline: when, how long after the
first event, what, in which attempt, on which worker. Its last line shows the
receipt, if there is one. With --results, what its steps and the calls of its
handler returned follows, in full: of an agent, the whole conversation.`,
		Example: "\n  gem trace --json " + exampleID + "\n  gem trace --results " + exampleID,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		journal, err := client.Journal(ctx, db, id)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(out, journal)
		}
		if err := trace(ctx, db, id, journal, out); err != nil || !results {
			return err
		}
		return printResults(ctx, db, journal, out)
	})
	cmd.Flags().BoolVar(&results, "results", false, "also print what its steps and calls returned")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events as a JSON list")
	return cmd
}

func trace(ctx context.Context, db *pgxpool.Pool, id string, journal []receipts.Event, out io.Writer) error {
	c, err := client.Get(ctx, db, id)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "call %s: %s\n\n", c.ID, cut(c.Tool, 200))
	rows := [][]string{{"TIME (UTC)", "AFTER", "EVENT", "ATTEMPT", "WORKER", "WHAT HAPPENED"}}
	for _, e := range journal {
		attempt := ""
		if e.Attempt > 0 {
			attempt = strconv.Itoa(e.Attempt)
		}
		rows = append(rows, []string{
			e.At.UTC().Format("2006-01-02 15:04:05.000"),
			offset(e.At.Sub(journal[0].At)),
			e.Event, attempt, e.WorkerID, prose.Happened(e),
		})
	}
	if err := table(out, rows); err != nil {
		return err
	}

	if err := printChildren(ctx, db, id, out); err != nil {
		return err
	}
	r, err := client.Receipt(ctx, db, id)
	switch {
	case errors.Is(err, client.ErrNoReceipt):
		_, err = fmt.Fprintf(out, "\nno receipt yet: the call is %s\n", c.Status)
	case err == nil:
		_, err = fmt.Fprintf(out, "\nreceipt %s: %s\n", r.ID, cut(prose.Ending(r), 300))
	}
	return err
}

// mostChildren is how many calls below another are printed.
const mostChildren = 200

// printChildren prints the calls that the handler made, and those that theirs made, as a tree.
func printChildren(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
	children, err := client.Children(ctx, db, id, mostChildren+1)
	if err != nil || len(children) == 0 {
		return err
	}
	asks := func(c client.Child) bool { return prose.AsksPeople([]string{c.Name}) }
	switch made := slices.ContainsFunc(children, func(c client.Child) bool { return !asks(c) }); {
	case made && asks(children[0]):
		fmt.Fprintln(out, "\nRules asked people about it, and its handler made the other calls:")
	case made:
		fmt.Fprintln(out, "\nIts handler made these calls:")
	default:
		fmt.Fprintln(out, "\nRules asked people about it:")
	}
	for i, c := range children {
		if asks(c) {
			c.Name = "a question"
		}
		if i == mostChildren {
			_, err = fmt.Fprintln(out, "  and more")
			break
		}
		if _, err = fmt.Fprintf(out, "%s%s  %s  %s  %s\n", strings.Repeat("  ", c.Depth), printable(c.Name), c.Status, cut(printable(c.Tool), 200), c.ID); err != nil {
			break
		}
	}
	return err
}

// offset writes the time between two events, exact to the millisecond below a minute.
func offset(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("+%.3f s", d.Seconds())
	}
	return "+" + span(d)
}
