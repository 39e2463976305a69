package cli

import (
	"context"
	"os"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/mcp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func mcpCommand(p *Program) *cobra.Command {
	var o mcp.Options
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer the registry's tools to an agent, as an MCP server over stdin and stdout",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, _, err := p.loadRegistry(os.Getenv("TOOLS_REGISTRY"))
			if err != nil {
				return err
			}
			o.Registry = r
			o.Version, _ = p.version()
			o.Pool = func(ctx context.Context) (*pgxpool.Pool, error) {
				cfg, err := databaseConfig()
				if err != nil {
					return nil, err
				}
				return pgpool.Open(context.WithoutCancel(ctx), cfg.DatabaseURL.Reveal(), pgpool.Options{MaxConns: 1, Name: "gem mcp"})
			}
			door, err := mcp.New(o)
			if err != nil {
				return usageError{err}
			}
			defer door.Close()
			return door.ServeStdio(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&o.Subject, "as", "mcp", "the `subject` on whose behalf calls are made: their created_by")
	return cmd
}
