package cli

import (
	"context"
	"io"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const exampleID = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"

// aboutCall completes a command that takes a call's id. do gets the id and the database of DATABASE_URL.
func aboutCall(cmd *cobra.Command, do func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error) *cobra.Command {
	cmd.Example = "  gem " + cmd.Use + " " + exampleID + cmd.Example
	cmd.Use += " CALL_ID"
	cmd.Args = takes("one call id", 1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := callID(args[0])
		if err != nil {
			return err
		}
		db, err := connect(cmd.Context())
		if err != nil {
			return err
		}
		defer db.Close()
		return refusal(do(cmd.Context(), db, id, cmd.OutOrStdout()))
	}
	return cmd
}

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// callID checks the argument of a command that takes a call's id.
func callID(arg string) (string, error) {
	if !uuidForm.MatchString(arg) {
		return "", usage("%q is not a call id: that is a uuid such as %s, which `gem call` prints and core_tool_calls.id holds",
			arg, exampleID)
	}
	return strings.ToLower(arg), nil
}
