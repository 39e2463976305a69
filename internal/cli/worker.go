package cli

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func workerCommand(p *Program) *cobra.Command {
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run calls until SIGTERM or SIGINT",
		Long: `
The worker takes calls from the queue and runs each to its receipt, several at
a time. It opens no port. The first SIGTERM or SIGINT stops it cleanly: it
claims no more calls, gives running ones WORKER_SHUTDOWN_GRACE to end, and
hands over the rest. The second ends it at once; other workers then recover its
calls. It opens at most WORKER_CONNECTIONS + 3 connections to Postgres.

With the standard variables of OpenTelemetry it sends traces and metrics, to
OTEL_EXPORTER_OTLP_ENDPOINT for example: see docs/observability.md. Without any
OTEL_* it sends nothing.

The environment:
` + p.environment(),
		Example: "  DATABASE_URL=postgres://user:password@host:5432/postgres gem worker",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := configFromEnv()
			if err != nil {
				return err
			}
			tuneMemory(cmd.Context())
			log := cfg.Logger()
			config.RouteStandardLog(log)
			defer func() { _ = log.Sync() }()
			version, commit := p.version()
			log.Info("gem worker", zap.String("version", version), zap.String("commit", commit))
			s := &setup{program: p, config: cfg, log: log, console: cmd.OutOrStdout(), patience: patience}
			if err := s.prepare(cmd.Context()); err != nil {
				return err
			}
			defer s.close()
			w, err := s.connect(cmd.Context())
			if err != nil {
				return err
			}
			return refusal(whenUsable(cmd.Context(), patience, s.retrying, w.Run)) // it fails only if it cannot start
		},
	}
	patienceFlag(cmd, &patience)
	return cmd
}

// maxGarbage is roughly the number of bytes of garbage that may pile up before a collection. A large heap may have
// more.
const maxGarbage = 24 << 20

// tuneMemory adapts garbage collection to the live heap: less often than Go would while the heap is small, more often
// when it is large. GOGC and GOMEMLIMIT override it.
func tuneMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(256 << 20) // above this it collects as often as needed, for large inputs
	}
	if os.Getenv("GOGC") != "" {
		return
	}
	go func() {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for ticks := time.NewTicker(10 * time.Second); ; {
			metrics.Read(live)
			debug.SetGCPercent(int(min(300, max(50, 100*maxGarbage/max(1, live[0].Value.Uint64())))))
			select {
			case <-ticks.C:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// environment lists the variables that a worker reads: its own and those of its domains.
func (p *Program) environment() string {
	variables := config.Describe()
	for _, d := range binding.Domains(p.domains()...) {
		if d.Config != nil {
			variables = append(variables, envvar.Describe(d.Config)...)
		}
	}
	var rows [][]string
	for _, v := range variables {
		if v.Default != "" {
			v.Description += " (default " + v.Default + ")"
		}
		rows = append(rows, []string{"  " + v.Name, v.Description})
	}
	var b strings.Builder
	_ = table(&b, rows) // to memory
	return strings.TrimRight(b.String(), "\n")
}
