package cli

import (
	"context"
	"fmt"

	"github.com/gemworker/gem/internal/store"
	"github.com/spf13/cobra"
)

func rolesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "Manage the roles of people who answer questions",
		Long: `
A question or an approval names the people who may answer it: role:manager means
all subjects with the role manager. A subject is the sub of a user's token,
service_role (for a server's secret key), or a Postgres role (for the command
line). Changes apply at once.

A closed role accepts no new questions from users or their models. Rules,
handlers and servers may still ask it. Users' open questions to it remain open,
at the end of lists.

It needs the rights of the database's owner.
` + usesDatabase,
		Example: "  gem roles add 5d1a7c42-0a3e-4c4e-a7f2-86b0a1c9f310 manager\n  gem roles add postgres manager\n" +
			"  gem roles close manager\n  gem roles list",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the subjects and their roles",
			RunE: func(cmd *cobra.Command, _ []string) error {
				db, err := connect(cmd.Context())
				if err != nil {
					return err
				}
				defer db.Close()
				roles, err := store.Roles(cmd.Context(), db)
				if err != nil {
					return refusal(err)
				}
				closed, err := store.ClosedRoles(cmd.Context(), db)
				if err != nil {
					return refusal(err)
				}
				rows := [][]string{{"SUBJECT", "ROLE"}}
				for _, r := range roles {
					rows = append(rows, []string{printable(r.Subject), r.Role})
				}
				if err := table(cmd.OutOrStdout(), rows); err != nil {
					return err
				}
				for _, r := range closed {
					fmt.Fprintf(cmd.OutOrStdout(), "%s is closed to questions from users, since %s, by %s\n", r.Role, moment(r.At),
						printable(r.By))
				}
				return nil
			},
		},
		changeRoleCommand("add", "Give a subject a role", store.AddRole, "%s has the role %s", "%s already had the role %s"),
		changeRoleCommand("remove", "Take a role from a subject", store.RemoveRole, "%s no longer has the role %s",
			"%s did not have the role %s"),
		closeRoleCommand("close", "Close a role to questions from users", store.CloseRole,
			"%s is closed to questions from users",
			"%s is already closed to questions from users"),
		closeRoleCommand("open", "Open a role to questions from users again", store.OpenRole,
			"%s is open to questions from users",
			"%s is already open to questions from users"),
	)
	return cmd
}

func closeRoleCommand(use, short string, change func(context.Context, store.DB, string) (bool, error), changed,
	same string) *cobra.Command {
	return &cobra.Command{
		Use: use + " ROLE", Short: short,
		Example: "  gem roles " + use + " manager",
		Args:    takes("a role", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.Close()
			did, err := change(cmd.Context(), db, args[0])
			if err != nil {
				return refusal(err)
			}
			said := same
			if did {
				said = changed
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), said+"\n", printable(args[0]))
			return err
		},
	}
}

func changeRoleCommand(use, short string, change store.RoleChange, changed, same string) *cobra.Command {
	return &cobra.Command{
		Use: use + " SUBJECT ROLE", Short: short,
		Example: "  gem roles " + use + " postgres manager",
		Args:    takes("a subject and a role", 2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.Close()
			did, err := change(cmd.Context(), db, store.Role{Subject: args[0], Role: args[1]})
			if err != nil {
				return refusal(err)
			}
			said := same
			if did {
				said = changed
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), said+"\n", args[0], args[1])
			return err
		},
	}
}
