package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func schedulesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Make calls on a cron schedule",
		Long: `
A schedule makes one call at each time of its cron expression, or records why it
did not. The workers make the calls: see docs/schedules.md.

The role must own the tables or be a member of gem_operator.
` + usesDatabase,
		Example: `  gem schedules add overdue '0 9 * * 1-5' agent.run '{"task": "Chase invoices"}' --zone Europe/Berlin
  gem schedules show overdue`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(listSchedulesCommand(), showScheduleCommand(), addScheduleCommand(), applySchedulesCommand(),
		actOnScheduleCommand("pause", "Pause a schedule; with --of and without NAME, all schedules of a user",
			func(cmd *cobra.Command, db *pgxpool.Pool, n store.ScheduleName, reason string) (string, error) {
				if n.Name == "" {
					paused, err := store.PauseSchedulesOf(cmd.Context(), db, n.CreatedBy, "", reason)
					return count(paused, "schedule") + " paused.", err
				}
				return "It is paused. gem schedules resume " + n.Name + ofUser(n) + " continues it.",
					store.PauseSchedule(cmd.Context(), db, n, "", reason)
			}),
		actOnScheduleCommand("resume", "Resume a paused schedule, and record the times of the pause as skipped",
			func(cmd *cobra.Command, db *pgxpool.Pool, n store.ScheduleName, reason string) (string, error) {
				next, err := store.ResumeSchedule(cmd.Context(), db, n, "", reason)
				return "Its next call: " + nextCall(next, ""), err
			}),
		actOnScheduleCommand("remove", "Remove a schedule; its history remains until gem prune removes it",
			func(cmd *cobra.Command, db *pgxpool.Pool, n store.ScheduleName, reason string) (string, error) {
				return "It is removed, and makes no further calls.", store.RemoveSchedule(cmd.Context(), db, n, "", reason)
			}),
		runScheduleCommand(), backfillScheduleCommand(), nextCommand())
	return cmd
}

// withDatabase runs do with the database, and returns what Postgres refuses.
func withDatabase(do func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		db, err := connect(cmd.Context())
		if err != nil {
			return err
		}
		defer db.Close()
		return refusal(do(cmd, db, args))
	}
}

// nextCall returns the time of the next call, in the schedule's zone if this machine knows it.
func nextCall(at time.Time, zone string) string {
	if at.IsZero() {
		return "none, it has ended"
	}
	return inZone(at, zone)
}

// savedCall is nextCall for a schedule that may be paused.
func savedCall(next time.Time, zone string, paused bool) string {
	if paused {
		return "none, it is paused"
	}
	return nextCall(next, zone)
}

func inZone(at time.Time, zone string) string {
	if place, err := time.LoadLocation(cmp.Or(zone, "UTC")); err == nil {
		at = at.In(place)
	}
	return at.Format("2006-01-02 15:04 MST")
}

func listSchedulesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the schedules with their next calls",
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, _ []string) error {
			all, err := store.Schedules(cmd.Context(), db)
			if err != nil {
				return err
			}
			rows := [][]string{{"NAME", "USER", "CRON", "ZONE", "TOOL", "NEXT CALL"}}
			for _, s := range all {
				next := nextCall(s.NextAt, s.Zone)
				if s.Paused != nil {
					next = "paused by " + s.Paused.By
				}
				rows = append(rows, []string{s.Name, cmp.Or(s.CreatedBy, "-"), s.Cron, s.Zone, s.Tool, next})
			}
			return table(cmd.OutOrStdout(), rows)
		}),
	}
}

func showScheduleCommand() *cobra.Command {
	var (
		limit int
		of    string
	)
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a schedule and the outcomes of its last times",
		Args: takes("the name of a schedule", 1, 1), Example: "  gem schedules show overdue",
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error {
			if limit < 1 || limit > 1000 {
				return usage("--limit is %d, and must be from 1 to 1000", limit)
			}
			s, err := store.OneSchedule(cmd.Context(), db, store.ScheduleName{Name: args[0], CreatedBy: of})
			if errors.Is(err, pgx.ErrNoRows) {
				return fmt.Errorf("the schedule %s does not exist\nTo list the schedules, run gem schedules list",
					printable(args[0]))
			}
			if err != nil {
				return err
			}
			occurrences, err := store.Occurrences(cmd.Context(), db, s.ScheduleName, limit)
			if err != nil {
				return err
			}
			slices.Reverse(occurrences)
			rows := [][]string{{"name", s.Name}, {"cron", s.Cron + " in " + s.Zone}, {"tool", s.Tool},
				{"input", string(s.Input)}, {"missed", s.Missed + ", within " + s.MissedWithin}, {"overlap", s.Overlap},
				{"changed", "by " + s.Changed.By + ", " + moment(s.Changed.At)}, {"next call", nextCall(s.NextAt, s.Zone)}}
			if s.Paused != nil {
				rows[len(rows)-1] = []string{"paused", "by " + s.Paused.By + ", " + moment(s.Paused.At) + "  " + s.Paused.Reason}
			}
			if s.CreatedBy != "" {
				rights := "of the service"
				if s.SignedIn {
					rights = "of the user"
				}
				rows = slices.Insert(rows, 1, []string{"user", s.CreatedBy}, []string{"rights", rights})
			}
			for _, more := range [][]string{{"session", s.SessionID}, {"jitter", strings.TrimPrefix(s.Jitter, "00:00:00")},
				{"starts at", atOrEmpty(s.StartsAt)}, {"ends at", atOrEmpty(s.EndsAt)}, {"held", atOrEmpty(s.HeldAt)}} {
				if more[1] != "" {
					rows = append(rows, more)
				}
			}
			for _, o := range occurrences {
				rows = append(rows, []string{occurrenceTime(o, s.Zone), outcomeOf(o)})
			}
			return table(cmd.OutOrStdout(), rows)
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "how many of its last times")
	ofFlag(cmd, &of)
	return cmd
}

// ofFlag adds --of.
func ofFlag(cmd *cobra.Command, of *string) {
	cmd.Flags().Func("of", "the `user` that the schedule belongs to (created_by)", func(subject string) error {
		if subject == "" {
			return errors.New("the user is empty: leave --of out for a schedule of nobody")
		}
		*of = subject
		return nil
	})
}

// ofUser returns the flag that names the user of a schedule, with a space before it.
func ofUser(n store.ScheduleName) string {
	if n.CreatedBy == "" {
		return ""
	}
	return " --of " + n.CreatedBy
}

func atOrEmpty(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return moment(at)
}

// occurrenceTime returns the time of an occurrence, or the range and number of its times.
func occurrenceTime(o store.Occurrence, zone string) string {
	if o.Count == 1 {
		return inZone(o.DueAt, zone)
	}
	times := "many times"
	if o.Count > 0 {
		times = fmt.Sprintf("%d times", o.Count)
	}
	return fmt.Sprintf("%s to %s (%s)", inZone(o.DueAt, zone), inZone(o.Upto, zone), times)
}

// outcomeOf describes the call of an occurrence, or why it has none.
func outcomeOf(o store.Occurrence) string {
	switch {
	case o.CallID != "" && o.Backfilled:
		return fmt.Sprintf("call %s, backfilled  %s", o.CallID, cmp.Or(o.Status, "pruned"))
	case o.CallID != "":
		return fmt.Sprintf("call %s  %s", o.CallID, cmp.Or(o.Status, "pruned"))
	case o.Detail == "":
		return "skipped: " + o.Skipped
	}
	return fmt.Sprintf("skipped: %s, %s", o.Skipped, o.Detail)
}

func addScheduleCommand() *cobra.Command {
	var (
		s            store.Schedule
		starts, ends string
	)
	cmd := &cobra.Command{
		Use: "add NAME CRON TOOL [JSON | -]", Short: "Add a schedule, or replace the one with the same name",
		Long: `
The cron expression has five fields: minute, hour, day, month and weekday. In the
strings of the input, {due_at} is the time for which the call was made, and
{previous_at} that of the call before; {{ is a brace.

Replacing a schedule with the same cron expression and zone keeps its next time.
`,
		Example: `  gem schedules add overdue '0 9 * * 1-5' agent.run '{"task": "Chase invoices"}' --zone Europe/Berlin
  gem schedules add health '*/5 * * * *' os.health_check --overlap allow`,
		Args: takes("a name, a cron expression in single quotes, a tool, and at most one JSON object", 3, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			input, err := readInput(cmd.Context(), cmd.InOrStdin(), args[3:])
			if err != nil {
				return err
			}
			s.Name, s.Cron, s.Tool, s.Input = args[0], args[1], args[2], json.RawMessage(input)
			if s.StartsAt, err = timeFlag("--starts-at", starts); err != nil {
				return err
			}
			if s.EndsAt, err = timeFlag("--ends-at", ends); err != nil {
				return err
			}
			return withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, _ []string) error {
				next, paused, err := store.SaveSchedule(cmd.Context(), db, s)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "Its next call: %s\n", savedCall(next, s.Zone, paused))
				return err
			})(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Zone, "zone", "UTC", "the time zone of the cron expression, such as Europe/Berlin")
	f.StringVar(&s.Missed, "missed", "one", "times that no worker ran within a minute: skip, one (the last), or all")
	f.StringVar(&s.MissedWithin, "missed-within", "1 day", "how late a missed time may run, at most 31 days")
	f.StringVar(&s.Overlap, "overlap", "skip", "while the last call has not ended: skip, queue, cancel (the last call) "+
		"or allow")
	f.StringVar(&s.Jitter, "jitter", "0s", "spread the starts of calls over this time, at most 1 hour")
	f.StringVar(&s.SessionID, "session", "", "the session_id of its calls")
	f.IntVar(&s.Priority, "priority", 0, "of its calls, from -1000 to 1000; higher runs first")
	f.StringVar(&starts, "starts-at", "", "no call before this time, such as 2027-01-31T15:04:05Z")
	f.StringVar(&ends, "ends-at", "", "no call after this time")
	ofFlag(cmd, &s.CreatedBy)
	return cmd
}

// timeFlag reads a time with a time zone. Empty is zero.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usage("%s is %q, and must be a time with a time zone, such as 2027-01-31T15:04:05Z", name, text)
	}
	return at, nil
}

func actOnScheduleCommand(use, short string, act func(cmd *cobra.Command, db *pgxpool.Pool,
	n store.ScheduleName, reason string) (string, error)) *cobra.Command {
	var reason, of string
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if use == "pause" && of != "" && len(args) == 0 {
				return nil
			}
			if slices.Contains(args, "") { // for example from an unset variable of the shell
				return usage("the name of the schedule is empty")
			}
			return takes("the name of a schedule", 1, 1)(cmd, args)
		},
		Example: "  gem schedules " + use + " overdue",
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error {
			done, err := act(cmd, db, store.ScheduleName{Name: strings.Join(args, ""), CreatedBy: of}, reason)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), done)
			return err
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the schedule's record")
	ofFlag(cmd, &of)
	return cmd
}

func runScheduleCommand() *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use: "run NAME", Short: "Make a call of a schedule now; its times are not affected",
		Args: takes("the name of a schedule", 1, 1), Example: "  gem schedules run overdue",
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error {
			id, err := store.RunScheduleNow(cmd.Context(), db, store.ScheduleName{Name: args[0], CreatedBy: of}, "", "")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		}),
	}
	ofFlag(cmd, &of)
	return cmd
}

func backfillScheduleCommand() *cobra.Command {
	var from, to, of string
	cmd := &cobra.Command{
		Use: "backfill NAME", Short: "Make the calls of past times that have none, at most 1,000",
		Args:    takes("the name of a schedule", 1, 1),
		Example: "  gem schedules backfill overdue --from 2027-01-04T00:00:00Z --to 2027-01-08T00:00:00Z",
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" || to == "" {
				return usage("it needs --from and --to, such as --from 2027-01-04T00:00:00Z --to 2027-01-08T00:00:00Z")
			}
			begin, err := timeFlag("--from", from)
			if err != nil {
				return err
			}
			end, err := timeFlag("--to", to)
			if err != nil {
				return err
			}
			return withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error {
				calls, err := store.BackfillSchedule(cmd.Context(), db, store.ScheduleName{Name: args[0], CreatedBy: of},
					begin, end)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s made.\n", count(calls, "call"))
				return err
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the first time")
	cmd.Flags().StringVar(&to, "to", "", "the last time; it must be past")
	ofFlag(cmd, &of)
	return cmd
}

func nextCommand() *cobra.Command {
	var (
		zone  string
		times int
	)
	cmd := &cobra.Command{
		Use: "next CRON", Short: "Print the next times of a cron expression",
		Args:    takes("a cron expression in single quotes", 1, 1),
		Example: "  gem schedules next '30 2 * * *' --zone Europe/Berlin --count 10",
		RunE: withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, args []string) error {
			all, err := store.CronNext(cmd.Context(), db, args[0], zone, times)
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return fmt.Errorf("the expression %s has no time in eight years", printable(args[0]))
			}
			for _, at := range all {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), inZone(at, zone)); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&zone, "zone", "UTC", "its time zone, such as Europe/Berlin")
	cmd.Flags().IntVar(&times, "count", 5, "how many")
	return cmd
}

// scheduleEntry is a schedule in a file for gem schedules apply.
type scheduleEntry struct {
	Name         string          `json:"name"`
	CreatedBy    string          `json:"created_by"`
	Cron         string          `json:"cron"`
	Zone         string          `json:"zone"`
	Tool         string          `json:"tool"`
	Input        json.RawMessage `json:"input"`
	SessionID    string          `json:"session_id"`
	Priority     int             `json:"priority"`
	Missed       string          `json:"missed"`
	MissedWithin string          `json:"missed_within"`
	Overlap      string          `json:"overlap"`
	Jitter       string          `json:"jitter"`
	StartsAt     time.Time       `json:"starts_at"`
	EndsAt       time.Time       `json:"ends_at"`
}

func applySchedulesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "apply FILE", Short: "Save the schedules of a JSON file, all or none",
		Long: `
The file has a list of objects with the fields name, cron and tool. Optional are
zone, input, created_by, session_id, priority, missed, missed_within, overlap,
jitter, starts_at and ends_at. Schedules that the file does not name stay as they are.
`,
		Example: "  gem schedules apply schedules.json",
		Args:    takes("a JSON file", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := plainfile.Read(args[0])
			if err != nil {
				return usageError{err}
			}
			var all []scheduleEntry
			read := json.NewDecoder(bytes.NewReader(text))
			read.DisallowUnknownFields()
			if err := read.Decode(&all); err != nil {
				return usage("%s is not a list of schedules: %w", args[0], err)
			}
			if _, err := read.Token(); !errors.Is(err, io.EOF) || len(all) == 0 {
				return usage("%s must have one list of schedules, with at least one in it", args[0])
			}
			names := map[store.ScheduleName]bool{}
			for _, e := range all {
				n := store.ScheduleName{Name: e.Name, CreatedBy: e.CreatedBy}
				if names[n] {
					return usage("%s has two schedules with the name %s", args[0], printable(e.Name))
				}
				names[n] = true
			}
			slices.SortFunc(all, func(a, b scheduleEntry) int { // locks, in one order
				return cmp.Or(strings.Compare(a.CreatedBy, b.CreatedBy), strings.Compare(a.Name, b.Name))
			})
			return withDatabase(func(cmd *cobra.Command, db *pgxpool.Pool, _ []string) error {
				var saved strings.Builder
				err := pgx.BeginFunc(cmd.Context(), db, func(tx pgx.Tx) error {
					for _, e := range all {
						next, paused, err := store.SaveSchedule(cmd.Context(), tx, e.schedule())
						if err != nil {
							return fmt.Errorf("the schedule %s: %w", printable(e.Name), refusal(err))
						}
						fmt.Fprintf(&saved, "%s: its next call: %s\n", printable(e.Name), savedCall(next, e.Zone, paused))
					}
					return nil
				})
				if err != nil {
					return err
				}
				_, err = io.WriteString(cmd.OutOrStdout(), saved.String())
				return err
			})(cmd, args)
		},
	}
}

func (e scheduleEntry) schedule() store.Schedule {
	return store.Schedule{
		ScheduleName: store.ScheduleName{Name: e.Name, CreatedBy: e.CreatedBy}, Cron: e.Cron,
		Zone: cmp.Or(e.Zone, "UTC"), Missed: e.Missed, MissedWithin: e.MissedWithin, Overlap: e.Overlap, Jitter: e.Jitter,
		StartsAt: e.StartsAt, EndsAt: e.EndsAt,
		ScheduleCall: store.ScheduleCall{
			Tool: e.Tool, Input: json.RawMessage(cmp.Or(string(e.Input), "{}")), SessionID: e.SessionID, Priority: e.Priority,
		},
	}
}
