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
	"github.com/gemworker/gem/internal/postgres/pgpool"
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
		Short: "Insert a call like a frontend, and optionally wait for its receipt",
		Long: `
The input is a JSON object: {} if it is omitted, read from stdin for "-". Only
the call's id is printed.

With --wait the receipt is printed instead, as JSON. While the call waits for an
answer or an approval, stderr shows the command that gives it, and with
GEM_DASHBOARD_URL a link.

The exit codes:
  0  the call was made; with --wait: it succeeded
  1  with --wait: the call failed, and its receipt has the reason
  2  the call was not made: an argument or the configuration is wrong, Postgres
     refused the call, or cannot be reached
  3  with --wait: the call ended as not_configured
  4  the outcome is unknown: --timeout passed, Postgres could not be reached
     for half a minute, or the connection broke while the call was made
A call continues even if nobody waits for it: gem receipt, gem trace and gem
explain show its progress. If a failover loses it during --wait, it is made
again, once, with the same id.
` + usesDatabase,
		Example: `  gem call os.create_note '{"domain": "business", "title": "Roof", "content": "Two tiles"}' --wait
  gem call leads.create - < lead.json
  gem call os.health_check --run-at 10m --priority 5`,
		Args: takes("the name of a tool and at most one JSON object, in single quotes so that the shell leaves it whole", 1,
			2),
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
	f.DurationVar(&timeout, "timeout", 0, "with --wait: how long, such as 30s; 0 means no limit")
	f.StringVar(&c.SessionID, "session", "", "the session_id that groups the calls of one conversation")
	f.StringVar(&c.IdempotencyKey, "key", "", "the idempotency_key: a call of a safe-retry tool returns the result of an "+
		"earlier success with it")
	f.IntVar(&c.Priority, "priority", 0, "from -1000 to 1000; higher runs first")
	f.StringVar(&runAt, "run-at", "", "not before this time, such as 2027-01-31T15:04:05Z, or this long from now, such "+
		"as 10m")
	return cmd
}

// setRunAt reads --run-at: a time, or a duration from now by Postgres's clock.
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
	return usage("--run-at is %q, and must be a time with a time zone, such as 2027-01-31T15:04:05Z, "+
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
		// The role may not see the registry. The receipt then reports a key that the tool ignores.
		if mode, err := client.IdempotencyMode(ctx, db, c.Tool); err == nil {
			switch registry.Mode(mode) {
			case registry.None:
				return usage("%s takes no --key: its mode of idempotency is none, so every call of it runs", c.Tool)
			case registry.Keyed:
				return usage("%s takes no --key: its mode of idempotency is keyed, so a field of its input is the key", c.Tool)
			}
		}
	}
	var made time.Time // for what may have been lost since
	if wait {
		if err := db.QueryRow(ctx, "select pg_catalog.clock_timestamp()").Scan(&made); err != nil {
			return exitError{exitUsage, refusal(err)}
		}
	}
	id, err := client.Enqueue(ctx, db, c)
	switch {
	case err != nil && !store.HasCode(err, "") && !pgconn.SafeToRetry(err): // the statement was sent and not answered
		return exitError{exitUnknown, fmt.Errorf("it is unknown whether the call was made: %w", err)}
	case err != nil:
		return exitError{exitUsage, refusal(err)}
	}
	if !wait {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), id); err != nil {
			return exitError{exitUnknown, err}
		}
		return nil
	}
	c.ID = id
	return waitFor(ctx, cmd.OutOrStdout(), progress, db, id, timeout, func() (bool, error) {
		for range lostPatience {
			lost, err := client.MayHaveLost(ctx, db, made)
			if err == nil && lost {
				fmt.Fprintln(progress, "A failover lost the call: making it again with the same id.")
				_, err = client.Enqueue(ctx, db, c)
			}
			if err != nil || lost {
				return err == nil, err
			}
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(time.Second):
			}
		}
		return false, nil
	})
}

// waitFor prints the receipt of a call as soon as it exists. It waits for timeout, or without a limit if that is 0. If
// a failover loses the call, remake, which may be nil, makes it again, at most once. The error has the exit code for
// the outcome of the call.
func waitFor(ctx context.Context, out, progress io.Writer, db *pgxpool.Pool, id string, timeout time.Duration,
	remake func() (bool, error)) error {
	fmt.Fprintln(progress, "call", id)

	// Check before the timeout starts, so that the person learns why nothing happens even if it is short.
	alone := noWorker(ctx, db, progress)
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(timeout, math.MaxInt64))
	defer cancel()
	r, err := await(waiting, db, id, alone, progress)
	if gone := (*client.NotFoundError)(nil); errors.As(err, &gone) && remake != nil {
		again, failed := remake()
		switch {
		case again:
			r, err = await(waiting, db, id, alone, progress)
		case failed == nil:
			err = fmt.Errorf("%w: it may have been pruned", err)
		default:
			err = fmt.Errorf("%w, and it is unknown whether a failover lost it: %w", err, refusal(failed))
		}
	}
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		fmt.Fprintf(progress, "The call has not ended within %s and continues; read its receipt later: gem receipt %s\n",
			timeout, id)
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

// noWorker reports whether no worker is alive. If so, it prints that to progress.
func noWorker(ctx context.Context, db *pgxpool.Pool, progress io.Writer) bool {
	workers, err := client.ReadWorkers(ctx, db)
	if err != nil || workers.Alive > 0 {
		return false
	}
	fmt.Fprintln(progress, "No worker is running, so the call waits until one is started: gem worker")
	return true
}

// await returns the receipt of a call as soon as it exists. Meanwhile it prints to progress, once, when no worker is
// alive, unless alone is set; and for each answer that the call waits for, how to give it.
func await(ctx context.Context, db *pgxpool.Pool, id string, alone bool, progress io.Writer) (*receipts.Receipt,
	error) {
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
			all, _ := client.AskedFor(ctx, db, id, mostAsked) // the role may not see them
			for _, q := range all {
				// A handler may wait for several answers in turn, under different names.
				if said := prose.AskedFor(q, os.Getenv("GEM_DASHBOARD_URL")); !told[said] {
					told[said] = true
					fmt.Fprintln(progress, said)
				}
			}
		}
	})
	defer watching.Wait()
	defer stop()
	var retry time.Time
	for {
		began := time.Now()
		r, err := client.Await(ctx, db, id)
		if time.Since(began) > time.Second { // Postgres answered meanwhile
			retry = time.Now().Add(awayPatience)
		} else if retry.IsZero() {
			retry = began.Add(awayPatience)
		}
		if err == nil || ctx.Err() != nil || !isBroken(err) || time.Now().After(retry) {
			return r, err
		}
		fmt.Fprintf(progress, "Postgres cannot be reached: %s; asking again\n", pgpool.Reason(err))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// awayPatience is how long waiting for a call continues while Postgres is away, as during a failover.
const awayPatience = 30 * time.Second

// lostPatience is how many seconds a worker may take to notice a failover after the call was found to be missing.
const lostPatience = 15

// isBroken reports whether Postgres is away, or a connection broke.
func isBroken(err error) bool {
	return pgpool.IsAway(err) || !store.HasCode(err, "") && !errors.As(err, new(*client.NotFoundError))
}

const mostAsked = 10 // questions of a call that are shown

// readInput returns the input of a call: the argument, {} without one, or all of stdin. It checks only that it is
// JSON; the database and the registry check the rest.
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

// checkJSON returns an error that shows where a text stops being JSON.
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
	// The offset counts the bytes read, including the wrong one. At the end of the text no byte is wrong.
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

// pointAt returns the line around a byte of text, with a mark under the byte.
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
