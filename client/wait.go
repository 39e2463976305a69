package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/postgres/listen"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// Waiter waits for many calls at once, for a process that serves many users. It polls all of them in one statement, and
// one connection listens for the ends of calls whose NewCall was Awaited. A wait is an entry of a map and needs no
// goroutine or connection. The Waiter learns about the calls of all users, but only that a call has ended or is parked:
// read the call itself with the rights of its user. It is safe for concurrent use.
type Waiter struct {
	pool      *pgxpool.Pool
	listenURL string
	log       *zap.Logger
	token     string    // of the notification to itself
	start     sync.Once // of its two goroutines, with the first wait
	running   sync.WaitGroup
	closed    context.Context
	close     context.CancelFunc
	sooner    chan struct{} // a wait is due before askAt; carries at most one signal

	mu        sync.Mutex
	waits     map[pgtype.UUID]*waiting
	askAt     time.Time
	listening bool                    // notifications arrive
	early     [2]map[pgtype.UUID]bool // calls whose notification arrived before a wait: older ones and newer ones
	turned    time.Time               // when the newer ones became the older
}

// waiting is a call with at least one wait.
type waiting struct {
	ended  chan struct{} // closed at the end of the call
	parked chan struct{} // closed when the call is parked; nil unless a wait needs it
	by     int           // number of waits
	pause  time.Duration // before the next poll
	due    time.Time
}

const (
	// A wait is polled after a pause that doubles up to the longest.
	firstPause, longestPause = 5 * time.Millisecond, 250 * time.Millisecond
	// While notifications arrive, polls only find calls whose notification was lost.
	firstPauseListening, longestPauseListening = 50 * time.Millisecond, time.Second
	// Polls take at most 1/(1+restShare) of the time.
	restShare = 9
	askLimit  = 10 * time.Second // for one poll
	mostAsked = 1000             // calls in one poll: see gem.ended
	// Early notifications are kept for at least keepEarly, unless there are more than mostEarly.
	keepEarly, mostEarly = 2 * time.Second, 10_000
)

// NewWaiter returns a Waiter that polls through a pool, whose role must be the owner of the tables, or a member of
// gem_mcp. listenURL is a connection string for notifications, which do not pass a pooler in transaction mode. While
// notifications can arrive, the Waiter polls too, after 50, 100, 200, … 1000 ms. Otherwise, for example if listenURL is
// empty, it polls more often, after 5, 10, 20, … 250 ms. It opens nothing before the first wait. [Waiter.Close] ends
// it.
func NewWaiter(pool *pgxpool.Pool, listenURL string, log *zap.Logger) *Waiter {
	if log == nil {
		log = zap.NewNop()
	}
	w := &Waiter{pool: pool, listenURL: listenURL, log: log, token: rand.Text(), sooner: make(chan struct{}, 1),
		waits: map[pgtype.UUID]*waiting{}}
	w.closed, w.close = context.WithCancel(context.Background())
	return w
}

// ErrClosed means that the Waiter was closed.
var ErrClosed = errors.New("the waiter is closed")

// Ended returns when the call has a receipt. When ctx ends, it returns the error of ctx; after Close, it returns
// [ErrClosed]. The call itself continues. Ended keeps waiting for a call that does not exist, and while Postgres is
// unreachable.
func (w *Waiter) Ended(ctx context.Context, id string) error { return w.wait(ctx, id, false) }

// EndedOrParked is like [Waiter.Ended], but also returns when the call waits for an answer or for calls made on its
// behalf. Read its row to find out which. It costs no additional statements or notifications.
func (w *Waiter) EndedOrParked(ctx context.Context, id string) error { return w.wait(ctx, id, true) }

func (w *Waiter) wait(ctx context.Context, id string, orParked bool) error {
	var call pgtype.UUID
	if err := call.Scan(id); err != nil || !call.Valid {
		return fmt.Errorf("%q is not the id of a call", id)
	}
	if w.closed.Err() != nil {
		return ErrClosed
	}
	wait, parked := w.begin(call, orParked)
	if wait == nil {
		return nil
	}
	select {
	case <-wait.ended:
		return nil
	case <-parked:
		w.giveUp(call, wait)
		return nil
	case <-ctx.Done():
		w.giveUp(call, wait)
		return ctx.Err()
	case <-w.closed.Done():
		w.giveUp(call, wait)
		return ErrClosed
	}
}

// Close ends all waits, and returns when the Waiter's connections are closed or back in the pool.
func (w *Waiter) Close() {
	w.close()
	w.start.Do(func() {}) // after this nothing starts
	w.running.Wait()
}

// begin registers a wait. It returns nil if the notification has already arrived. parked is nil unless orParked is
// set.
func (w *Waiter) begin(call pgtype.UUID, orParked bool) (wait *waiting, parked <-chan struct{}) {
	w.start.Do(func() {
		w.running.Go(w.ask)
		if w.listenURL != "" {
			w.running.Go(w.listen)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, early := range w.early {
		if early[call] {
			delete(early, call) // only once: anybody may send notifications, and the next wait must poll the call
			return nil, nil
		}
	}
	wait = w.waits[call]
	if wait == nil {
		first, _ := w.pauses()
		wait = &waiting{ended: make(chan struct{}), pause: first, due: time.Now().Add(first)}
		w.waits[call] = wait
		if wait.due.Before(w.askAt) {
			w.askAt = wait.due
			select {
			case w.sooner <- struct{}{}:
			default:
			}
		}
	}
	wait.by++
	if !orParked {
		return wait, nil
	}
	if wait.parked == nil {
		wait.parked = make(chan struct{})
	}
	return wait, wait.parked
}

// giveUp removes a wait that its caller has ended.
func (w *Waiter) giveUp(call pgtype.UUID, wait *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wait.by--; wait.by == 0 && w.waits[call] == wait {
		delete(w.waits, call)
	}
}

// tell ends the waits for calls that have ended.
func (w *Waiter) tell(ids []string, notified bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); notified && (now.Sub(w.turned) > keepEarly || len(w.early[1]) >= mostEarly/2) {
		w.early[0], w.early[1], w.turned = w.early[1], map[pgtype.UUID]bool{}, now
	}
	for _, id := range ids {
		var call pgtype.UUID
		if call.Scan(id) != nil {
			continue // anybody may send notifications
		}
		if wait := w.waits[call]; wait != nil {
			delete(w.waits, call)
			close(wait.ended)
		} else if notified { // the caller may wait soon
			w.early[1][call] = true
		}
	}
}

// tellParked ends the waits that return when a call is parked. Later waits rely on the next poll.
func (w *Waiter) tellParked(ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		var call pgtype.UUID
		if call.Scan(id) != nil {
			continue
		}
		if wait := w.waits[call]; wait != nil && wait.parked != nil {
			close(wait.parked)
			wait.parked = nil
		}
	}
}

// pauses returns the first and the longest pause before a poll of a wait.
func (w *Waiter) pauses() (first, longest time.Duration) {
	if w.listening {
		return firstPauseListening, longestPauseListening
	}
	return firstPause, longestPause
}

// ask polls the waits that are due, until the Waiter is closed.
func (w *Waiter) ask() {
	for w.closed.Err() == nil {
		calls, others, pause := w.due(time.Now())
		if len(calls) == 0 {
			w.sleep(pause, w.sooner)
			continue
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(w.closed, askLimit)
		ended, parked, err := store.Ended(ctx, w.pool, calls, others)
		cancel()
		w.tell(ended, false)
		w.tellParked(parked)
		pause = max(pause, restShare*time.Since(began))
		if err != nil && w.closed.Err() == nil {
			w.log.Warn("cannot read which calls have ended, trying again", zap.String("error", pgpool.Reason(err)))
			pause = max(pause, time.Second)
		}
		w.sleep(pause, nil)
	}
}

// due returns the calls to poll now, those of them that may be parked, and the pause after that; if there are none,
// the pause until the next poll. It includes waits that are due soon; otherwise a thousand waits would each need a
// statement.
func (w *Waiter) due(now time.Time) (calls, others []string, pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.askAt = now.Add(time.Hour)
	for _, wait := range w.waits {
		if wait.due.Before(w.askAt) {
			w.askAt = wait.due
		}
	}
	if w.askAt.After(now) {
		return nil, nil, w.askAt.Sub(now)
	}
	first, longest := w.pauses()
	for call, wait := range w.waits {
		if len(calls) < mostAsked && wait.due.Before(now.Add(wait.pause/2)) {
			calls = append(calls, call.String())
			if wait.parked != nil {
				others = append(others, call.String())
			}
			wait.pause = min(2*wait.pause, longest)
			wait.due = now.Add(wait.pause)
		}
	}
	return calls, others, first
}

// listen receives notifications about finished calls until the Waiter is closed.
func (w *Waiter) listen() {
	told := false // whether the error was logged
	setListening := func(arrive bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listening = arrive
	}
	listener := listen.Listener{
		URL: w.listenURL, Channel: store.EndsChannel, Token: w.token, By: w.pool,
		Up:       func() { setListening(true) },
		Received: func(payload string) { w.tell(strings.Split(payload, ","), true) },
		Down: func(err error, pause time.Duration) {
			setListening(false)
			if w.closed.Err() != nil || told {
				return
			}
			told = errors.Is(err, listen.ErrNotDelivered)
			w.log.Warn("no notifications about finished calls: polling until they are back",
				zap.String("error", pgpool.Reason(err)), zap.Duration("next_try", pause))
		},
	}
	listener.Run(w.closed)
}

// sleep waits for some time, for a signal, or until the Waiter is closed.
func (w *Waiter) sleep(d time.Duration, signal <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.closed.Done():
	case <-signal:
	case <-timer.C:
	}
}
