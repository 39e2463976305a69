package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func callCommand() *cobra.Command {
	var (
		c       client.NewCall
		runAt   string
		wait    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "call TOOL [JSON | -]",
		Short: "Insert a call, as a frontend would, and wait for its receipt if asked to",
		Long: `
The input is a JSON object: {} if it is left out, read from stdin for "-". Only
the call's id is printed.

With --wait the receipt is printed instead, as JSON. While an answer or an
approval is waited for, the standard error says so, and how it is given: by a
command, and with GEM_DASHBOARD_URL by a link.

The exit codes:
  0  the call was made; with --wait: it succeeded
  1  with --wait: the call failed, and its receipt says why
  2  the call was not made: an argument or the configuration is wrong, Postgres
     refused the call, or cannot be reached
  3  with --wait: the call ended as not_configured
  4  it is not known how the call ended, since --timeout passed or Postgres could
     not be asked; or whether it was made, since the connection broke
A call continues when nobody waits for it: gem receipt, gem trace and gem
explain show how it goes.
` + usesDatabase,
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
			input, err := readInput(cmd.Context(), cmd.InOrStdin(), args[1:])
			if err != nil {
				return err
			}
			c.Tool, c.Input = args[0], json.RawMessage(input)
			if err := setRunAt(&c, runAt); err != nil {
				return err
			}
			return makeCall(cmd, c, wait, timeout)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&wait, "wait", false, "wait for the receipt and print it")
	f.DurationVar(&timeout, "timeout", 0, "with --wait: how long, such as 30s; 0 means without end")
	f.StringVar(&c.SessionID, "session", "", "the session_id that groups the calls of one conversation")
	f.StringVar(&c.IdempotencyKey, "key", "", "the idempotency_key: a call of a safe-retry tool gets the result of an earlier success with it")
	f.IntVar(&c.Priority, "priority", 0, "from -1000 to 1000; higher runs first")
	f.StringVar(&runAt, "run-at", "", "not before this time, such as 2027-01-31T15:04:05Z, or this long from now, such as 10m")
	return cmd
}

// setRunAt reads --run-at: a time, or a duration from now, which counts by Postgres's clock.
func setRunAt(c *client.NewCall, text string) (err error) {
	if text == "" {
		return nil
	}
	if c.Delay, err = time.ParseDuration(text); err == nil {
		return nil
	}
	if c.RunAt, err = time.Parse(time.RFC3339, text); err == nil {
		return nil
	}
	return usage("--run-at is %q, and must be a time with its zone, such as 2027-01-31T15:04:05Z, "+
		"or a duration from now, such as 90s, 10m or 36h, at most 366 days ahead", text)
}

func makeCall(cmd *cobra.Command, c client.NewCall, wait bool, timeout time.Duration) error {
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	db, err := connect(ctx)
	if err != nil {
		return exitError{exitUsage, err}
	}
	defer db.Close()
	if c.IdempotencyKey != "" {
		// A role may not see the registry: then the receipt tells.
		if mode, err := client.IdempotencyMode(ctx, db, c.Tool); err == nil {
			switch registry.Mode(mode) {
			case registry.None:
				return usage("%s takes no --key: its mode of idempotency is none, so every call of it runs", c.Tool)
			case registry.Keyed:
				return usage("%s takes no --key: its mode of idempotency is keyed, so a field of its input is the key", c.Tool)
			}
		}
	}
	id, err := client.Enqueue(ctx, db, c)
	switch {
	case err != nil && !store.HasCode(err, "") && !pgconn.SafeToRetry(err): // neither answered nor not sent
		return exitError{exitUnknown, fmt.Errorf("whether the call was made is not known: %w", err)}
	case err != nil:
		return exitError{exitUsage, refusal(err)}
	}
	if !wait {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), id); err != nil {
			return exitError{exitUnknown, err}
		}
		return nil
	}
	return waitFor(ctx, cmd.OutOrStdout(), progress, db, id, timeout)
}

// waitFor prints the receipt of a call as soon as there is one. timeout is how long it waits; 0: without end. It returns an error with the exit code
// that says how the call ended.
func waitFor(ctx context.Context, out, progress io.Writer, db *pgxpool.Pool, id string, timeout time.Duration) error {
	fmt.Fprintln(progress, "call", id)

	// However short the timeout is, the person who waits reads why nothing happens.
	alone := noWorker(ctx, db, progress)
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(timeout, math.MaxInt64))
	defer cancel()
	r, err := await(waiting, db, id, alone, progress)
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		fmt.Fprintf(progress, "The call has not ended within %s, and continues; read its receipt later: gem receipt %s\n", timeout, id)
		return exitError{code: exitUnknown}
	case err != nil:
		fmt.Fprintf(progress, "The call continues; read its receipt later: gem receipt %s\n", id)
		return exitError{exitUnknown, refusal(err)}
	}
	err = printJSON(out, r)
	switch {
	case err != nil:
		return exitError{exitUnknown, err}
	case r.Status == receipts.Succeeded:
		var effects receipts.Effects
		if json.Unmarshal(r.Effects, &effects) == nil && r.ReplayOf != "" && effects.Idempotency.InputDiffers {
			fmt.Fprintf(progress, "This is the result of an earlier call with another input: gem explain %s\n", id)
		}
		return nil
	case r.Status == receipts.NotConfigured:
		return exitError{code: exitNotConfigured}
	}
	if note := onlyHere(r); note != "" {
		fmt.Fprintln(progress, note)
	}
	if prose.HidesItsCause(r) {
		fmt.Fprintf(progress, "The cause, for operators: gem explain %s\n", id)
	}
	return exitError{code: exitFailed}
}

// noWorker reports whether no worker is alive, and says so on progress.
func noWorker(ctx context.Context, db *pgxpool.Pool, progress io.Writer) bool {
	workers, err := client.ReadWorkers(ctx, db)
	if err != nil || workers.Alive > 0 {
		return false
	}
	fmt.Fprintln(progress, "No worker is running, so the call waits until one is started: gem worker")
	return true
}

// await returns the receipt of a call as soon as there is one. Meanwhile it says on progress, once, when no worker is alive any more, unless that was
// said, and of each answer that is waited for how it is given.
func await(ctx context.Context, db *pgxpool.Pool, id string, alone bool, progress io.Writer) (*receipts.Receipt, error) {
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		told := map[string]bool{}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			alone = alone || noWorker(ctx, db, progress)
			all, _ := client.AskedFor(ctx, db, id, mostAsked) // a role may not see them
			for _, q := range all {
				// A handler may wait for one answer after the other, under other names.
				if said := prose.AskedFor(q, os.Getenv("GEM_DASHBOARD_URL")); !told[said] {
					told[said] = true
					fmt.Fprintln(progress, said)
				}
			}
		}
	})
	defer watching.Wait()
	defer stop()
	return client.Await(ctx, db, id)
}

const mostAsked = 10 // questions of a call that are shown

// readInput returns the input of a call: the argument, {} without one, or all of stdin. It must be JSON; the
// database and the registry check the rest.
func readInput(ctx context.Context, stdin io.Reader, args []string) (string, error) {
	input := "{}"
	if len(args) == 1 {
		input = args[0]
	}
	if input == "-" {
		var text []byte
		var err error
		done := make(chan struct{})
		go func() {
			text, err = io.ReadAll(stdin)
			close(done)
		}()
		select {
		case <-ctx.Done(): // the goroutine ends with the process
			return "", ctx.Err()
		case <-done:
		}
		if err != nil {
			return "", fmt.Errorf("read the input from stdin: %w", err)
		}
		input = string(text)
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
	rest, _, _ := strings.Cut(text[at:], "\n")
	before, after := []rune(text[strings.LastIndexByte(text[:at], '\n')+1:at]), []rune(rest)
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
