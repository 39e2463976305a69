// Package worker takes calls from the queue and runs each to its receipt.
//
// The path of one call, file by file: [Worker.Run] here claims what there is room for (claim.go); a slot takes it (slots.go);
// attempt.go decides what it needs and runs its handler, in the transaction of tx.go where the handler takes one; outcome.go
// turns what came out into a receipt or a retry; lanes.go carries both over the connections that calls share. Beside that
// path, heartbeat.go says that the process lives and takes in the calls of dead ones, wake.go listens for inserts, counts.go
// counts what has ended, watchdog.go ends a process that hangs, and telemetry.go tells OpenTelemetry, where someone listens.
//
// Every change of a call is one SQL function of migrations/00002_state_machine.sql and, where a later file replaces it, the
// one there. What this package keeps in memory may be lost at any line.
package worker

import (
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
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

const (
	// statementDeadline bounds every statement of the worker's own. A handler's statements are bounded by its timeout.
	statementDeadline = 10 * time.Second
	// endTime is what the ends of calls may take after the grace time, and goodbyeTime what comes then, where the database does
	// not answer: platforms kill a process that takes long.
	endTime, goodbyeTime = 6 * time.Second, 2 * time.Second
	// controlDeadline bounds claims and heartbeats. On a network that swallows packets a worker must find a connection that
	// works before the others take it for dead.
	controlDeadline = 3 * time.Second
	// reactionTime is what a handler gets to notice that its context has ended, before it is given up.
	reactionTime = time.Second
)

// Options says what a worker works with. The zero value of a field that names a default is that default.
type Options struct {
	// Calls is the pool that handlers, receipts and keys share. A handler's transaction has a connection to itself: with
	// fewer connections than slots, handlers may wait for one.
	Calls *pgxpool.Pool
	// Control is the pool that claims and heartbeats use: two connections of its own, so that no handler can starve them.
	Control *pgxpool.Pool
	// ListenURL leads directly to Postgres, for notifications; empty: the worker polls alone.
	ListenURL string

	Registry *registry.Registry
	Handlers *handlers.Handlers

	// Name stands before a random suffix in the worker's id. Default: worker.
	Name string
	// Version is recorded in core_workers. Default: dev.
	Version string
	// Concurrency is how many calls run at once. Default: 10.
	Concurrency int
	// PollInterval is how often the queue is looked at when nothing happens. Default: 1 s. While calls come, and no
	// notification can, it is looked at more often.
	PollInterval time.Duration
	// ShutdownGrace is what running calls get to end when the worker stops. 0: none.
	ShutdownGrace time.Duration
	// HeartbeatInterval and DeadAfter say how often the worker shows that it lives, and after how long a silence the others
	// take its calls. Defaults: 1.5 s and 5 s. One whose own heartbeats are late judges nobody.
	HeartbeatInterval, DeadAfter time.Duration

	// StallLimit is how long the loop may stand still before OnStall is called: a process that hangs is worth less than one
	// that the platform starts again. Default: 1 min. OnStall's default logs why and ends the process with status 70.
	StallLimit time.Duration
	OnStall    func(standing time.Duration)

	// At is called at each point of a call's life. It is for tests; nil costs nothing.
	At func(Point)

	// Tracer gets a span for each attempt of a call, and Meter what is measured. Default: nothing is traced, or measured.
	Tracer trace.Tracer
	Meter  metric.Meter

	// Log is told of each call when it ends, and at the level debug when it begins. Default: none.
	Log *zap.Logger
}

// Worker runs calls. One process may have several.
type Worker struct {
	Options
	id      string
	control *pgxpool.Pool
	calls   *pgxpool.Pool
	lanes   *lanes
	// telemetry is nil when there is none.
	telemetry *telemetry

	beatNow   chan struct{} // someone asked to cancel a call: see whether it runs here
	wake      chan struct{} // someone says that there is something to claim
	lookAgain atomic.Bool   // and that it lies behind the marks
	listening atomic.Bool   // notifications come through
	turned    atomic.Int64  // when the loop last turned, in Unix nanoseconds
	wanted    bool          // what core_workers says of wants_wake
	marks     marks
	pace      pace
	giveUpAt  atomic.Int64 // Unix nanoseconds after which nothing is tried again; 0 while the worker works
	sweep     sweep

	mu       sync.Mutex
	held     map[store.Attempt]*holding // every call that this worker has claimed and that has not ended
	left     map[store.Attempt]struct{} // attempts that ran here, and whose end could not be written
	ready    []*holding                 // those of them that wait for a slot, in the order in which they are to run
	busy     int                        // slots that run a call
	refillAt int                        // as few ready calls as this are a reason to claim more
	freed    chan struct{}              // there is room for calls
	done     sync.WaitGroup             // the slots that run a call
}

// holding is a call that this worker has claimed.
type holding struct {
	claimed
	ctx    context.Context // ends when the call is to end early
	cancel context.CancelCauseFunc
}

// New checks the options. It does not connect.
func New(o Options) (*Worker, error) {
	if o.Calls == nil || o.Control == nil || o.Registry == nil || o.Handlers == nil {
		return nil, errors.New("worker: Calls, Control, Registry and Handlers must be set")
	}
	def(&o.Name, "worker")
	def(&o.Version, "dev")
	def(&o.Concurrency, 10)
	def(&o.PollInterval, time.Second)
	def(&o.HeartbeatInterval, 1500*time.Millisecond)
	def(&o.DeadAfter, 5*time.Second)
	def(&o.StallLimit, time.Minute)
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
		Options: o,
		// A restarted process must not be taken for its predecessor, whose calls are to be recovered.
		id:      o.Name + "-" + hex.EncodeToString(suffix[:]),
		control: o.Control,
		calls:   o.Calls,
		lanes:   newLanes(o.Calls),
		beatNow: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		freed:   make(chan struct{}, 1),
		held:    map[store.Attempt]*holding{},
		left:    map[store.Attempt]struct{}{},
	}
	var err error
	if w.telemetry, err = newTelemetry(w); err != nil {
		return nil, fmt.Errorf("worker: set up what is measured: %w", err)
	}
	return w, nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ID is the worker's id: its name and a random suffix.
func (w *Worker) ID() string { return w.id }

// Run works until ctx ends, and then stops in order: it claims nothing more, gives what runs the grace time to end, hands
// over or finishes the rest, and says goodbye. An error means that it could not begin.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.introduce(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop before it began
		}
		return err
	}
	// The services beside the loop outlive it: a call that is still ending needs its heartbeat.
	services, stopServices := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	w.turned.Store(time.Now().UnixNano())
	beside.Go(func() { w.heartbeats(services) })
	beside.Go(func() { w.counts(services) })
	beside.Go(func() { w.watch(ctx) })
	if w.ListenURL != "" {
		beside.Go(func() { w.listen(services) })
	}
	w.Log.Info("worker started", zap.String("worker_id", w.id), zap.Int("concurrency", w.Concurrency),
		zap.String("registry_version", w.Registry.Version), zap.Duration("poll_interval", w.PollInterval))

	w.loop(ctx)
	w.stop()

	stopServices()
	beside.Wait()
	w.say(w.goodbye(), "say goodbye")
	w.Log.Info("worker stopped", zap.String("worker_id", w.id))
	return nil
}

// introduce makes the registry and the worker known.
func (w *Worker) introduce(ctx context.Context) error {
	if err := w.recordRegistry(ctx); err != nil {
		return err
	}
	if err := w.start(ctx); err != nil {
		return err
	}
	w.say(w.heartbeat(ctx), "send the first heartbeat")
	return nil
}

// loop claims calls for the free slots until ctx ends, and somewhat ahead of them: see [pace].
func (w *Worker) loop(ctx context.Context) {
	pause := pollPause{shortest: 20 * time.Millisecond, longest: w.PollInterval}
	for ctx.Err() == nil {
		w.turned.Store(time.Now().UnixNano())
		room := w.room()
		if room == 0 {
			select {
			case <-ctx.Done():
			case <-w.freed:
			case <-time.After(w.StallLimit / 4): // turn, to show that nothing hangs
			}
			continue
		}
		if w.lookAgain.Swap(false) {
			w.marks.forget()
		}
		w.at(BeforeClaim)
		calls, err := w.claim(ctx, room)
		if err != nil {
			w.sweep.soon()
			if ctx.Err() == nil {
				w.say(err, "claim calls")
				sleep(ctx, min(jitter(w.PollInterval), w.StallLimit/4))
			}
			continue
		}
		if len(calls) > 0 {
			w.at(AfterClaim)
		}
		w.hold(ctx, calls)
		if len(calls) == room {
			w.want(ctx, false)
			continue // there may be more
		}
		if w.listening.Load() && w.want(ctx, true) {
			continue // something may have come before it was wanted
		}
		if len(calls) > 0 {
			pause.reset()
		}
		w.sleepUntilWoken(ctx, &pause)
	}
}

// sleepUntilWoken waits for a notification, or for the poll.
func (w *Worker) sleepUntilWoken(ctx context.Context, pause *pollPause) {
	wait := w.PollInterval
	if !w.listening.Load() {
		wait = pause.next()
	}
	timer := time.NewTimer(min(jitter(wait), w.StallLimit/4))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
}

// The reasons for which a running call's context ends, beside its timeout.
var (
	errStopping  = errors.New("the worker is stopping")
	errNotHeld   = errors.New("the call is no longer held by this attempt")
	errCancelled = errors.New("someone asked to cancel the call")
)

// stop lets what runs end inside the grace time, and then tells it to stop.
func (w *Worker) stop() {
	grace := time.NewTimer(w.ShutdownGrace)
	w.giveUpAt.Store(time.Now().Add(w.ShutdownGrace + endTime).UnixNano())
	handedOver := w.handOverReady()
	w.mu.Lock()
	running := w.busy
	w.mu.Unlock()
	if running > 0 {
		w.Log.Info("stopping: waiting for running calls", zap.Int("running", running), zap.Int("handed_over", handedOver), zap.Duration("grace", w.ShutdownGrace))
	}
	ended := make(chan struct{})
	go func() { w.done.Wait(); close(ended) }()
	select {
	case <-ended:
		return
	case <-grace.C:
	}
	w.mu.Lock()
	w.Log.Warn("the grace time is over: ending running calls", zap.Int("running", len(w.held)))
	for _, h := range w.held {
		h.cancel(errStopping)
	}
	w.mu.Unlock()
	<-ended
}

// givingUp reports whether the worker has stopped for so long that what does not work now is left to others.
func (w *Worker) givingUp() bool {
	at := w.giveUpAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// tryTime is what a statement may take that ends a call: less as the time to give up comes near, and never under a second.
func (w *Worker) tryTime() time.Duration {
	at := w.giveUpAt.Load()
	if at == 0 {
		return statementDeadline
	}
	return max(min(statementDeadline, time.Until(time.Unix(0, at))), time.Second)
}

// say logs the error of a statement that will be tried again, or that nothing depends on.
func (w *Worker) say(err error, doing string) {
	if err != nil {
		w.Log.Warn("could not "+doing, zap.Error(err))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// jitter spreads the polls of workers that started together: it returns between 0.8 and 1.2 of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*mathrand.Float64()))
}

// pollPause grows from shortest to longest while nothing comes, for a worker that no notification reaches.
type pollPause struct{ shortest, longest, last time.Duration }

func (p *pollPause) reset() { p.last = 0 }

func (p *pollPause) next() time.Duration {
	p.last = min(max(p.shortest, p.last*5/4), p.longest)
	return p.last
}

// recordRegistry refuses to run with a registry that differs from what ran under the same version before.
func (w *Worker) recordRegistry(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementDeadline)
	defer cancel()
	var sha256 string
	var recorded []byte
	err := w.control.QueryRow(ctx, "select sha256, registry::text from gem.record_registry($1, $2, $3)",
		w.Registry.Version, w.Registry.SHA256(), string(w.Registry.JSON())).Scan(&sha256, &recorded)
	if err != nil {
		return fmt.Errorf("record the registry's version: %w", err)
	}
	if sha256 == w.Registry.SHA256() {
		return nil
	}
	old, err := registry.Parse(recorded)
	if err != nil {
		return fmt.Errorf("another registry was recorded as version %s, and this program can not read it: raise the version", w.Registry.Version)
	}
	return registry.CheckUpgrade(old, w.Registry)
}
