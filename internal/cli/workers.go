package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/internal/watch"
	"github.com/spf13/cobra"
)

func workersCommand() *cobra.Command {
	v := view[fleet]{read: readFleet, text: printWorkers}
	v.hint = func(f fleet) string {
		if len(f.Workers) == 0 {
			return "No worker lives, or lived within the hour. Start one: gem worker"
		}
		return ""
	}
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers, and what each of them runs",
		Long: `
The living ones first, then those that stopped or died within the hour. Below
them are the calls that they run, at most 20 of each, the longest first.
` + usesDatabaseAsMonitor,
		Example: "  gem workers\n  gem workers --watch\n  gem workers --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.flags(cmd)
	return cmd
}

// fleet is all workers, and when they were read, by Postgres's clock. Its JSON is that of the workers.
type fleet struct {
	Workers []watch.Worker
	At      time.Time
}

func (f fleet) MarshalJSON() ([]byte, error) { return json.Marshal(f.Workers) }

func readFleet(ctx context.Context, db watch.DB) (f fleet, err error) {
	if f.Workers, err = watch.Workers(ctx, db); err == nil {
		f.At, err = watch.Now(ctx, db)
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
		rows = append(rows, []string{worker.ID, worker.State, fmt.Sprint(worker.Holds), fmt.Sprint(worker.Slots), ago(worker.Since, f.At), heartbeat, started,
			worker.GemVersion, worker.RegistryVersion, worker.RulesVersion})
		for _, c := range worker.Calls {
			late := ""
			if c.Overdue {
				late = "longer than its tool may"
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
