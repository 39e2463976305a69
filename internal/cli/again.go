package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func againCommand() *cobra.Command {
	var (
		a                  client.RepeatOptions
		yes, asJSON, watch bool
		timeout            time.Duration
	)
	cmd := &cobra.Command{
		Use:   "again CALL_ID",
		Short: "Repeat a finished call, as a new call",
		Long: `
The new call has the tool, input, session, created_by, idempotency_key and
priority of the old call. The old call and its receipt do not change. The
journal of the new call records your Postgres role and the reason. The role must
own the tables or be a member of gem_operator.

It first explains the effect: the key has succeeded, so the new call returns the
earlier result, or something may happen twice. It asks for confirmation and, if
something may happen twice, for the name of the tool. Scripts pass --yes, or
--confirm TOOL. It prints only the new call's id or, with --watch, the receipt
as JSON. With --watch the exit codes are the same as for gem call --wait.
` + usesDatabase,
		Example: "  gem again " + exampleID + " --yes --reason 'the mail server is back'\n  gem again " + exampleID +
			" --confirm comms.send_email --watch",
		Args: takes("one call id", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := callID(args[0])
			switch {
			case err != nil:
				return err
			case timeout < 0 || cmd.Flags().Changed("timeout") && !watch:
				return usage("--timeout says how long --watch waits: 0 (no limit) or more")
			}
			ctx, progress := cmd.Context(), cmd.ErrOrStderr()
			db, err := connect(ctx)
			if err != nil {
				return exitError{exitUsage, err}
			}
			defer db.Close()
			means, err := client.PreviewRepeat(ctx, db, id)
			if err == nil {
				err = confirm(ctx, cmd.InOrStdin(), progress, means, yes, &a.Confirm)
			}
			var newID string
			if err == nil {
				newID, err = client.OperatorRepeat(ctx, db, id, a)
				if err != nil && !store.HasCode(err, "") && !pgconn.SafeToRetry(err) { // neither answered nor not sent
					return exitError{exitUnknown, fmt.Errorf("it is unknown whether the call was repeated: %w", err)}
				}
			}
			switch {
			case store.IsForbidden(err):
				return exitError{exitUsage, fmt.Errorf("%w\nThe role of DATABASE_URL may not repeat others' calls: only members "+
					"of gem_operator and the owner of the tables may", refusal(err))}
			case err != nil:
				return exitError{exitUsage, refusal(err)}
			case watch:
				return waitFor(ctx, cmd.OutOrStdout(), progress, db, newID, timeout, nil)
			case asJSON:
				return printJSON(cmd.OutOrStdout(), map[string]any{"id": newID, "again_of": means})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), newID)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.Reason, "reason", "", "why, at most 1,000 characters: recorded in the journal")
	f.StringVar(&a.Confirm, "confirm", "", "the name of its `tool`: continue although something may happen twice")
	f.BoolVar(&yes, "yes", false, "do not ask, unless something may happen twice")
	f.BoolVar(&asJSON, "json", false, "print the new call's id and the effects of repeating the old one, as JSON")
	f.BoolVar(&watch, "watch", false, "wait until the new call has ended, and print its receipt")
	f.DurationVar(&timeout, "timeout", 0, "with --watch: how long, such as 30s; 0 means no limit")
	return cmd
}

// confirm explains the effects of repeating a call, and asks for confirmation. If something may happen twice and typed
// is empty, typed becomes the text that was typed as the tool's name.
func confirm(ctx context.Context, in io.Reader, out io.Writer, m *client.RepeatPreview, yes bool, typed *string) error {
	if m.Refused != "" {
		return fmt.Errorf("%s", m.Refused)
	}
	said := againMeans(m)
	tool := cut(printable(m.Tool), 200)
	switch {
	case m.MayHappenTwice && *typed == "":
		fmt.Fprintf(out, "%s\nType the name of the tool, %s, to repeat it: ", said, tool)
		answer, err := readLine(ctx, in)
		if *typed = answer; err != nil || answer != m.Tool {
			return usage("the call was not repeated: something may happen twice, so the name of the tool is needed. In a "+
				"script: --confirm %s", tool)
		}
	case m.MayHappenTwice && *typed != m.Tool:
		return usage("--confirm is %q, and the call's tool is %s. %s", *typed, tool, said)
	case !m.MayHappenTwice && !yes && *typed == "":
		fmt.Fprintf(out, "%s\nRepeat it? [y/N] ", said)
		answer, err := readLine(ctx, in)
		if answer = strings.ToLower(answer); err != nil || answer != "y" && answer != "yes" {
			return usage("the call was not repeated. To skip the confirmation: --yes")
		}
	default:
		fmt.Fprintln(out, said)
	}
	return nil
}

// againMeans explains in words the effects of repeating a call.
func againMeans(m *client.RepeatPreview) string {
	ended := "It ended as " + m.Status
	if m.ErrorCode != "" {
		ended += " (" + cut(printable(m.ErrorCode), 100) + ")"
	}
	tool := cut(printable(m.Tool), 200)
	switch {
	case m.Succeeded != "":
		return fmt.Sprintf("%s. Its key has succeeded, at %s, in call %s: nothing runs again, and the new call returns "+
			"that result.",
			ended, moment(m.SucceededAt), m.Succeeded)
	case m.Mode == "":
		ended += fmt.Sprintf(". No registry in force has %s, and a worker without it ends the new call as unknown_tool", tool)
	}
	switch {
	case m.MayHappenTwice && m.ErrorCode == "outcome_unknown":
		return ended + ". Its outcome is unknown: check its effects before you repeat it, because they may happen twice."
	case m.MayHappenTwice:
		return ended + ". It ran, and nothing prevents repetitions: its effects may happen twice."
	case m.Holder != "":
		return fmt.Sprintf("%s. Call %s holds its key: the new one waits for that call, and repeats its result if it "+
			"succeeds.",
			ended, m.Holder)
	}
	if m.ErrorCode == string(receipts.ValidationError) {
		return ended + ". The new call has the same input, and fails again unless the tool's entry in the registry has " +
			"changed."
	}
	return ended + ". The new call will run, if the rules let it."
}

// readLine reads a line and trims the space around it. It stops when ctx ends.
func readLine(ctx context.Context, in io.Reader) (line string, err error) {
	done := make(chan struct{})
	go func() {
		line, err = bufio.NewReader(in).ReadString('\n')
		close(done)
	}()
	select {
	case <-ctx.Done(): // the goroutine ends with the process
		return "", ctx.Err()
	case <-done:
	}
	if err == io.EOF && line != "" {
		err = nil
	}
	return strings.TrimSpace(line), err
}
