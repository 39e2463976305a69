package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/pgserver"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func demoCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it all in a few seconds: a database, a worker, a dozen calls, their receipts",
		Long: describe("Show it all in a few seconds: a database, a worker, a dozen calls, their receipts", `
A private Postgres is started, and stopped and removed at the end; where
DATABASE_URL is set, that database is used instead, and the demo's rows stay in
it. A worker runs in this process, and a dozen calls are inserted as a frontend
would insert them. The exit code is 0 when each ended as it should, with one
receipt. Nothing is sent anywhere: mail and SMS are not configured here.`),
		Example: "  gem demo\n  gem demo --verbose",
		Args:    takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			if err != nil {
				return err
			}
			d := &demo{out: cmd.OutOrStdout(), progress: cmd.ErrOrStderr(), began: time.Now(), log: zap.NewNop()}
			if verbose {
				d.log = consoleLogger(cfg)
			}
			return d.run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the worker's log")
	return cmd
}

// demo is one run of `gem demo`.
type demo struct {
	out, progress io.Writer
	log           *zap.Logger
	began         time.Time
	frontend      *pgx.Conn
	calls         []*demoCall
}

// demoCall is a call of the demo and how it must end.
type demoCall struct {
	tool  string
	input map[string]any
	want  receipts.Status
	code  receipts.Code // of a failed one

	id      string
	receipt *receipts.Receipt
}

// receiptsWithin is how long a round of calls may take. They take milliseconds.
const receiptsWithin = 30 * time.Second

// run sets everything up, shows it, and takes it down again, also when ctx ends in the middle.
func (d *demo) run(ctx context.Context, cfg *config.Config) error {
	fmt.Fprintln(d.progress, "A frontend inserts calls into a table, a worker runs them, and each ends with exactly one receipt.")
	fmt.Fprintln(d.progress)
	if cfg.DatabaseURL != "" {
		d.say("DATABASE_URL is set: the demo uses that database, and its rows stay there (unset it for a private one)")
		return d.onDatabase(ctx, cfg)
	}
	server, err := pgserver.Start(ctx, pgserver.Options{Log: func(line string) { d.say("%s", line) }})
	if err != nil {
		return err
	}
	d.say("a private Postgres runs; nothing of it stays")
	err = d.onDatabase(ctx, withDatabase(cfg, server.URL("postgres")))
	return errors.Join(err, server.Stop())
}

// onDatabase migrates, starts a worker, and shows what it does with a dozen calls.
func (d *demo) onDatabase(ctx context.Context, cfg *config.Config) error {
	direct := cfg.DatabaseURL.Reveal()
	if cfg.DirectURL != "" {
		direct = cfg.DirectURL.Reveal()
	}
	if err := waitFor(ctx, direct, 0, d.progress); err != nil {
		return err
	}
	if err := d.connect(ctx, cfg); err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = d.frontend.Close(closing)
	}()
	// A database that others work with is not even migrated. Calls of an earlier GEM are known after that.
	if err := d.refuseBusy(ctx); err != nil {
		return err
	}
	done, err := migrate(ctx, direct)
	if err != nil {
		return err
	}
	d.say("%s", migrated(done))
	if err := d.refuseBusy(ctx); err != nil {
		return err
	}

	reg, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		return err
	}
	own := *cfg
	own.WorkerID, own.WorkerConcurrency, own.ShutdownGrace = "demo", 4, time.Second
	s, err := build(ctx, parts{config: &own, registry: reg, deps: handlers.Deps{}, log: d.log})
	if err != nil {
		return err
	}
	defer s.close()
	d.say("a worker runs, with the %d tools of the built-in registry %s", len(reg.Tools()), reg.Version)

	working, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := s.worker.Run(working)
		stop(fmt.Errorf("the demo's worker ended: %w", refusal(err))) // and the waiting with it
	}()
	err = d.show(working)
	if err != nil && ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	stop(nil)
	<-ended
	return err
}

// connect opens the frontend's own connection.
func (d *demo) connect(ctx context.Context, cfg *config.Config) error {
	config, err := pgx.ParseConfig(cfg.DatabaseURL.Reveal())
	if err != nil {
		return usage("DATABASE_URL is not valid: it has the form postgres://user:password@host:5432/database")
	}
	pgpool.Configure(config, pgpool.Options{Name: "gem demo frontend"})
	d.frontend, err = pgx.ConnectConfig(ctx, config)
	return refusal(err)
}

// refuseBusy keeps the demo's worker away from the calls of others: it has a registry of its own and no setup.
func (d *demo) refuseBusy(ctx context.Context) error {
	for _, sign := range []struct{ sql, means string }{
		{`select exists (select from public.core_workers where ` + living + `)`, "has a worker, which would take the demo's calls"},
		{`select exists (select from public.core_tool_calls where status = 'queued')
		      or exists (select from public.core_tool_calls where status = 'running')
		      or exists (select from public.core_tool_calls where status = 'waiting')`,
			"has calls that have not ended, and the demo's worker would take them"},
	} {
		var busy bool
		if err := d.frontend.QueryRow(ctx, sign.sql).Scan(&busy); err != nil && !lacksSchema(err) {
			return refusal(err)
		}
		if busy {
			return fmt.Errorf("the database of DATABASE_URL %s: unset DATABASE_URL, and the demo starts a Postgres of its own", sign.means)
		}
	}
	return nil
}

// show makes the calls, prints what came of them, and checks it.
func (d *demo) show(ctx context.Context) error {
	mark := fmt.Sprintf("%08d", rand.IntN(1e8)) // no lead and no note that is there already has it
	phone := "+61 4" + mark[:2] + " " + mark[2:5] + " " + mark[5:]
	title := "Inspection " + mark
	lead := map[string]any{"name": "Sam Carter", "phone": phone, "suburb": "Fitzroy", "source": "referral"}

	first := []*demoCall{
		{tool: "os.health_check", want: receipts.Succeeded},
		{tool: "os.create_note", want: receipts.Succeeded,
			input: map[string]any{"domain": "business", "title": title, "content": "Two broken tiles above the gutter."}},
		{tool: "leads.create", want: receipts.Succeeded, input: lead},
		{tool: "leads.create", want: receipts.Succeeded, input: lead},
		{tool: "os.create_task", want: receipts.Succeeded,
			input: map[string]any{"domain": "business", "title": "Call Sam Carter back", "priority": "high"}},
		{tool: "os.create_task", want: receipts.Failed, code: receipts.ValidationError, input: map[string]any{"domain": "business"}},
		{tool: "os.make_coffee", want: receipts.Failed, code: receipts.UnknownTool},
		{tool: "comms.send_sms", want: receipts.NotConfigured, input: map[string]any{
			"to": phone, "message": "We are on our way.", "context_ref": map[string]any{"type": "lead", "id": "1"}}},
		{tool: "quote.generate_pdf", want: receipts.NotConfigured, input: map[string]any{"quote_id": "Q-1"}},
	}
	fmt.Fprintf(d.progress, "\nThe frontend inserts %d calls, such as:\n  %s;\n\n", len(first), readableInsert(first[1]))
	if err := d.round(ctx, first); err != nil {
		return err
	}
	note, leads := first[1], first[2:4]
	leadID := field(leads[0].receipt, "lead_id")
	fmt.Fprintf(d.progress, "\nIt reads the receipts, and goes on with what they say: the lead is %s.\n\n", leadID)
	second := []*demoCall{
		{tool: "leads.update_stage", want: receipts.Succeeded, input: map[string]any{"lead_id": leadID, "stage": "contacted"}},
		{tool: "os.search_notes", want: receipts.Succeeded, input: map[string]any{"query": title}},
		{tool: "leads.mark_lost", want: receipts.Failed, code: receipts.ExecutionError,
			input: map[string]any{"lead_id": "00000000-0000-4000-8000-000000000000", "reason": "There is no such lead."}},
	}
	if err := d.round(ctx, second); err != nil {
		return err
	}
	if err := d.print(); err != nil {
		return err
	}
	if err := errors.Join(d.endedAsTheyShould(), d.oneLead(ctx, leads, phone), found(second[1], note)); err != nil {
		return fmt.Errorf("not everything is as promised:\n%w", err)
	}
	_, err := fmt.Fprint(d.out, `
Each call has one receipt. The second leads.create has the phone of the first: it repeated its receipt, and there is one lead.

Try next:
  gem dev                   a private Postgres and a worker that stay until Ctrl-C
  gem registry list         the tools
  gem --help                all commands
`)
	return err
}

// round inserts calls and waits for their receipts.
func (d *demo) round(ctx context.Context, calls []*demoCall) error {
	ctx, cancel := context.WithTimeoutCause(ctx, receiptsWithin, errTimeout)
	defer cancel()
	waiting := map[string]*demoCall{}
	for _, c := range calls {
		err := d.frontend.QueryRow(ctx, "insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text", c.tool, c.json()).Scan(&c.id)
		if err != nil {
			return fmt.Errorf("insert a call of %s: %w", c.tool, refusal(err))
		}
		waiting[c.id] = c
		d.calls = append(d.calls, c)
	}
	for len(waiting) > 0 {
		for _, c := range calls {
			if waiting[c.id] == nil {
				continue
			}
			r, err := store.Receipt(ctx, d.frontend, c.id)
			switch {
			case errors.Is(err, receipts.ErrNone):
			case err != nil && !errors.Is(context.Cause(ctx), errTimeout):
				return refusal(err)
			case err == nil:
				c.receipt = r
				delete(waiting, c.id)
				d.say("%-20s %s", c.tool, r.Status)
			}
		}
		if len(waiting) == 0 {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errTimeout) {
				return fmt.Errorf("not everything is as promised: %s without a receipt after %s", count(len(waiting), "call"), receiptsWithin)
			}
			return ctx.Err()
		}
	}
	return nil
}

func (c *demoCall) json() string {
	if c.input == nil {
		return "{}"
	}
	encoded, err := json.Marshal(c.input)
	if err != nil {
		panic(err) // texts in maps
	}
	return string(encoded)
}

// readableInsert is the statement of a call as a person would write it.
func readableInsert(c *demoCall) string {
	return fmt.Sprintf("insert into core_tool_calls (tool_name, input) values ('%s', '%s')", c.tool, strings.ReplaceAll(c.json(), "'", "''"))
}

// print prints the receipts as a table.
func (d *demo) print() error {
	fmt.Fprintln(d.progress)
	rows := [][]string{{"TOOL", "OUTCOME", "HIT", "TOOK", "WHAT CAME OF IT"}}
	for _, c := range d.calls {
		hit := ""
		if c.receipt.ReplayOf != "" {
			hit = "hit"
		}
		rows = append(rows, []string{c.tool, string(c.receipt.Status), hit, span(milliseconds(c.receipt.DurationMS)), cut(upshot(c.receipt), 90)})
	}
	return table(d.out, rows)
}

// endedAsTheyShould compares each receipt with what was promised.
func (d *demo) endedAsTheyShould() error {
	var wrong []error
	for _, c := range d.calls {
		e, _ := c.receipt.Error()
		if c.receipt.Status != c.want || e.Code != c.code {
			wrong = append(wrong, fmt.Errorf("%s should end as %s, and ended as %s", c.tool, outcome(c.want, c.code), outcome(c.receipt.Status, e.Code)))
		}
	}
	return errors.Join(wrong...)
}

func outcome(s receipts.Status, code receipts.Code) string {
	if code == "" {
		return string(s)
	}
	return fmt.Sprintf("%s (%s)", s, code)
}

// oneLead checks that two calls with one phone made one lead: one ran, the other repeats its receipt.
func (d *demo) oneLead(ctx context.Context, calls []*demoCall, phone string) error {
	ran, repeated := calls[0].receipt, calls[1].receipt
	if ran.ReplayOf != "" { // they ran at the same time, and either may have come first
		ran, repeated = repeated, ran
	}
	if ran.ReplayOf != "" || repeated.ReplayOf != ran.ID || field(ran, "lead_id") != field(repeated, "lead_id") {
		return errors.New("of two calls of leads.create with one phone, one should repeat the receipt of the other")
	}
	var leads int
	if err := d.frontend.QueryRow(ctx, "select count(*) from leads where phone = $1", phone).Scan(&leads); err != nil {
		return refusal(err)
	}
	if leads != 1 {
		return fmt.Errorf("one phone should make one lead, and made %d", leads)
	}
	return nil
}

// found checks that the search found the note that a call before it wrote.
func found(search, note *demoCall) error {
	if id := field(note.receipt, "note_id"); id == "" || !strings.Contains(string(search.receipt.Result), id) {
		return errors.New("os.search_notes should find the note that os.create_note wrote")
	}
	return nil
}

// field is a text in the result of a receipt; empty when there is none.
func field(r *receipts.Receipt, name string) string {
	var result map[string]any
	_ = json.Unmarshal(r.Result, &result)
	text, _ := result[name].(string)
	return text
}

// say tells on progress what goes on, and when.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.progress, "%6.2f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}
