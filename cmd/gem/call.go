package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

// newCall is what a frontend says of a call. A column that was not named is left to its default.
type newCall struct {
	tool     string
	input    string // JSON
	session  string
	key      string
	priority int
	runAt    string // a time, or a duration from now; empty for at once
}

func callCommand() *cobra.Command {
	var (
		c       newCall
		wait    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "call TOOL [JSON | -]",
		Short: "Insert a call, as a frontend would, and wait for its receipt if asked to",
		Long: describe("Insert a call, as a frontend would, and wait for its receipt if asked to", `
The input is a JSON object, {} when it is left out, or read from stdin for "-".
The call's id is printed, alone. Needs DATABASE_URL.

With --wait the receipt is printed instead, as JSON, and the exit code says how
the call ended: 0 succeeded, 1 failed, 3 not_configured, 4 not within --timeout.
A call goes on when nobody waits for it: gem receipt, gem trace and gem explain
say what became of it.`),
		Example: `  gem call os.create_note '{"domain": "business", "title": "Roof", "content": "Two tiles"}' --wait
  gem call leads.create - < lead.json
  gem call os.health_check --run-at 10m --priority 5`,
		Args: takes("the name of a tool and at most one JSON object, in single quotes so that the shell leaves it whole", 1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("timeout") && !wait {
				return usage("--timeout says how long to wait, so it needs --wait")
			}
			if timeout < 0 {
				return usage("--timeout is %s, and must be 0 (no limit) or more", timeout)
			}
			c.tool = args[0]
			var err error
			if c.input, err = readInput(cmd.Context(), cmd.InOrStdin(), args[1:]); err != nil {
				return err
			}
			return makeCall(cmd, c, wait, timeout)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&wait, "wait", false, "wait for the receipt and print it")
	f.DurationVar(&timeout, "timeout", 0, "with --wait: how long, such as 30s; 0 means without end")
	f.StringVar(&c.session, "session", "", "the session_id that groups the calls of one conversation")
	f.StringVar(&c.key, "key", "", "the idempotency_key: a call of a safe-retry tool with a key that succeeded before gets that result")
	f.IntVar(&c.priority, "priority", 0, "from -1000 to 1000; higher runs first")
	f.StringVar(&c.runAt, "run-at", "", "not before this time, such as 2027-01-31T15:04:05Z, or in this time from now, such as 10m; at most 366 days ahead")
	return cmd
}

func makeCall(cmd *cobra.Command, c newCall, wait bool, timeout time.Duration) error {
	ctx := cmd.Context()
	sql, args, err := c.insert()
	if err != nil {
		return err
	}
	db, err := connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	var id string
	if err := db.QueryRow(ctx, sql, args...).Scan(&id); err != nil {
		return refusal(err)
	}
	if !wait {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), id)
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "call", id)

	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
	}
	r, err := awaitReceipt(waiting, db, id, cmd.ErrOrStderr())
	if err != nil {
		const look = "to see what became of it: gem receipt "
		if errors.Is(context.Cause(waiting), errTimeout) {
			fmt.Fprintf(cmd.ErrOrStderr(), "The call has not ended within %s. It goes on; %s%s\n", timeout, look, id)
			return exitError{exitTimeout}
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "The call goes on; %s%s\n", look, id)
		return refusal(err)
	}
	if err := printJSON(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	switch r.Status {
	case receipts.Succeeded:
		return nil
	case receipts.NotConfigured:
		return exitError{exitNotConfigured}
	}
	return exitError{exitFailed}
}

var errTimeout = errors.New("the receipt did not come in time")

// awaitReceipt looks for the receipt until it is there, at short intervals that grow. It says so once on progress when
// there is no worker that could write it.
func awaitReceipt(ctx context.Context, db *pgxpool.Pool, id string, progress io.Writer) (*receipts.Receipt, error) {
	said := false
	for pause := 20 * time.Millisecond; ; pause = min(pause*5/4, 250*time.Millisecond) {
		r, err := store.Receipt(ctx, db, id)
		if !errors.Is(err, receipts.ErrNone) {
			return r, err
		}
		if !said {
			lives, err := workerLives(ctx, db)
			if err != nil {
				return nil, err
			}
			if said = !lives; said {
				fmt.Fprintln(progress, "No worker is running, so the call waits until one is started: gem worker")
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// insert is the statement that a frontend would send: it names the columns that it has something to say about.
func (c newCall) insert() (sql string, args []any, err error) {
	columns, values := []string{"tool_name", "input"}, []string{"$1", "$2"}
	args = []any{c.tool, c.input}
	set := func(column, value string, arg any) {
		args = append(args, arg)
		columns = append(columns, column)
		values = append(values, fmt.Sprintf(value, len(args)))
	}
	if c.session != "" {
		set("session_id", "$%d", c.session)
	}
	if c.key != "" {
		set("idempotency_key", "$%d", c.key)
	}
	if c.priority != 0 {
		set("priority", "$%d", c.priority)
	}
	if c.runAt != "" {
		if pause, err := time.ParseDuration(c.runAt); err == nil {
			// By Postgres's clock, which is the one that counts.
			set("run_at", "clock_timestamp() + make_interval(secs => $%d)", pause.Seconds())
		} else if at, err := time.Parse(time.RFC3339, c.runAt); err == nil {
			set("run_at", "$%d", at)
		} else {
			return "", nil, usage("--run-at is %q, and must be a time with its zone, such as 2027-01-31T15:04:05Z, or a duration from now, such as 90s, 10m or 36h, at most 366 days ahead", c.runAt)
		}
	}
	return fmt.Sprintf("insert into public.core_tool_calls (%s) values (%s) returning id::text",
		strings.Join(columns, ", "), strings.Join(values, ", ")), args, nil
}

// readInput returns the input of a call: the argument, {} without one, or all of stdin. It must be JSON; what else it must
// be is for the database and the registry to say.
func readInput(ctx context.Context, stdin io.Reader, args []string) (string, error) {
	input := "{}"
	if len(args) == 1 {
		input = args[0]
	}
	if input == "-" {
		type read struct {
			text []byte
			err  error
		}
		done := make(chan read, 1)
		go func() {
			text, err := io.ReadAll(stdin)
			done <- read{text, err}
		}()
		select {
		case <-ctx.Done(): // the goroutine ends with the process
			return "", ctx.Err()
		case r := <-done:
			if r.err != nil {
				return "", fmt.Errorf("read the input from stdin: %w", r.err)
			}
			input = string(r.text)
		}
	}
	return input, checkJSON(input)
}

// checkJSON says at which character a text stops being JSON, and shows the place.
func checkJSON(text string) error {
	var value json.RawMessage
	err := json.Unmarshal([]byte(text), &value)
	var syntax *json.SyntaxError
	switch {
	case err == nil && !utf8.ValidString(text):
		return usage("the input is not valid UTF-8, so it is not JSON")
	case err == nil:
		return nil
	case strings.TrimSpace(text) == "":
		return usage("the input is empty: it must be a JSON object, such as {}")
	case !errors.As(err, &syntax):
		return usage("the input is not JSON: %v", err)
	}
	// The offset counts the bytes that were read, with the one that is wrong; at the end of the text none is.
	before := text[:min(max(int(syntax.Offset)-1, 0), len(text))]
	if strings.HasPrefix(syntax.Error(), "unexpected end") {
		before = text
	}
	place := fmt.Sprintf("character %d", utf8.RuneCountInString(before)+1)
	if lines := strings.Count(before, "\n"); lines > 0 {
		place += fmt.Sprintf(" (line %d)", lines+1)
	}
	return usage("the input is not JSON: %v, at %s:\n%s", syntax, place, pointAt(text, len(before)))
}

// pointAt shows the line around a byte of text, and a mark under the byte.
func pointAt(text string, at int) string {
	const around = 40 // characters on each side
	start, end := strings.LastIndexByte(text[:at], '\n')+1, len(text)
	if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
		end = at + i
	}
	before, after := []rune(text[start:at]), []rune(text[at:end])
	before = before[max(0, len(before)-around):]
	after = after[:min(around, len(after))]
	blank := func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}
	line := strings.Map(blank, string(before)+string(after))
	return "  " + line + "\n  " + strings.Repeat(" ", len(before)) + "^"
}
