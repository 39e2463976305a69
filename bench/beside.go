package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// pairs has the figures of two programs for one measure and contestant. Figures with the same index are from the same
// round.
type pairs struct {
	measure, contestant, unit string
	here, there               []float64
}

// measureBeside compares this program with the bench of another checkout, and prints the medians and the ratios. The
// two programs alternate or, with -together, run at the same time. Each round starts a new process and a new server.
func measureBeside(ctx context.Context, o options) error {
	here, err := os.Executable()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "gem-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var all []pairs
	for round := range o.rounds {
		var rowsHere, rowsThere []row
		turns := []func() error{
			func() (err error) {
				rowsHere, err = oneRound(ctx, here, filepath.Join(folder, "here.json"), o, o.after)
				return err
			},
			func() (err error) {
				rowsThere, err = oneRound(ctx, o.beside, filepath.Join(folder, "there.json"), o, "")
				return err
			},
		}
		if round%2 == 1 {
			slices.Reverse(turns) // neither always goes first
		}
		if err := runTurns(turns, o.together); err != nil {
			return errors.Join(fmt.Errorf("round %d: %w", round+1, err), printPairs(os.Stdout, all))
		}
		all = addPairs(all, rowsHere, rowsThere)
		say("round %d of %d", round+1, o.rounds)
		for _, p := range all {
			last := len(p.here) - 1
			say("  %-22s %-14s %s here, %s there, ratio %.3f", p.measure, p.contestant, number(p.here[last]),
				number(p.there[last]),
				p.here[last]/p.there[last])
		}
	}
	return printPairs(os.Stdout, all)
}

func runTurns(turns []func() error, together bool) error {
	if !together {
		for _, turn := range turns {
			if err := turn(); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, len(turns))
	var running sync.WaitGroup
	for i, turn := range turns {
		running.Go(func() { errs[i] = turn() })
	}
	running.Wait()
	return errors.Join(errs...)
}

// oneRound runs one round of a bench and returns the figures that the bench writes to file.
func oneRound(ctx context.Context, program, file string, o options, after string) (rows []row, err error) {
	args := []string{"-rounds", "1", "-json", file, "-only", o.only, "-contestants", o.contestants, "-folder", o.folder,
		"-conns", strconv.Itoa(o.conns), "-calls", strconv.Itoa(o.calls), "-after", after,
		"-quick=" + strconv.FormatBool(o.quick)}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute // for the program to stop its server
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, said)
	}
	encoded, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return rows, errors.Join(json.Unmarshal(encoded, &rows), os.Remove(file))
}

// addPairs adds the figures that both programs have.
func addPairs(to []pairs, here, there []row) []pairs {
	for _, h := range here {
		same := func(measure, contestant string) bool { return measure == h.Measure && contestant == h.Contestant }
		t := slices.IndexFunc(there, func(t row) bool { return same(t.Measure, t.Contestant) })
		if t < 0 {
			continue
		}
		i := slices.IndexFunc(to, func(p pairs) bool { return same(p.measure, p.contestant) })
		if i < 0 {
			i = len(to)
			to = append(to, pairs{measure: h.Measure, contestant: h.Contestant, unit: h.Unit})
		}
		to[i].here, to[i].there = append(to[i].here, h.Median), append(to[i].there, there[t].Median)
	}
	return to
}

// printPairs prints a line for each measure and contestant. The ratio is the median of the rounds' ratios.
func printPairs(to io.Writer, all []pairs) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "measure\tcontestant\there\tspread\tthere\tspread\tunit\there/there\tspread")
	spread := func(values []float64, text func(float64) string) string {
		return text(slices.Min(values)) + "–" + text(slices.Max(values))
	}
	exact := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	for _, p := range all {
		ratios := make([]float64, len(p.here))
		for i := range ratios {
			ratios[i] = p.here[i] / p.there[i]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.measure, p.contestant, number(median(p.here)),
			spread(p.here, number),
			number(median(p.there)), spread(p.there, number), p.unit, exact(median(ratios)), spread(ratios, exact))
	}
	return t.Flush()
}
