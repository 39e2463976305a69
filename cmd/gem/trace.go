package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/spf13/cobra"
)

func traceCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "trace CALL_ID",
		Short: "Print all that happened to a call, in order",
		Long: describe("Print all that happened to a call, in order", `
The journal of the call is printed as a timeline: when, how long after the
first event, what, in which attempt, on which worker. A line about the receipt
ends it when there is one. Needs DATABASE_URL.`),
		Example: "  gem trace 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55\n  gem trace --json 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55",
		Args:    takes("one call id", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := callID(args[0])
			if err != nil {
				return err
			}
			return trace(cmd, id, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events as a JSON list")
	return cmd
}

func trace(cmd *cobra.Command, id string, asJSON bool) error {
	ctx := cmd.Context()
	db, err := connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := readCall(ctx, db, id)
	if err != nil {
		return err
	}
	journal, err := store.Journal(ctx, db, id)
	if err != nil {
		return refusal(err)
	}
	out := cmd.OutOrStdout()
	if asJSON {
		return printJSON(out, journal)
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
			e.Event, attempt, e.WorkerID, inWords(e),
		})
	}
	if err := table(out, rows); err != nil {
		return err
	}

	switch r, err := store.Receipt(ctx, db, id); {
	case errors.Is(err, receipts.ErrNone):
		_, err := fmt.Fprintf(out, "\nno receipt yet: the call is %s\n", c.Status)
		return err
	case err != nil:
		return refusal(err)
	default:
		_, err := fmt.Fprintf(out, "\nreceipt %s: %s\n", r.ID, cut(ending(r), 300))
		return err
	}
}

// offset writes a distance between two events, exact to the millisecond below a minute.
func offset(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("+%.3f s", d.Seconds())
	}
	return "+" + span(d)
}

// ending says in one line how a call ended.
func ending(r *receipts.Receipt) string {
	said := string(r.Status)
	if r.ReplayOf != "" {
		said += " by repeating receipt " + r.ReplayOf
	}
	if r.DurationMS > 0 {
		said += " in " + span(milliseconds(r.DurationMS))
	}
	return said + ": " + upshot(r)
}

// inWords says what an event means. The events are explained in migrations/00001_calls.sql.
func inWords(e receipts.Event) string {
	var data struct {
		Status     string          `json:"status"`
		Was        string          `json:"was"`
		RunAt      time.Time       `json:"run_at"`
		Priority   int             `json:"priority"`
		HeldBy     string          `json:"held_by"`
		LostWorker string          `json:"lost_worker"`
		Error      *receipts.Error `json:"error"`
	}
	_ = json.Unmarshal(e.Data, &data) // what is not there stays empty
	switch e.Event {
	case "imported":
		return fmt.Sprintf("taken over from an earlier GEM, where its status was %q", data.Was)
	case "queued":
		said := "inserted"
		if data.RunAt.Sub(e.At) > time.Millisecond {
			said += ", to run not before " + moment(data.RunAt)
		}
		if data.Priority != 0 {
			said += ", priority " + strconv.Itoa(data.Priority)
		}
		return said
	case "claimed":
		return "the worker took it"
	case "waiting":
		return "another call runs with the same key, so it waits for it: " + data.HeldBy
	case "woken":
		return "the key is free: back in the queue"
	case "retried":
		why := ""
		if data.Error != nil {
			why = ": " + cut(data.Error.Message, 200)
		}
		return fmt.Sprintf("an error that may pass, so again in %s%s", span(data.RunAt.Sub(e.At)), why)
	case "released":
		return "the worker stops and hands it over: back in the queue"
	case "lost":
		return fmt.Sprintf("the worker %s died: back in the queue", data.LostWorker)
	case "cancel_requested":
		return "someone asked to cancel it, and its worker is told"
	}
	return "the receipt was written: " + strings.ReplaceAll(e.Event, "_", " ")
}
