// Package worker takes calls from the queue and runs each to its receipt.
//
// The life of a call is the function run, in run.go: its steps decide, take the key and execute, and each may say how the
// attempt ends. The handler runs in handler.go; its input and output are checked in check.go. What an error becomes, and the
// one function that writes an end, are in end.go. Calls come from loop.go, which claims what there is room for. Beside that,
// heartbeat.go shows that the process lives, and what it says of the running calls; listen.go is woken by inserts;
// ends.go tells those who wait for calls of their ends; watchdog.go ends a process that hangs; telemetry.go makes spans and measurements.
//
// Every change of a call is one SQL function: see internal/store, and the functions in migrations. All that this package
// keeps in memory may be lost at any line.
package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

const (
	// statementTimeout limits every statement of the worker's own. A handler's statements are limited by its tool's timeout.
	statementTimeout = lanes.StatementTimeout
	// controlTimeout limits claims and heartbeats. On a network that swallows packets, a worker must find a connection that
	// works before the others take it for dead.
	controlTimeout = lanes.ControlTimeout
	// After the grace time, the ends of calls may take endTimeout, and the last statement stopTimeout: platforms kill a process
	// that takes long to stop.
	endTimeout, stopTimeout = 6 * time.Second, 2 * time.Second
)

// Options configure a worker. Calls, Control, Registry and Handlers are required; all other fields have a default.
type Options struct {
	// Calls is the pool that handlers, receipts and keys share. A handler's transaction needs a connection to itself: with
	// fewer connections than Concurrency, handlers may wait for one.
	Calls *pgxpool.Pool
	// Control is the pool for claims and heartbeats, so that no handler can starve them. Two connections are enough.
	Control *pgxpool.Pool
	// ListenURL is a connection string for notifications of new calls, which do not pass a transaction pooler. Default: none;
	// the worker only polls.
	ListenURL string

	// Registry has the tools, and Handlers what they do. A tool without a handler ends as not_configured.
	Registry *registry.Registry
	Handlers *handlers.Handlers
	// Rules restrict the calls. Default: none.
	Rules *rules.Set

	// Name is the first part of the worker's id, before a random suffix. Default: worker.
	Name string
	// Version is recorded in core_workers. Default: dev.
	Version string
	// Concurrency is how many calls run at once. Default: 10.
	Concurrency int
	// PollInterval is how often the worker looks for calls when nothing tells it of any. Default: 1 s. Without notifications
	// it looks more often for a while after each call.
	PollInterval time.Duration
	// ShutdownGrace is how long running calls may go on after the worker was told to stop. Default: 0, they are ended at once.
	ShutdownGrace time.Duration
	// HeartbeatInterval is how often the worker shows that it lives. Default: 1.5 s.
	HeartbeatInterval time.Duration
	// DeadAfter is the silence after which others take over its calls, at least twice HeartbeatInterval. Default: 5 s. A
	// worker whose own heartbeats are late takes nobody for dead.
	DeadAfter time.Duration

	// StallLimit is how long the loop may hang before OnStall is called. Default: 1 min.
	StallLimit time.Duration
	// OnStall is called once. Default: it logs how long the loop has hung, and ends the process with status 70, so that the
	// platform starts it again.
	OnStall func(hung time.Duration)

	// Tracer gets a span for each attempt, and Meter the measurements. Default: none.
	Tracer trace.Tracer
	Meter  metric.Meter
	// Log gets a line for each call that ends, and at level debug one for each claim. Default: none.
	Log *zap.Logger

	hook func(when, what string) // see [Worker.at]
}

// Worker runs calls. A process may have several.
type Worker struct {
	id        string
	options   Options
	log       *zap.Logger
	judge     *rules.Judge // nil without rules
	lanes     *lanes.Lanes
	telemetry *telemetry // nil if there is no Tracer and no Meter

	// Of the loop. The channels carry one signal at most.
	wake       chan struct{} // a call may be ready
	freed      chan struct{} // there is room for calls
	rewind     atomic.Bool   // a call came back to its earlier place in the queue
	loopedAt   atomic.Int64  // when the loop last began a round, in Unix nanoseconds
	claiming   sync.Mutex    // held during a claim, until its calls are in running
	cursor     claimCursor
	wakeWanted bool        // what core_workers has in wants_wake
	registered atomic.Bool // anew: core_workers has false there

	// Of the services beside it.
	beat       chan struct{} // a heartbeat is wanted now
	ends       ends          // of which those who wait are to be told
	listening  atomic.Bool   // notifications arrive
	sweepUntil atomic.Int64  // heartbeats make full sweeps until then, in Unix nanoseconds
	lastSweep  time.Time
	warnAt     atomic.Int64 // when the next warning may be logged, in Unix nanoseconds
	unsaid     atomic.Int64 // warnings that were not, since the last
	giveUpAt   atomic.Int64 // when the worker stops trying to write ends, in Unix nanoseconds; 0 until it is told to stop

	mu         sync.Mutex
	running    map[store.Attempt]*claimedCall // all calls that were claimed and have not ended, ready ones too
	ready      []*claimedCall                 // those that wait for a slot, in order
	suspects   int                            // calls in running that may kill their worker
	background int                            // background calls in running
	busy       int                            // slots that run a call
	slots      sync.WaitGroup
	handed     chan func() // to goroutines that wait for the next handler: see [Worker.apart]; closed when all slots have ended
	rate       claimRate
	refillAt   int // so few ready calls are a reason to claim more
}

// New checks the options. It does not connect.
func New(o Options) (*Worker, error) {
	if o.Calls == nil || o.Control == nil || o.Registry == nil || o.Handlers == nil {
		return nil, errors.New("worker: Calls, Control, Registry and Handlers must be set")
	}
	o.Name = cmp.Or(o.Name, "worker")
	o.Version = cmp.Or(o.Version, "dev")
	o.Concurrency = cmp.Or(o.Concurrency, 10)
	o.PollInterval = cmp.Or(o.PollInterval, time.Second)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, 1500*time.Millisecond)
	o.DeadAfter = cmp.Or(o.DeadAfter, 5*time.Second)
	o.StallLimit = cmp.Or(o.StallLimit, time.Minute)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.OnStall == nil {
		o.OnStall = endProcess(o.Log)
	}
	if o.Concurrency < 1 || o.DeadAfter < 2*o.HeartbeatInterval {
		return nil, errors.New("worker: Concurrency must be at least 1, and DeadAfter at least twice HeartbeatInterval")
	}
	var suffix [4]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return nil, err
	}
	w := &Worker{
		// A restarted process must not be taken for its predecessor, whose calls are to be recovered.
		id:      o.Name + "-" + hex.EncodeToString(suffix[:]),
		options: o,
		log:     o.Log,
		lanes:   lanes.New(o.Calls),
		wake:    make(chan struct{}, 1),
		freed:   make(chan struct{}, 1),
		beat:    make(chan struct{}, 1),
		ends:    ends{more: make(chan struct{}, 1)},
		handed:  make(chan func()),
		running: map[store.Attempt]*claimedCall{},
	}
	if o.Rules != nil {
		w.judge = o.Rules.For(o.Registry)
	}
	var err error
	if w.telemetry, err = newTelemetry(w); err != nil {
		return nil, fmt.Errorf("worker: set up telemetry: %w", err)
	}
	return w, nil
}

// ID is the worker's id: its name and a random suffix.
func (w *Worker) ID() string { return w.id }

// Run works until ctx ends, and then stops in order: it claims nothing more, lets running calls end within the grace time,
// hands over or finishes the rest, and says that it has stopped. It returns an error only if it could not start.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to stop before it had started
		}
		return err
	}
	// The services go on after the loop has ended: a call that is still ending needs the worker's heartbeat.
	services, stopServices := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	w.loopedAt.Store(time.Now().UnixNano())
	beside.Go(func() { w.heartbeats(services) })
	beside.Go(func() { w.countOutcomes(services) })
	beside.Go(func() { w.watch(ctx) })
	beside.Go(func() { w.timers(services) })
	beside.Go(func() { w.tellEnds(services) })
	if w.options.ListenURL != "" {
		beside.Go(func() { w.listen(services) })
	}
	w.log.Info("worker started", zap.String("worker_id", w.id), zap.Int("concurrency", w.options.Concurrency),
		zap.String("registry_version", w.options.Registry.Version), zap.String("rules_version", w.rulesVersion()), zap.Duration("poll_interval", w.options.PollInterval))

	w.loop(ctx)
	w.stop()

	stopServices()
	beside.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	w.warn(store.StopWorker(ctx, w.options.Control, w.id), "record that the worker has stopped")
	w.log.Info("worker stopped", zap.String("worker_id", w.id))
	return nil
}

// start makes the registry, the rules, what domains have to say, and the worker known.
func (w *Worker) start(ctx context.Context) error {
	starting, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := w.recordRegistry(starting); err != nil {
		return err
	}
	if err := w.checkRules(starting); err != nil {
		return err
	}
	if err := w.options.Handlers.Check(starting, w.options.Control); err != nil {
		return err
	}
	if err := w.register(starting); err != nil {
		return fmt.Errorf("register the worker: %w", err)
	}
	w.warn(w.heartbeat(ctx), "send the first heartbeat")
	return nil
}

// register makes the worker known: when it starts, and when it was silent for so long that its row has left.
func (w *Worker) register(ctx context.Context) error {
	w.registered.Store(true)
	return store.StartWorker(ctx, w.options.Control, store.Worker{
		ID: w.id, Concurrency: w.options.Concurrency, Version: w.options.Version, RegistryVersion: w.options.Registry.Version,
		DeadAfter: w.options.DeadAfter, Capabilities: w.capabilities(), RulesVersion: w.rulesVersion(),
	})
}

func (w *Worker) rulesVersion() string {
	if w.options.Rules == nil {
		return ""
	}
	return w.options.Rules.Version
}

// capabilities are what a call may need of this worker: that it goes on with the steps of another, and that it knows a tool. A call that needs another capability is not claimed.
func (w *Worker) capabilities() []string {
	tools := w.options.Registry.Tools()
	all := []string{"steps"}
	for _, t := range tools {
		all = append(all, knows(t.Name))
	}
	return all
}

// knows is the capability of a worker whose registry has a tool.
func knows(tool string) string { return "tool " + tool }

// recordRegistry refuses a registry whose version was recorded with other contents.
func (w *Worker) recordRegistry(ctx context.Context) error {
	ours := w.options.Registry
	sha256, recorded, err := store.RecordRegistry(ctx, w.options.Control, ours.Version, ours.SHA256(), ours.JSON())
	if err != nil {
		return fmt.Errorf("record the registry's version: %w", err)
	}
	if sha256 == ours.SHA256() {
		return nil
	}
	earlier, err := registry.ParseRecorded(recorded)
	if err != nil {
		return fmt.Errorf("another registry was recorded as version %s, and this program cannot read it: raise the version", ours.Version)
	}
	return registry.CheckUpgrade(earlier, ours)
}

// The reasons for which a running call's context ends, beside its timeout.
var (
	errStopping  = errors.New("the worker is stopping")
	errNotHeld   = errors.New("the attempt no longer has its call")
	errCancelled = handlers.ErrCancelled
	errDeadline  = errors.New("the time of the call is over")
)

// stop hands over the calls that have not begun, lets the others end within the grace time, and then ends their contexts.
func (w *Worker) stop() {
	grace := time.NewTimer(w.options.ShutdownGrace)
	w.giveUpAt.Store(time.Now().Add(w.options.ShutdownGrace + endTimeout).UnixNano())
	handedOver := w.handOver()
	w.mu.Lock()
	running := w.busy
	w.mu.Unlock()
	if running > 0 {
		w.log.Info("stopping: waiting for running calls", zap.Int("running", running), zap.Int("handed_over", handedOver),
			zap.Duration("grace", w.options.ShutdownGrace))
	}
	ended := make(chan struct{})
	go func() { w.slots.Wait(); close(w.handed); close(ended) }()
	select {
	case <-ended:
		return
	case <-grace.C:
	}
	w.mu.Lock()
	w.log.Warn("the grace time is over: ending running calls", zap.Int("running", len(w.running)))
	for _, c := range w.running {
		c.end(errStopping)
	}
	w.mu.Unlock()
	<-ended
}

// givingUp reports whether the worker was told to stop so long ago that ends which cannot be written are left to others.
func (w *Worker) givingUp() bool {
	at := w.giveUpAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// tryTimeout limits one try to write an end: less as the time to give up comes near, and never less than a second.
func (w *Worker) tryTimeout() time.Duration {
	at := w.giveUpAt.Load()
	if at == 0 {
		return statementTimeout
	}
	return max(min(statementTimeout, time.Until(time.Unix(0, at))), time.Second)
}

// warnEvery is the shortest time between two warnings: while Postgres is away, every slot has something to say.
const warnEvery = time.Second

// warn logs the error, if there is one, of a statement that is tried again or that nothing depends on. What follows a warning too
// soon is logged at level debug, and counted in the next warning.
func (w *Worker) warn(err error, doing string, more ...zap.Field) {
	if err == nil {
		return
	}
	reason := err.Error()
	if connectErr := (*pgconn.ConnectError)(nil); errors.As(err, &connectErr) {
		reason = pgpool.Reason(connectErr)
	}
	more = append(more, zap.String("error", reason))
	now, next := time.Now().UnixNano(), w.warnAt.Load()
	if now < next || !w.warnAt.CompareAndSwap(next, now+int64(warnEvery)) {
		w.unsaid.Add(1)
		w.log.Debug("could not "+doing, more...)
		return
	}
	if unsaid := w.unsaid.Swap(0); unsaid > 0 {
		more = append(more, zap.Int64("left_out_before", unsaid))
	}
	w.log.Warn("could not "+doing, more...)
}

// ignoreEnd drops the error of a statement that ended because the worker stops.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == context.Canceled {
		return nil
	}
	return err
}

// signal wakes up whoever waits at the channel, or will next. Two signals may become one.
func signal(at chan struct{}) {
	select {
	case at <- struct{}{}:
	default:
	}
}

// wait waits for a signal, for some time, or until ctx ends.
func wait(ctx context.Context, at <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-at:
	case <-timer.C:
	}
}

func sleep(ctx context.Context, d time.Duration) { wait(ctx, nil, d) }

// jitter returns between 0.8 and 1.2 of d, so that workers that started together do not poll together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*mathrand.Float64()))
}
