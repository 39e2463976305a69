package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/internal/watch"
	"github.com/spf13/cobra"
)

func workersCommand() *cobra.Command {
	v := view[[]watch.Worker]{read: watch.Workers, text: printWorkers}
	v.hint = func(all []watch.Worker) string {
		if len(all) == 0 {
			return "No worker lives, or lived within the hour. Start one: gem worker"
		}
		return ""
	}
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers, and what each of them runs",
		Long: `
The living ones first, then those that stopped or died within the hour. Below
them are the calls that they run, at most 20 of each, the longest first. Needs
DATABASE_URL, whose role is the owner of the tables or a member of gem_monitor.`,
		Example: "  gem workers\n  gem workers --watch\n  gem workers --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.flags(cmd)
	return cmd
}

func printWorkers(w io.Writer, all []watch.Worker) error {
	if len(all) == 0 {
		return nil
	}
	now := time.Now()
	rows := [][]string{{"WORKER", "STATE", "RUNS", "SLOTS", "LONGEST", "HEARTBEAT", "STARTED", "GEM", "REGISTRY", "RULES"}}
	held := [][]string{{"CALL", "TOOL", "WORKER", "ATTEMPT", "FOR", ""}}
	for _, worker := range all {
		heartbeat := ago(worker.HeartbeatAt, now)
		if heartbeat != "" {
			heartbeat += " ago"
		}
		started := ""
		if !worker.StartedAt.IsZero() {
			started = moment(worker.StartedAt)
		}
		rows = append(rows, []string{worker.ID, worker.State, fmt.Sprint(worker.Holds), fmt.Sprint(worker.Slots), ago(worker.Since, now), heartbeat, started,
			worker.GemVersion, worker.RegistryVersion, worker.RulesVersion})
		for _, c := range worker.Calls {
			late := ""
			if c.Overdue {
				late = "longer than its tool may"
			}
			held = append(held, []string{c.ID, name(c.Tool), worker.ID, fmt.Sprint(c.Attempt), ago(c.ClaimedAt, now), late})
		}
	}
	if err := table(w, rows); err != nil || len(held) == 1 {
		return err
	}
	fmt.Fprintln(w)
	return table(w, held)
}
