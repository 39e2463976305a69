//go:build !windows

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// job is the task of a worker's process, passed in the environment variable jobVariable.
type job struct {
	Name     string
	Database string // through the worker's proxy
	Outside  string
	Routes   string // of models
	Grace    time.Duration
	Verbose  bool
	Rules    bool
}

const jobVariable = "GEM_CHAOS_JOB"

// The exit codes of a worker's process, except 0, which means that it stopped in order.
const (
	exitCouldNotBegin = 3
	exitAlone         = 4 // the run ended before the worker
)

// work is the main function of a worker's process. It is built like `gem worker`, with the tools of the lab. SIGTERM
// stops it in order.
func work() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitAlone)
	}()
	err := runWorker(ctx)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return exitCouldNotBegin
	}
	return 0
}

func runWorker(ctx context.Context) error {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(jobVariable)), &j); err != nil {
		return err
	}
	reg, err := registry.Parse(labRegistry())
	if err != nil {
		return err
	}
	// Each request has its own connection, so that Go never repeats a request by itself.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	domains := []any{Lab{outside: j.Outside, client: client}, wait.Domain(), llm.Domain()}
	bound, err := binding.Bind(domains...)
	if err != nil {
		return err
	}
	const concurrency = 6
	calls, err1 := pgpool.Open(ctx, j.Database, pgpool.Options{MaxConns: concurrency, Mode: pgpool.Direct,
		Name: "gem calls"})
	control, err2 := pgpool.Open(ctx, j.Database, pgpool.Options{MaxConns: 2, Mode: pgpool.Direct, Name: "gem control"})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := pgpool.Wait(ctx, control.Ping, time.Minute, func(string) {}); err != nil {
		return err
	}
	variables := map[string]string{"LLM_ROUTES": j.Routes}
	err1 = binding.Configure(func(name string) string { return variables[name] }, domains...)
	if err := errors.Join(err1, binding.Open(handlers.Env{Pool: calls}, domains...)); err != nil {
		return err
	}
	var set *rules.Set
	if j.Rules {
		if set, err = rules.Parse(labRules); err != nil {
			return err
		}
	}
	told, err := notify.Parse([]byte(labNotify))
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Options{
		Notify: told, Calls: calls, Control: control, ListenURL: j.Database, Registry: reg, Rules: set, Handlers: bound,
		Name: j.Name, Concurrency: concurrency, ShutdownGrace: j.Grace, Log: logger(j.Verbose),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// logger returns a logger to stderr. It logs everything if verbose is set, and otherwise only errors.
func logger(verbose bool) *zap.Logger {
	level := zap.ErrorLevel
	if verbose {
		level = zap.DebugLevel
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime, encoding.EncodeDuration = zapcore.TimeEncoderOfLayout("15:04:05.000"),
		zapcore.StringDurationEncoder
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoding), zapcore.Lock(os.Stderr), level))
}
