package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
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
handler came to follows, in full: of an agent, the whole conversation.`,
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
	cmd.Flags().BoolVar(&results, "results", false, "also print what its steps and calls came to")
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
			e.Event, attempt, e.WorkerID, happened(e),
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
		_, err = fmt.Fprintf(out, "\nreceipt %s: %s\n", r.ID, cut(ending(r), 300))
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
	if asksPeople([]string{children[0].Name}) {
		fmt.Fprintln(out, "\nRules asked people about it, and its handler made the other calls:")
	} else {
		fmt.Fprintln(out, "\nIts handler made these calls:")
	}
	for i, c := range children {
		if asksPeople([]string{c.Name}) {
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

// eventData is what the events of a journal carry; what an event does not carry is empty.
type eventData struct {
	Was        string         `json:"was"`
	RunAt      time.Time      `json:"run_at"`
	Priority   int            `json:"priority"`
	Needs      string         `json:"needs"`
	HeldBy     string         `json:"held_by"`
	Name       string         `json:"name"` // of a step, or a call
	Names      []string       `json:"names"`
	For        []string       `json:"for"`
	CallID     string         `json:"call_id"`
	Tool       string         `json:"tool"`
	Status     string         `json:"status"`
	LostWorker string         `json:"lost_worker"`
	Error      receipts.Error `json:"error"`

	Rules []string `json:"rules"` // that let it wait for a turn, or ask

	Value json.RawMessage `json:"value"` // of an answer
	By    string          `json:"by"`    // who answered, asked for the end, or made the call again

	Login   string `json:"login"` // of whom `by` names
	Reason  string `json:"reason"`
	AgainOf string `json:"again_of"`

	Code struct{ Name, Message string } `json:"code"` // why it waits for code
	Kind string                         `json:"kind"` // of a step

	Result json.RawMessage `json:"result"` // of a step
}

func dataOf(e receipts.Event) (d eventData) {
	_ = json.Unmarshal(e.Data, &d)
	return d
}

func (d eventData) act() client.Act { return client.Act{By: d.By, Login: d.Login, Reason: d.Reason} }

// person names who acted.
func person(a client.Act) string {
	switch {
	case a.By == "":
		return "someone"
	case a.Login != "":
		return fmt.Sprintf("%s (by the login %s)", cut(printable(a.By), 100), cut(printable(a.Login), 100))
	}
	return cut(printable(a.By), 100)
}

// because gives the reason, where there is one.
func because(a client.Act) string {
	if a.Reason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", cut(printable(a.Reason), 300))
}

// named lists names of a journal: those of answers begin with #.
func named(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = name
		if answer, ok := strings.CutPrefix(name, "#"); ok {
			all[i] = strings.TrimSuffix("the answer "+answer, " answer")
		}
	}
	return printable(strings.Join(all, ", "))
}

// under says which answer it is, where that is not the one that most have.
func under(name string) string {
	if name = strings.TrimPrefix(name, "#"); name == "answer" {
		return ""
	}
	return " under the name " + printable(name)
}

func happened(e receipts.Event) string {
	data := dataOf(e)
	switch e.Event {
	case "imported":
		return fmt.Sprintf("taken over from an earlier GEM, where its status was %q", data.Was)
	case "queued":
		said := "inserted"
		if data.AgainOf != "" {
			said = fmt.Sprintf("%s had the call %s made again%s", person(data.act()), printable(data.AgainOf), because(data.act()))
		}
		if data.RunAt.Sub(e.At) > time.Millisecond {
			said += ", to run no earlier than " + moment(data.RunAt)
		}
		if data.Priority != 0 {
			said += ", priority " + strconv.Itoa(data.Priority)
		}
		return said
	case "claimed":
		return "the worker took it"
	case "waiting":
		if data.Code.Message != "" {
			said := "its program cannot go on with it: " + cut(printable(data.Code.Message), 200)
			if data.Code.Name != "" {
				said += " The name is " + cut(printable(data.Code.Name), 200) + "."
			}
			return said
		}
		if asksPeople(data.For) {
			return "people are asked whether it may run, by " + theRules(data.Rules, "")
		}
		if len(data.For) > 0 {
			return "its handler waits for " + cut(named(data.For), 200)
		}
		return "another call runs with the same key, so it waits for that call: " + data.HeldBy
	case "woken":
		return "back in the queue"
	case "delayed":
		return "it waits for its turn, in " + span(data.RunAt.Sub(e.At)) + ", by " + theRules(data.Rules, "")
	case "ruled":
		return ruling(e.Data)
	case "called":
		if asksPeople([]string{data.Name}) {
			return "the question to them: " + data.CallID
		}
		return fmt.Sprintf("its handler makes a call of %s under the name %s: %s", cut(data.Tool, 200), data.Name, data.CallID)
	case "returned":
		if asksPeople([]string{data.Name}) {
			return "a question to people has ended: " + data.Status
		}
		return fmt.Sprintf("the call %s has ended: %s", data.Name, data.Status)
	case "answered":
		return fmt.Sprintf("%s answered%s: %s", printable(data.By), under(data.Name), cut(printable(string(data.Value)), 200))
	case "timed_out":
		return "timed out: " + cut(named(data.Names), 200)
	case "retried":
		said := "a transient error, so again in " + span(data.RunAt.Sub(e.At))
		if data.Error.Message != "" {
			said += ": " + cut(data.Error.Message, 200)
		}
		return said
	case "released":
		if data.Needs != "" {
			return "the worker leaves it to one with: " + cut(data.Needs, 200)
		}
		return "the worker stops and hands it over: back in the queue"
	case "lost":
		return fmt.Sprintf("the worker %s died: back in the queue", data.LostWorker)
	case "began":
		return "begins the step " + data.Name + ", which must not run twice"
	case "step":
		if data.Kind == "call" {
			return "the call " + data.Name + " could not be made: " + cut(data.Error.Message, 200)
		}
		if data.Kind == "version" {
			return "the version of " + data.Name + " was asked for"
		}
		if data.Error.Message != "" {
			return "the step " + data.Name + " failed: " + cut(data.Error.Message, 200)
		}
		return "the step " + data.Name + " has ended"
	case "cancel_requested":
		return person(data.act()) + " asked to cancel it" + because(data.act()) + "; its worker is told to end it"
	case "failed":
		if data.By != "" {
			return "cancelled by " + person(data.act()) + because(data.act()) + "; the receipt was written: failed"
		}
	}
	return "the receipt was written: " + strings.ReplaceAll(e.Event, "_", " ")
}
