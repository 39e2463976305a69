package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// source returns the folder of GEM's source: the checkout in which the bench itself was built. So two benches from
// different checkouts measure different programs.
func source(ctx context.Context) (folder string, err error) {
	_, file, _, _ := runtime.Caller(0)
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/gemworker/gem")
	list.Dir = filepath.Dir(file)
	root, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find GEM's source (keep the checkout in which the bench was built): %w", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// build builds the program with the flags of a release, once, in the scratch folder, and returns its path.
func (b *bench) build(ctx context.Context) (program string, err error) {
	if b.program != "" {
		return b.program, nil
	}
	root, err := source(ctx)
	if err != nil {
		return "", err
	}
	program = filepath.Join(b.lab.scratch, "gem")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-gcflags=google.golang.org/...=-l",
		"-ldflags", "-s -w", "-o", program, "./cmd/gem")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gem: %w: %s", err, said)
	}
	b.program = program
	return program, nil
}

func sizeOfProgram(ctx context.Context, b *bench, _ contestant) ([]figure, error) {
	program, err := b.build(ctx)
	if err != nil {
		return nil, err
	}
	file, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	return []figure{{measure: "binary", unit: "MB", value: float64(file.Size()) / 1e6}}, nil
}

// startWorker starts a gem worker on the stage's database, with further variables. The worker gets nothing else of the
// bench's environment, which may name other databases. Its output is discarded.
func (b *bench) startWorker(ctx context.Context, s *stage, variables ...string) (pid int, stop func(), err error) {
	program, err := b.build(ctx)
	if err != nil {
		return 0, nil, err
	}
	cmd, end := command(ctx, b.lab.scratch, program, []string{"worker"},
		append([]string{"DATABASE_URL=" + s.url, "LOG_LEVEL=info"}, variables...))
	if err := cmd.Start(); err != nil {
		end()
		return 0, nil, fmt.Errorf("start gem worker: %w", err)
	}
	return cmd.Process.Pid, func() { end(); _ = cmd.Wait() }, nil
}

// command returns a command with only these variables, in a folder without a registry. SIGTERM ends it when ctx ends or
// end is called.
func command(ctx context.Context, folder, program string, args, variables []string) (cmd *exec.Cmd,
	end context.CancelFunc) {
	running, end := context.WithCancel(ctx)
	cmd = exec.CommandContext(running, program, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = folder, variables, 10*time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, end
}

// notes queues calls to a tool of the gem program.
func (s *stage) notes(ctx context.Context, n int) error {
	_, err := s.db.Exec(ctx, `insert into core_tool_calls (tool_name, input)
		select 'os.create_note', jsonb_build_object('domain', 'business', 'title', 'Note ' || i, 'content',
			'Wants an offer by Friday.')
		from generate_series(1, $1::int) i`, n)
	return err
}

// startOfWorker measures the time to the first claim: loading the program, checking the registry, and connecting.
func startOfWorker(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	if _, err := b.build(ctx); err != nil {
		return nil, err
	}
	var took []float64
	for range b.sizes.starts {
		one, err := b.startOnce(ctx, c)
		if err != nil {
			return nil, err
		}
		took = append(took, milliseconds(one))
	}
	return []figure{{measure: "start", unit: "ms", value: median(took), singles: took}}, nil
}

func (b *bench) startOnce(ctx context.Context, c contestant) (time.Duration, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return 0, err
	}
	defer s.drop()
	if err := s.notes(ctx, 1); err != nil {
		return 0, err
	}
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	_, stop, err := b.startWorker(ctx, s)
	if err != nil {
		return 0, err
	}
	defer stop()
	if err := s.waitEnded(ctx, c, 1); err != nil {
		return 0, err
	}
	var claimed time.Time
	err = s.db.QueryRow(ctx, "select claimed_at from core_tool_calls").Scan(&claimed)
	return claimed.Sub(began), err
}

// idleWorker measures the statements and the CPU of an idle worker.
func idleWorker(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	if err := s.notes(ctx, 1); err != nil {
		return nil, err
	}
	pid, stop, err := b.startWorker(ctx, s)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := s.waitEnded(ctx, c, 1); err != nil {
		return nil, err
	}
	// A session reports its statistics when it ends. The bench's own must not be counted later.
	s.db.Reset()
	if err := sleepUntil(ctx, time.Now().Add(b.sizes.settling)); err != nil {
		return nil, err
	}
	outside, err := b.lab.admin(ctx) // its statistics are those of another database
	if err != nil {
		return nil, err
	}
	defer outside.Close()
	statements := func() (n int64, err error) {
		err = outside.QueryRow(ctx, "select xact_commit + xact_rollback from pg_stat_database where datname = $1",
			s.name).Scan(&n)
		return n, err
	}

	before, err := statements()
	if err != nil {
		return nil, err
	}
	cpuBefore, cpuErr := cpuTime(pid)
	began := time.Now()
	if err := sleepUntil(ctx, began.Add(b.sizes.idle)); err != nil {
		return nil, err
	}
	after, err := statements()
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	figures := []figure{{measure: "idle-statements", unit: "statements/s", value: float64(after-before) / took.Seconds()}}
	if errors.Is(cpuErr, errNoProc) {
		say("idle-cpu is not measured here: %v", cpuErr)
		return figures, nil
	}
	cpuAfter, err := cpuTime(pid)
	if err := errors.Join(cpuErr, err); err != nil {
		return figures, err
	}
	return append(figures, figure{measure: "idle-cpu", unit: "% of a core",
		value: 100 * (cpuAfter - cpuBefore).Seconds() / took.Seconds()}), nil
}

// memoryOfWorker measures the peak memory of the process while it runs its calls.
func memoryOfWorker(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	if err := s.notes(ctx, b.sizes.memoryCalls); err != nil {
		return nil, err
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	pid, stop, err := b.startWorker(ctx, s)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := s.waitEnded(ctx, c, b.sizes.memoryCalls); err != nil {
		return nil, err
	}
	peak, err := peakMemory(pid)
	if errors.Is(err, errNoProc) {
		say("memory is not measured here: %v", err)
		return nil, nil
	}
	return []figure{{measure: "memory", unit: "MB", value: float64(peak) / 1e6}}, err
}

// memoryOfEnds measures how much memory a worker's process needs to remember 1,000 ends a second: the growth from the
// end of the warm-up to the end of the run.
func memoryOfEnds(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	pid, stop, err := b.startWorker(ctx, s)
	if err != nil {
		return nil, err
	}
	defer stop()
	const warm = 5 // seconds
	var before int64
	began := time.Now()
	for second := range warm + b.sizes.endSeconds {
		if second == warm {
			if before, err = residentMemory(pid); err != nil {
				break
			}
		}
		_, err = s.db.Exec(ctx, "insert into core_tool_calls (tool_name, input) select 'os.health_check', '{}' "+
			"from generate_series(1, 1000)")
		if err == nil {
			err = sleepUntil(ctx, began.Add(time.Duration(second+1)*time.Second))
		}
		if err != nil {
			return nil, err
		}
	}
	var after int64
	if err == nil {
		after, err = residentMemory(pid)
	}
	if errors.Is(err, errNoProc) {
		say("memory-ends is not measured here: %v", err)
		return nil, nil
	}
	return []figure{{measure: "memory-ends", unit: "MB", value: float64(after-before) / 1e6}}, err
}
