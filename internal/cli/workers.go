package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/spf13/cobra"
)

func workersCommand() *cobra.Command {
	v := report[fleet]{read: readFleet, text: printWorkers}
	v.hint = func(f fleet) string {
		if len(f.Workers) == 0 {
			return "No worker is alive or was alive within the last hour. Start one: gem worker"
		}
		return ""
	}
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers, and the calls that each runs",
		Long: `
It lists live workers first, then workers that stopped or died within the last
hour. Below them are the calls that they run, at most 20 of each worker, the
longest first.
` + usesDatabaseAsMonitor,
		Example: "  gem workers\n  gem workers --watch\n  gem workers --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.flags(cmd)
	return cmd
}

// fleet is all workers, and the time of the read by Postgres's clock. Its JSON is that of the workers.
type fleet struct {
	Workers []view.Worker
	At      time.Time
}

func (f fleet) MarshalJSON() ([]byte, error) { return json.Marshal(f.Workers) }

func readFleet(ctx context.Context, db view.DB) (f fleet, err error) {
	if f.Workers, err = view.Workers(ctx, db); err == nil {
		f.At, err = view.Now(ctx, db)
	}
	return f, err
}

func printWorkers(w io.Writer, f fleet) error {
	if len(f.Workers) == 0 {
		return nil
	}
	rows := [][]string{{"WORKER", "STATE", "RUNS", "SLOTS", "LONGEST", "HEARTBEAT", "STARTED", "GEM", "REGISTRY", "RULES"}}
	held := [][]string{{"CALL", "TOOL", "WORKER", "ATTEMPT", "FOR", ""}}
	for _, worker := range f.Workers {
		heartbeat := ago(worker.HeartbeatAt, f.At)
		if heartbeat != "" {
			heartbeat += " ago"
		}
		started := ""
		if !worker.StartedAt.IsZero() {
			started = moment(worker.StartedAt)
		}
		rows = append(rows, []string{worker.ID, worker.State, fmt.Sprint(worker.Holds), fmt.Sprint(worker.Slots),
			ago(worker.Since, f.At), heartbeat, started,
			worker.GemVersion, worker.RegistryVersion, worker.RulesVersion})
		for _, c := range worker.Calls {
			late := ""
			if c.Overdue {
				late = "longer than its timeout allows"
			}
			held = append(held, []string{c.ID, name(c.Tool), worker.ID, fmt.Sprint(c.Attempt), ago(c.ClaimedAt, f.At), late})
		}
	}
	if err := table(w, rows); err != nil || len(held) == 1 {
		return err
	}
	fmt.Fprintln(w)
	return table(w, held)
}
