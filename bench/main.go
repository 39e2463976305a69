package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == serviceArgument { // startService runs the bench with this argument
		say("%v", serveTools())
		os.Exit(1)
	}
	signal.Ignore(syscall.SIGPIPE) // a closed pipe must not leave a server behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:]))
}

// options has the values of the flags.
type options struct {
	quick       bool
	json        string
	only        string
	contestants string
	rounds      int
	calls       int
	conns       int
	after       string
	beside      string
	together    bool
	folder      string
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "one round of small sizes, within a minute: a check that everything works")
	f.StringVar(&o.json, "json", "", "also write the figures to this `file`")
	f.StringVar(&o.only, "only", "", "measure only these: a `list` of names such as "+
		"throughput,latency,claim-1m.\n"+
		"Any other word selects all measures that begin with it")
	f.StringVar(&o.contestants, "contestants", "", "measure only these: a `list` of names such as gem,floor")
	f.IntVar(&o.calls, "calls", 0, "the number of calls in a throughput backlog (0: 50,000, or 1,500 with -quick)")
	f.IntVar(&o.conns, "conns", 0, "the number of connections for throughput (0: the default of each measure)")
	f.StringVar(&o.after, "after", "", "run the SQL in this `file` in GEM's databases after their migration, to see "+
		"the cost of a change")
	f.StringVar(&o.beside, "against", "", "compare with the bench of another checkout, a `program` built there with go "+
		"build: one round of each\n"+
		"in turns. -after then applies only to this side, and the default measures are throughput and CPU of gem")
	f.BoolVar(&o.together, "together", false, "with -against: run both at once instead of in turns. On a shared machine "+
		"this makes the ratio of the\n"+
		"CPU times far steadier. Elapsed times are then meaningless")
	f.IntVar(&o.rounds, "rounds", 3, "the number of rounds (with -quick: 1)")
	f.StringVar(&o.folder, "folder", os.TempDir(), "the `folder` for the server's temporary data folder. It should be on "+
		"a disk, so that\ncommits have their real cost")
	f.Usage = func() {
		fmt.Fprint(f.Output(), `Compares GEM with River and with the least work that any such system must do,
on a private Postgres with durability on, and prints one table. Run it in its
folder, on an idle machine:

  go run .                                 everything: about an hour
  go run . -quick                          a quick check: a minute
  go run . -only throughput -json out.json
  go run . -against /tmp/base/bench/bench   compare two builds of GEM: CPU per call

Compare figures only within one run. For a description of the measures and the
contestants, run go doc.

Measures:
`)
		for _, line := range wrapped(measureNames(), 76) {
			fmt.Fprintln(f.Output(), "  "+line)
		}
		fmt.Fprintln(f.Output(), "\nFlags:")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: the bench takes only flags", f.Arg(0))
	}
	if o.rounds < 1 {
		return o, errors.New("-rounds must be at least 1")
	}
	if o.calls < 0 || o.conns < 0 {
		return o, errors.New("-calls and -conns must not be negative")
	}
	if o.together && o.beside == "" {
		return o, errors.New("-together needs -against")
	}
	if o.beside != "" {
		o.only = cmp.Or(o.only,
			"throughput,throughput-norow,cpu,cpu-norow,cpu-postgres,cpu-postgres-norow,cpu-worker,cpu-worker-norow")
		o.contestants = cmp.Or(o.contestants, gem.Name())
	} else if o.quick {
		o.rounds = 1
	}
	return o, nil
}

// run returns the exit status: 1 if something failed, 2 if the flags are wrong.
func run(ctx context.Context, args []string) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		say("%v", err)
		return 2
	}
	wanted, err := choose(o.only)
	if err != nil {
		say("%v", err)
		return 2
	}
	contestants, err := chooseContestants(o.contestants)
	if err != nil {
		say("%v", err)
		return 2
	}
	if o.beside != "" {
		if err := measureBeside(ctx, o); err != nil {
			say("failed: %v", err)
			return 1
		}
		return 0
	}
	debug.SetGCPercent(300) // same as `gem worker`, for all contestants that run in this process
	failed := false
	rows, err := measure(ctx, o, wanted, contestants)
	if err != nil {
		failed = true
		say("failed: %v", err)
	}
	if err := printTable(os.Stdout, rows); err != nil {
		failed = true
		say("print the table: %v", err)
	}
	if o.json != "" {
		if err := writeJSON(o.json, rows); err != nil {
			failed = true
			say("write the figures: %v", err)
		}
	}
	if failed {
		return 1
	}
	return 0
}

// measure runs the experiments for the wanted measures. A failed experiment does not stop the others. The rows are from
// the experiments that succeeded, and the error joins all failures.
func measure(ctx context.Context, o options, wanted, contestants map[string]bool) ([]row, error) {
	l, err := startLab(ctx, o.folder)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	if o.after != "" {
		after, err := os.ReadFile(o.after)
		if err != nil {
			return nil, err
		}
		l.after = string(after)
	}
	sizes := fullSizes
	if o.quick {
		sizes = quickSizes
	}
	sizes.backlog = cmp.Or(o.calls, sizes.backlog)
	sizes.conns = o.conns
	b := &bench{lab: l, sizes: sizes}
	var figures []figure
	var failures []error
	for round := range o.rounds {
		for _, e := range experiments {
			if !e.gives(wanted) || e.once && round > 0 {
				continue
			}
			for i := range e.contestants {
				c := e.contestants[(i+round)%len(e.contestants)] // no contestant always goes first
				if !contestants[c.Name()] {
					continue
				}
				began := time.Now()
				got, err := e.run(ctx, b, c)
				if ctx.Err() != nil {
					return summarise(figures), errors.Join(append(failures, errors.New("stopped before the end"))...)
				}
				if err != nil {
					failures = append(failures, fmt.Errorf("%s, %s: %w", e.measures[0], c.Name(), err))
					say("round %d  %-22s %-14s failed: %v", round+1, e.measures[0], c.Name(), err)
					continue
				}
				for _, f := range got {
					f.contestant = c.Name()
					if wanted[f.measure] {
						figures = append(figures, f)
						say("round %d  %-22s %-14s %s %s", round+1, f.measure, f.contestant, number(f.value), f.unit)
					}
				}
				say("round %d  took %v", round+1, time.Since(began).Round(100*time.Millisecond))
			}
		}
	}
	return summarise(figures), errors.Join(failures...)
}

// say prints progress to stderr. Results go only to stdout.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// wrapped joins words to lines of at most width characters.
func wrapped(words []string, width int) (lines []string) {
	var line string
	for _, w := range words {
		if line != "" && len(line)+2+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + "  " + w)
	}
	return append(lines, line)
}
