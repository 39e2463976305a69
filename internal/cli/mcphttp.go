package cli

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/mcp"
	"github.com/spf13/cobra"
)

// serveMCP serves clients over HTTP until a signal. A wrong configuration is a usage error.
func serveMCP(ctx context.Context, server *mcp.Server, h mcp.HTTPConfig) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", h.Listen)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	err = server.ServeHTTP(ctx, l, h)
	var wrong *mcp.ConfigError
	if errors.As(err, &wrong) {
		return usageError{err}
	}
	return err
}

// listenURL returns the connection string for notifications about finished calls. It is empty if every one leads
// through a pooler in transaction mode.
func listenURL(c *config.Config) string {
	if c.DirectURL != "" {
		return c.DirectURL.Reveal()
	}
	if c.DatabasePooler == "transaction" {
		return ""
	}
	return c.DatabaseURL.Reveal()
}

func mcpTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token SUBJECT [SCOPE]...",
		Short: "Create a token for gem mcp --http --auth token",
		Long: `
It prints a new token to stderr, once. To stdout it prints the line for the file
of GEM_MCP_TOKENS: the token's SHA-256, its subject, which becomes the
created_by of calls, and its scopes. Scopes are permissions of the registry,
such as read:db, and apply with GEM_MCP_SCOPES=on. To revoke a token, remove its
line.`,
		Example: "  gem mcp token ada >> tokens\n  gem mcp token ci read:db >> tokens",
		Args:    takes("a subject, and scopes", 1, 1000),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, line, err := mcp.NewToken(args[0], args[1:]...)
			if err != nil {
				return usageError{err}
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "The token of %s, which is not shown again:\n%s\n", args[0], token)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
			return err
		},
	}
}
