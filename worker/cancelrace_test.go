package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// Late is a domain whose late.run begins a call and then does the thing that its input names. If that returns an error,
// it cleans up as the input says.
type Late struct {
	contexts chan context.Context // of each run
	// of each run that holds, and of each clean-up that hangs, until its context ends or goOn is called
	cleaning chan context.Context
	goOn     func()
	going    chan struct{}
	lab      *Lab

	mu   sync.Mutex
	did  []string
	errs []error
}

func (l *Late) Run(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	l.contexts <- ctx
	note := func(name string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.did = append(l.did, name)
			return name, nil
		}
	}
	if _, err := handlers.Step(ctx, d, "before", note("before")); err != nil {
		return Done{}, err
	}
	called := handlers.Start[Done](d, "x", "lab.nothing", Task{Text: "x"})
	question := handlers.Receive[string](d, "question")
	var err error
	switch in.Text {
	case "wait":
		_, err = question.Wait(ctx)
	case "child":
		_, err = handlers.Start[Done](d, "slow", "lab.send", Task{Text: "slow", Gate: "slow"}).Wait(ctx)
	case "step and wait":
		_, err = handlers.Step(ctx, d, "work", func(ctx context.Context) (string, error) {
			l.cleaning <- ctx
			<-ctx.Done()
			return note("work")(ctx)
		})
		if err == nil {
			_, err = question.Wait(ctx)
		}
	case "sleep":
		err = handlers.Sleep(ctx, d, "an hour", time.Hour)
	case "hold":
		l.cleaning <- ctx
		<-ctx.Done()
		err = context.Cause(ctx)
	case "all":
		err = handlers.All(ctx, []handlers.Awaited{called, question}...)
	case "first":
		_, err = handlers.First(ctx, question)
	case "step":
		_, err = handlers.Step(ctx, d, "work", note("work"))
	case "once":
		_, err = handlers.StepOnce(ctx, d, "work", note("work"))
	case "tx":
		_, err = handlers.StepTx(ctx, d, "work", func(ctx context.Context, _ handlers.Tx) (string, error) {
			return note("work")(ctx)
		})
	}
	l.mu.Lock()
	l.errs = append(l.errs, err)
	l.mu.Unlock()
	if err == nil {
		return Done{}, nil
	}
	clean := context.WithoutCancel(ctx)
	switch in.Then {
	case "returns":
		return Done{}, err
	case "waits":
		err = errors.Join(err, handlers.Sleep(clean, d, "a moment", time.Millisecond))
	case "rests":
		_, undone := handlers.Step(clean, d, "first", note("first"))
		_, rested := handlers.Receive[string](d, "rest").Wait(clean)
		err = errors.Join(err, undone, rested)
	case "hangs":
		_, hung := handlers.Step(clean, d, "hang", func(ctx context.Context) (string, error) {
			l.cleaning <- ctx
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-l.going:
				return "", nil
			}
		})
		err = errors.Join(err, hung)
	case "asks":
		_, undone := called.Wait(clean)
		err = errors.Join(err, undone)
	}
	_, undone := handlers.Step(clean, d, "undo", note("undo"))
	return Done{}, errors.Join(err, undone)
}

func startLate(t *testing.T, change func(*worker.Options)) (*handlertest.Env, *Late) {
	t.Helper()
	late := &Late{contexts: make(chan context.Context, 10_000), cleaning: make(chan context.Context, 2),
		going: make(chan struct{}), lab: NewLab()}
	late.goOn = sync.OnceFunc(func() { close(late.going) })
	tools := labRegistry("1.0.0", tool{name: "late.run", calls: []string{"lab.*"}}, tool{name: "lab.nothing"},
		tool{name: "lab.send"})
	env := handlertest.Start(t, handlertest.Options{Registry: tools, Domains: []any{late.lab, late}, Worker: change,
		NoWorker: true})
	return env, late
}

// The handler begins something, its worker makes a call for it first, and the notice of the cancellation arrives during
// that round trip.
func TestACancellationDuringARoundTripIsNotTakenForACleanUp(t *testing.T) {
	t.Parallel()
	for _, does := range []string{"wait", "sleep", "all", "first", "step", "once", "tx"} {
		for _, then := range []string{"", "waits", "asks"} {
			t.Run(strings.TrimSpace(does+" "+then), func(t *testing.T) {
				t.Parallel()
				env, late := startLate(t, nil)
				calls := make(chan string, 1)
				var cancel sync.Once
				env.StartWorker(func(o *worker.Options) {
					worker.SetHook(o, func(point string) {
						if point != "after wait" { // the first time it makes the call
							return
						}
						cancel.Do(func() {
							if _, err := client.Cancel(t.Context(), env.DB, <-calls); err != nil {
								t.Error(err)
							}
							<-(<-late.contexts).Done()
						})
					})
				})
				id := env.Insert(handlertest.Call{Tool: "late.run", Input: task(Task{Text: does, Then: then})})
				calls <- id
				env.Until("it to end, or to wait for something else than its clean-up", func() bool {
					return number(t, env, `select count(*) from core_tool_calls where id = $1
						and (status in ('succeeded', 'failed') or status = 'waiting' and waits && '{#question,an hour}')`, id) == 1
				})
				if journal := env.Journal(id); journal[len(journal)-1] != "failed" {
					t.Fatalf("it waits, or has succeeded: %v", journal)
				}
				if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
					t.Errorf("%+v", e)
				}
				late.mu.Lock()
				defer late.mu.Unlock()
				if want := []string{"before", "undo"}; !slices.Equal(late.did, want) ||
					!errors.Is(late.errs[0], handlers.ErrCancelled) {
					t.Errorf("it did %v, want %v, and was told %v", late.did, want, late.errs)
				}
				if began := slices.Contains(env.Journal(id), "began"); began {
					t.Error("a step that must not run twice began after the end was known")
				}
				sound(t, env)
			})
		}
	}
}

// A call that is not made yet when the end is known is not made, unless the clean-up waits for it.
func TestNoCallIsMadeOnceTheEndIsKnown(t *testing.T) {
	t.Parallel()
	for _, does := range []string{"wait", "all", "step"} {
		for _, then := range []string{"", "asks"} {
			t.Run(strings.TrimSpace(does+" "+then), func(t *testing.T) {
				t.Parallel()
				env, late := startLate(t, func(o *worker.Options) {
					o.ListenURL, o.HeartbeatInterval, o.DeadAfter = "", time.Hour, 3*time.Hour // nothing tells the worker
				})
				calls := make(chan string, 1)
				var cancel sync.Once
				env.StartWorker(func(o *worker.Options) {
					worker.SetHook(o, func(point string) {
						if point == "before wait" {
							cancel.Do(func() {
								if _, err := client.Cancel(t.Context(), env.DB, <-calls); err != nil {
									t.Error(err)
								}
							})
						}
					})
				})
				id := env.Insert(handlertest.Call{Tool: "late.run", Input: task(Task{Text: does, Then: then})})
				calls <- id
				if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
					t.Errorf("%+v", e)
				}
				made := number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1", id)
				if want := map[string]int{"asks": 1}[then]; made != want {
					t.Errorf("%d calls were made, want %d", made, want)
				}
				if !slices.Contains(late.did, "undo") || slices.Contains(late.did, "work") {
					t.Errorf("it did %v", late.did)
				}
				sound(t, env)
			})
		}
	}
}

// Whenever a cancellation arrives in the first half second, the call ends: no call is left waiting.
func TestNoCancellationIsLost(t *testing.T) {
	t.Parallel()
	many := 30
	if os.Getenv("GEM_TEST_LONG") != "" {
		many = 3000
	}
	for _, latency := range []time.Duration{0, 3 * time.Millisecond, 15 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			env, _ := startLate(t, nil)
			slow := &wire{delay: latency / 2}
			env.StartWorker(func(o *worker.Options) {
				o.Calls, o.Control = slow.through(t, testdb.RouteTo(t, env.URL)), env.Pool(2, false)
				o.Concurrency = 20
			})
			does := []string{"wait", "sleep", "all", "first"}
			thens := []string{"", "waits", "asks"}
			var all sync.WaitGroup
			free := make(chan struct{}, 40)
			for i := range many {
				all.Go(func() {
					free <- struct{}{}
					defer func() { <-free }()
					id := env.Insert(handlertest.Call{Tool: "late.run",
						Input: task(Task{Text: does[i%len(does)], Then: thens[i/len(does)%len(thens)]})})
					time.Sleep(rand.N(500 * time.Millisecond))
					if came, err := client.Cancel(t.Context(), env.DB, id); err != nil {
						t.Error(came, err)
					}
				})
			}
			all.Wait()
			left := func() int {
				return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')")
			}
			env.Until("all to end", func() bool {
				waiting := number(t, env, "select count(*) from core_tool_calls where status = 'waiting' and waits && "+
					"'{#question,an hour}'")
				return left() == waiting || left() == 0
			})
			if n := left(); n > 0 {
				t.Errorf("%d of %d cancelled calls wait", n, many)
			}
			others := number(t, env, `select count(*) from core_tool_receipts where tool_name = 'late.run'
				and result #>> '{error,error_code}' <> 'cancelled'`)
			if others > 0 {
				t.Error(fmt.Sprint(others, " calls ended as something else"))
			}
			sound(t, env)
		})
	}
}

// A worker that stops, or no longer holds the call, does not wait for a clean-up.
func TestACleanUpEndsWithItsAttempt(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"the worker stops", "the call is another worker's"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			env, late := startLate(t, nil)
			defer late.goOn()
			w := env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			id := env.Insert(handlertest.Call{Tool: "late.run", Input: task(Task{Text: "hold", Then: "hangs"})})
			<-late.cleaning
			if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
				t.Fatal(err)
			}
			clean := <-late.cleaning
			stopped := make(chan struct{})
			if ends == "the worker stops" {
				go func() { defer close(stopped); w.Stop() }()
			} else {
				close(stopped)
				if _, err := env.DB.Exec(t.Context(), "select gem.release(id, attempt, claimed_by) from core_tool_calls where id "+
					"= $1", id); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-clean.Done():
			case <-time.After(30 * time.Second):
				t.Fatal("the context of the clean-up goes on")
			}
			<-stopped
			if ends == "the worker stops" {
				env.StartWorker()
			}
			<-late.cleaning // it runs again
			<-late.cleaning
			late.goOn()
			if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
				t.Errorf("%+v", e)
			}
			sound(t, env)
		})
	}
}
