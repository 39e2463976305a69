package cli

import (
	"cmp"
	"context"
	"encoding/json"
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
It prints the journal of the call as a timeline: the time, the time since the
first event, the event, the attempt and the worker. A handler that waits runs
again afterwards: each run is an attempt. The last line shows the receipt, if
there is one. With --results it also prints the full results of the call's steps
and calls: for an agent, the whole conversation.`,
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
	cmd.Flags().BoolVar(&results, "results", false, "also print the results of its steps and calls")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events as a JSON list")
	return cmd
}

func trace(ctx context.Context, db *pgxpool.Pool, id string, journal []receipts.Event, out io.Writer) error {
	c, err := client.Get(ctx, db, id)
	if err != nil {
		return err
	}
	decided, err := decisions(ctx, db, journal)
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
		happened := prose.Happened(e)
		if decision := decided[prose.DataOf(e).CallID]; e.Event == "returned" && decision != "" {
			happened = "the question to people: " + decision
		}
		on := e.WorkerID
		if e.Event == "returned" || e.Event == "woken" {
			on = "" // another call's worker, or the timers, wrote it
		}
		rows = append(rows, []string{
			e.At.UTC().Format("2006-01-02 15:04:05.000"),
			offset(e.At.Sub(journal[0].At)),
			e.Event, attempt, on, happened,
		})
	}
	if err := table(out, rows); err != nil {
		return err
	}

	if err := printChildren(ctx, db, id, decided, out); err != nil {
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

// decisions returns people's decisions about the approvals that a call asked for, by the id of the question.
func decisions(ctx context.Context, db *pgxpool.Pool, journal []receipts.Event) (map[string]string, error) {
	decided := map[string]string{}
	for _, e := range journal {
		data := prose.DataOf(e)
		if e.Event != "called" || data.Tool != "wait.approval" {
			continue
		}
		r, err := client.Receipt(ctx, db, data.CallID)
		_, pruned := errors.AsType[*client.NotFoundError](err)
		switch {
		case pruned, errors.Is(err, client.ErrNoReceipt):
		case err != nil:
			return nil, err
		default:
			decided[data.CallID] = decision(r)
		}
	}
	return decided, nil
}

// decision reports who approved or denied, or that the question was cancelled. Otherwise it returns an empty text.
func decision(r *receipts.Receipt) string {
	var is struct {
		Approved   *bool
		By, Reason string
	}
	if e, failed := r.Error(); failed && e.Code == "cancelled" {
		return "withdrawn"
	}
	if json.Unmarshal(r.Result, &is) != nil || is.Approved == nil {
		return ""
	}
	if is.By == "" {
		return "nobody decided in time"
	}
	said := "denied by "
	if *is.Approved {
		said = "approved by "
	}
	said += cut(printable(is.By), 200)
	if is.Reason != "" {
		said += ": " + cut(printable(is.Reason), 200)
	}
	return said
}

// mostChildren is the number of calls below another that are printed.
const mostChildren = 200

// printChildren prints the calls that the handler made and their own calls, as a tree. decided has people's
// decisions, by the id of the question.
func printChildren(ctx context.Context, db *pgxpool.Pool, id string, decided map[string]string, out io.Writer) error {
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
		c.Status = cmp.Or(decided[c.ID], c.Status)
		if i == mostChildren {
			_, err = fmt.Fprintln(out, "  and more")
			break
		}
		if _, err = fmt.Fprintf(out, "%s%s  %s  %s  %s\n", strings.Repeat("  ", c.Depth), printable(c.Name), c.Status,
			cut(printable(c.Tool), 200), c.ID); err != nil {
			break
		}
	}
	return err
}

// offset returns the time between two events, with milliseconds if it is below a minute.
func offset(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("+%.3f s", d.Seconds())
	}
	return "+" + span(d)
}
