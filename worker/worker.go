// Package worker claims calls from the queue, runs them, and writes their receipts.
//
// The function run, in run.go, runs an attempt: it decides whether the call may run, takes its key, executes it, and
// records the result. handler.go runs the handler, and check.go checks its input and output. end.go decides from the
// handler's result or error how the attempt ends, and records it. loop.go claims calls while there is room. Several
// services run at the same time: heartbeat.go shows that the process is alive, and receives cancellations; listen.go
// receives notifications of inserts; ends.go notifies waiters when calls end; watchdog.go ends a process that hangs;
// telemetry.go makes spans and measurements.
//
// Each change to a call is made by one SQL function: see internal/store and migrations/functions. The process may die
// at any point: nothing that matters is only in memory.
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
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/batch"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker/internal/durable"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

const (
	// statementTimeout limits each of the worker's own statements. The tool's timeout limits a handler's statements.
	statementTimeout = lanes.StatementTimeout
	// controlTimeout limits claims and heartbeats. If the network drops packets, a worker must find a working connection
	// before the others declare it dead.
	controlTimeout = lanes.ControlTimeout
	// After the grace time, writing the ends of calls may take endTimeout, and the last statement stopTimeout: platforms
	// kill a process that takes long to stop.
	endTimeout, stopTimeout = 6 * time.Second, 2 * time.Second
)

// Options configure a worker. Calls, Control, Registry and Handlers are required; all other fields have a default.
type Options struct {
	// Calls is the pool that handlers, receipts and keys share. A handler's transaction needs a connection to itself:
	// with fewer connections than Concurrency, handlers may wait for one.
	Calls *pgxpool.Pool
	// Control is the pool for claims and heartbeats, which handlers must not starve. Two connections are enough.
	Control *pgxpool.Pool
	// ListenURL is the connection string on which the worker listens for notifications of new calls. A transaction pooler
	// does not pass them on. Default: none, and the worker only polls.
	ListenURL string

	// Registry has the tools, and Handlers their handlers. A call to a tool without a handler ends as not_configured,
	// unless its journal already has steps, calls or waits. Then it waits for a program that has the handler.
	Registry *registry.Registry
	Handlers *binding.Handlers
	// Rules restrict the calls. Default: none.
	Rules *rules.Set
	// Notify decides who hears about questions, failures and other events. Default: nobody does.
	Notify *notify.Set
	// Dashboard is the URL under which people see the dashboard, for links in notices. Default: no links.
	Dashboard string

	// Name is the first part of the worker's id, before a random suffix. Default: worker.
	Name string
	// Version is recorded in core_workers. Default: dev.
	Version string
	// Concurrency is the number of calls that run at once. Default: 10.
	Concurrency int
	// PollInterval is the time between two polls of an idle worker. Default: 1 s. Without notifications, the worker
	// polls more often for a while after each call.
	PollInterval time.Duration
	// ShutdownGrace is the time that calls may still run after the worker was ordered to stop. Default: 0, which ends
	// them at once.
	ShutdownGrace time.Duration
	// HeartbeatInterval is the time between two heartbeats. Default: 1.5 s.
	HeartbeatInterval time.Duration
	// DeadAfter is how long the worker may be silent before others take over its calls: at least twice
	// HeartbeatInterval. Default: 5 s. A worker whose own heartbeats are late declares no other worker dead.
	DeadAfter time.Duration

	// StallLimit is how long the loop may hang before OnStall is called. Default: 1 min.
	StallLimit time.Duration
	// OnStall is called once. Default: it logs how long the loop has hung, and exits with status 70, so that the
	// platform restarts the process.
	OnStall func(hung time.Duration)

	// Tracer records a span for each attempt, and Meter the measurements. Default: none.
	Tracer trace.Tracer
	Meter  metric.Meter
	// Log gets a line for each call that ends and, at level debug, a line for each claim. Default: none.
	Log *zap.Logger

	hook func(when, what string) // see [Worker.at]
}

// Worker runs calls. A process may have several workers.
type Worker struct {
	id        string
	options   Options
	log       *zap.Logger
	judge     *rules.Judge // nil without rules
	lanes     *lanes.Lanes
	telemetry *telemetry // nil without a Tracer and a Meter
	// encoded gates of calls whose keys and rules are decided together
	admissions *batch.Queue[string, store.Admission]

	// The loop's fields. Each channel carries at most one signal.
	wake       chan struct{} // a call may be ready
	freed      chan struct{} // there is room for calls
	rewind     atomic.Bool   // a call returned to its earlier place in the queue
	loopedAt   atomic.Int64  // when the last round of the loop began, in Unix nanoseconds
	claiming   sync.Mutex    // held during a claim, until its calls are in running
	cursor     claimCursor
	wakeWanted bool        // the value of wants_wake in core_workers
	registered atomic.Bool // core_workers has a new row, whose wants_wake is false
	// the tools of outside that the worker noted; true: its row in core_workers has the tool
	noted sync.Map
	// what this worker has ended lately: see servers.go
	memory memory
	epoch  atomic.Pointer[metServer] // nil until the server changes

	// Fields of the services.
	knew time.Time // the gem.server() that the worker met last
	// what a changed server lacks is being restored; nil otherwise. Heartbeats set it, and hold claiming.
	meeting    *meeting
	beat       chan struct{} // a heartbeat is requested
	due        chan struct{} // the timers have work
	ends       ends          // calls whose waiters must be notified
	listening  atomic.Bool   // notifications arrive
	sweepUntil atomic.Int64  // heartbeats make full sweeps until then, in Unix nanoseconds
	lastSweep  time.Time
	warnAt     atomic.Int64 // when the next warning may be logged, in Unix nanoseconds
	unsaid     atomic.Int64 // warnings that were suppressed since the last
	// when the worker stops trying to write ends, in Unix nanoseconds; 0 until it is ordered to stop
	giveUpAt atomic.Int64

	mu         sync.Mutex
	running    map[store.Attempt]*claimedCall // all calls that were claimed and have not ended, including ready ones
	ready      []*claimedCall                 // calls that wait for a slot, in order
	suspects   int                            // suspect calls in running
	background int                            // background calls in running
	busy       int                            // slots that run a call
	slots      sync.WaitGroup
	// passes functions to idle goroutines: see [Worker.apart]; closed after all slots have ended
	handed   chan func()
	rate     claimRate
	refillAt int // the number of ready calls at which the loop claims more
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
		// A restarted process must not be mistaken for its predecessor, whose calls must be recovered.
		id:      o.Name + "-" + hex.EncodeToString(suffix[:]),
		options: o,
		log:     o.Log,
		lanes:   lanes.New(o.Calls),
		wake:    make(chan struct{}, 1),
		freed:   make(chan struct{}, 1),
		beat:    make(chan struct{}, 1),
		due:     make(chan struct{}, 1),
		ends:    ends{more: make(chan struct{}, 1)},
		handed:  make(chan func()),
		running: map[store.Attempt]*claimedCall{},
		memory:  memory{room: maxPayloads},
	}
	w.admissions = batch.NewQueue(func(gate string) int { return len(gate) }, w.admit)
	if o.Rules != nil {
		w.judge = o.Rules.For(o.Registry)
	}
	var err error
	if w.telemetry, err = newTelemetry(w); err != nil {
		return nil, fmt.Errorf("worker: set up telemetry: %w", err)
	}
	return w, nil
}

// ID returns the worker's id: its name and a random suffix.
func (w *Worker) ID() string { return w.id }

// Run works until ctx ends, and then shuts down: it claims no more calls, lets running calls end within the grace time,
// hands over or finishes the rest, and records that it has stopped. It returns an error only if it could not start.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // it was ordered to stop before it had started
		}
		return err
	}
	// The services continue after the loop has ended: a call that is still ending needs the worker's heartbeat.
	services, stopServices := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	w.loopedAt.Store(time.Now().UnixNano())
	beside.Go(func() { w.heartbeats(services) })
	beside.Go(func() { w.countOutcomes(services) })
	beside.Go(func() { w.watch(ctx) })
	beside.Go(func() { w.timers(services) })
	if w.options.Notify != nil {
		beside.Go(func() { w.notices(services) })
	}
	beside.Go(func() { w.tellEnds(services) })
	if w.options.ListenURL != "" {
		beside.Go(func() { w.listen(services) })
	}
	durability, err := store.Durability(ctx, w.options.Control)
	if err != nil {
		durability = "unknown"
	}
	w.log.Info("worker started", zap.String("worker_id", w.id), zap.Int("concurrency", w.options.Concurrency),
		zap.String("registry_version", w.options.Registry.Version), zap.String("rules_version", w.rulesVersion()),
		zap.Duration("poll_interval", w.options.PollInterval), zap.String("durability", durability))

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

func (w *Worker) start(ctx context.Context) error {
	if err := w.register(ctx); err != nil {
		return err
	}
	w.warn(w.heartbeat(ctx), "send the first heartbeat")
	return nil
}

// register records the registry, the rules and the notices, lets domains record their versions, and registers the
// worker. It is called at the start, and again if the worker's row was removed after a long silence or lost in a
// failover.
func (w *Worker) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := w.recordRegistry(ctx); err != nil {
		return err
	}
	if err := w.checkRules(ctx); err != nil {
		return err
	}
	if err := w.options.Handlers.Check(ctx, w.options.Calls); err != nil {
		return err
	}
	if err := w.wantNotices(ctx); err != nil {
		return err
	}
	w.registered.Store(true)
	outside := w.outside()
	server, err := store.StartWorker(ctx, w.options.Control, store.Worker{
		ID: w.id, Concurrency: w.options.Concurrency, Version: w.options.Version, RegistryVersion: w.options.Registry.Version,
		DeadAfter: w.options.DeadAfter, Capabilities: w.capabilities(), RulesVersion: w.rulesVersion(), Outside: outside,
	})
	if err != nil {
		return fmt.Errorf("register the worker: %w", err)
	}
	if w.knew.IsZero() { // otherwise w.meet finds out whether the server has changed
		w.knew = server
	}
	for tool := range outside {
		w.noted.Store(tool, true)
	}
	return nil
}

// outside returns the tools that run outside of the receipt's transaction, or did so since the worker started, with
// their modes.
func (w *Worker) outside() map[string]string {
	modes := map[string]string{}
	for _, t := range w.options.Registry.Tools() {
		_, noted := w.noted.Load(t.Name)
		if h, bound := w.options.Handlers.For(t.Name); noted || bound && !inside(h) {
			modes[t.Name] = string(t.Idempotency.Mode)
		}
	}
	return modes
}

// rulesVersion returns the version of the rules, or "" for a worker without rules.
func (w *Worker) rulesVersion() string {
	if w.options.Rules == nil {
		return ""
	}
	return w.options.Rules.Version
}

// capabilities returns the capabilities that this worker declares: that it can continue the steps of another worker,
// and that it knows each of its tools. The worker does not claim a call that needs another capability.
func (w *Worker) capabilities() []string {
	tools := w.options.Registry.Tools()
	all := []string{"steps"}
	for _, t := range tools {
		all = append(all, knows(t.Name))
	}
	return all
}

// knows returns the capability of a worker whose registry has a tool.
func knows(tool string) string { return "tool " + tool }

// recordRegistry returns an error if the registry's version was recorded with other contents.
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
		return fmt.Errorf("another registry was recorded as version %s, and this program cannot read it: raise the version",
			ours.Version)
	}
	return registry.CheckUpgrade(earlier, ours)
}

// The reasons for which a running call's context ends, other than its timeout.
var (
	errStopping  = durable.ErrStopping
	errNotHeld   = durable.ErrNotHeld
	errCancelled = handlers.ErrCancelled
	errDeadline  = durable.ErrDeadline
)

// stop hands over the calls that have not begun, lets the others end within the grace time, and then ends their
// contexts.
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

// stopping reports whether the worker was ordered to stop.
func (w *Worker) stopping() bool { return w.giveUpAt.Load() != 0 }

// givingUp reports whether the worker has been stopping for so long that other workers must handle the ends that it
// cannot write.
func (w *Worker) givingUp() bool {
	at := w.giveUpAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// tryTimeout limits one try to write an end. It shrinks as the time to stop trying approaches, to no less than a
// second.
func (w *Worker) tryTimeout() time.Duration {
	at := w.giveUpAt.Load()
	if at == 0 {
		return statementTimeout
	}
	return max(min(statementTimeout, time.Until(time.Unix(0, at))), time.Second)
}

// warnEvery is the shortest time between two warnings. While Postgres is unreachable, every slot would log one.
const warnEvery = time.Second

// warn logs err, unless it is nil, for a statement that is retried or not essential. If the last warning was too
// recent, warn logs at level debug, and the next warning has the number of suppressed ones.
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

// signal wakes the current or next waiter at the channel. Two signals may become one.
func signal(at chan struct{}) {
	select {
	case at <- struct{}{}:
	default:
	}
}

// wait waits for a signal, for the duration d, or until ctx ends.
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
