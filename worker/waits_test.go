package worker_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

// Tree is a domain whose tree.run makes calls and waits for them. The text of its input says how, in words separated by
// semicolons:
//
//	start NAME TOOL [THEN]    chosen NAME TOOL: by a model
//	wait NAME [MILLISECONDS]    all NAME...    first NAME...    sleep NAME MILLISECONDS
//	step NAME [once]
//	gate NAME: reports that it is there, and waits until the test lets it continue
//	hold: until its context ends                          undo NAME [later | forever]: if it was cancelled, waits first
//	ask NAME [BY...]          hear NAME                   approve NAME TOOL [BY...]       approved NAME APPROVAL [INPUT]
//	event NAME [BY...]        until MILLISECONDS: the time of the questions after it
//	down N                    writes a row, makes a call of itself with one less, and waits for it
type Tree struct{ *Lab }

func (r Tree) Run(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	var came []string
	var cancelled error
	var until time.Time
	note := func(text string, err error) {
		if errors.Is(err, handlers.ErrCancelled) || err != nil && ctx.Err() != nil {
			cancelled = err
		}
		came = append(came, said(text, err))
	}
	children := map[string]awaited{}
	approvals := map[string]*handlers.Child[handlers.Decision]{}
	for line := range strings.SplitSeq(in.Text, ";") {
		words := append(strings.Fields(line), "", "", "")
		name, then := words[1], words[2]
		switch words[0] {
		case "start":
			var input any = Task{Text: name, Then: words[3], Gate: map[bool]string{true: name}[words[3] == "gate"], Key: "k"}
			switch words[3] {
			case "nul":
				input = Task{Text: "a\x00b"}
			case "list":
				input = []int{1}
			case "long":
				input = Task{Text: strings.Repeat("x", 1<<20)}
			case "large": // which Postgres cannot make smaller
				large := make([]byte, 450_000)
				for i := range large {
					large[i] = byte(mathrand.Uint32())
				}
				input = Task{Text: hex.EncodeToString(large)}
			case "channel":
				input = make(chan int)
			}
			children[name] = child[Done]{handlers.Start[Done](d, name, then, input)}
		case "chosen":
			children[name] = child[Done]{handlers.StartWith[Done](d, name, then, func() (json.RawMessage, error) {
				return json.RawMessage(`{"text": "x"}`), nil
			})}
		case "ask":
			children[name] = child[string]{handlers.Ask[string](d, name,
				handlers.Question{Text: name + "?", By: strings.Fields(line)[2:], Until: until})}
		case "event":
			children[name] = child[Happened]{handlers.Start[Happened](d, name, "wait.event", map[string]any{
				"text": name, "by": append(strings.Fields(line)[2:], "owner")})}
		case "until":
			ms, _ := strconv.Atoi(name)
			until = time.Now().Add(time.Duration(ms) * time.Millisecond)
		case "hear":
			children[name] = child[string]{handlers.Receive[string](d, name)}
		case "approve":
			approvals[name] = handlers.Approve(d, name, handlers.Approval{Tool: then, Input: Task{Text: name, Key: "k"},
				By: strings.Fields(line)[3:], Until: until})
			children[name] = child[handlers.Decision]{approvals[name]}
		case "approved":
			children[name] = child[Done]{handlers.StartApproved[Done](d, name, approvals[then])}
		case "wait":
			if ms, err := strconv.Atoi(then); err == nil {
				children[name].within(time.Duration(ms) * time.Millisecond)
			}
			text, err := children[name].wait(ctx)
			if len(text) > 1000 {
				text = fmt.Sprint(len(text))
			}
			note(text, err)
		case "all":
			var of []handlers.Awaited
			for _, n := range strings.Fields(line)[1:] {
				of = append(of, children[n])
			}
			if err := handlers.All(ctx, of...); err != nil {
				return Done{}, err
			}
		case "first":
			var of []handlers.Awaited
			for _, n := range strings.Fields(line)[1:] {
				of = append(of, children[n])
			}
			i, err := handlers.First(ctx, of...)
			note("first "+words[1+i], err)
		case "sleep":
			ms, _ := strconv.Atoi(then)
			note("slept", handlers.Sleep(ctx, d, name, time.Duration(ms)*time.Millisecond))
		case "step":
			text, err := handlers.Step(ctx, d, name, func(context.Context) (string, error) {
				r.mu.Lock()
				r.sent = append(r.sent, name)
				r.mu.Unlock()
				d.Sent("test", name, d.ID)
				if then == "once" && d.Attempt == 1 {
					return "", handlers.Transient(errors.New("later"))
				}
				return name, nil
			})
			note(text, err)
		case "gate":
			r.began <- name
			<-r.gate(name)
		case "hold":
			r.began <- "hold"
			<-ctx.Done()
		case "undo":
			if cancelled == nil {
				continue
			}
			ctx := context.WithoutCancel(ctx)
			if then != "" {
				_ = handlers.Sleep(ctx, d, "before "+name, map[string]time.Duration{"later": time.Millisecond,
					"forever": 24 * time.Hour}[then])
			}
			_, err := handlers.Step(ctx, d, "undo "+name, func(ctx context.Context) (string, error) {
				r.mu.Lock()
				r.sent = append(r.sent, "undo "+name)
				r.mu.Unlock()
				d.Sent("test", "undo "+name, d.ID)
				return "", ctx.Err()
			})
			note("undone", err)
		case "down":
			if _, err := handlers.StepTx(ctx, d, "row", func(ctx context.Context, tx handlers.Tx) (int, error) {
				_, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", d.ID)
				return 1, err
			}); err != nil {
				return Done{}, err
			}
			if n, _ := strconv.Atoi(name); n > 0 {
				done, err := handlers.Start[Done](d, "below", "tree.run", Task{Text: fmt.Sprint("down ", n-1)}).Wait(ctx)
				note(name+" "+done.Text, err)
			}
		}
	}
	return Done{Text: strings.Join(came, ", ")}, cancelled
}

// Happened is what wait.event returns.
type Happened struct{ Event, By string }

// awaited is something that a handler waits for.
type awaited interface {
	handlers.Awaited
	wait(context.Context) (string, error)
	within(time.Duration)
}

type child[T any] struct{ *handlers.Child[T] }

func (c child[T]) within(t time.Duration) { c.Within(t) }

func (c child[T]) wait(ctx context.Context) (text string, err error) {
	switch value, err := c.Wait(ctx); v := any(value).(type) {
	case Done:
		return v.Text, err
	case Happened:
		return v.Event + " by " + v.By, err
	case handlers.Decision:
		return strings.TrimSpace(fmt.Sprintf("%t by %s %s", v.Approved, v.By, v.Reason)), err
	default:
		by, _ := c.By()
		return fmt.Sprintf("%v by %s", v, by), err
	}
}

func said(text string, err error) string {
	var failure *handlers.Failure
	if errors.As(err, &failure) {
		return failure.Code
	}
	if err != nil {
		return err.Error()
	}
	return text
}

// startTree starts a worker with tree.run and the lab.
func startTree(t *testing.T, change func(*worker.Options), tools ...tool) (*handlertest.Env, *Lab) {
	t.Helper()
	lab := NewLab()
	if len(tools) == 0 {
		tools = []tool{{name: "tree.run", calls: []string{"lab.*", "tree.run"}}}
	}
	tools = append(tools, tool{name: "lab.send"}, tool{name: "lab.write"}, tool{name: "lab.nothing"})
	env := handlertest.Start(t, handlertest.Options{Registry: asking(labRegistry("1.0.0", tools...)),
		Domains: []any{lab, Tree{lab}}, Worker: change, NoWorker: true})
	if _, err := env.DB.Exec(t.Context(), "create table lab_rows (id bigint generated always as identity primary key, "+
		"text text)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(lab.gate("never")) })
	return env, lab
}

// asking adds wait.event to a registry, next to the tools that ask and that every registry has.
func asking(registry []byte) []byte {
	return append([]byte(`{"include": ["wait"], `), bytes.TrimPrefix(bytes.TrimSpace(registry), []byte("{"))...)
}

func runTree(env *handlertest.Env, script string) *receipts.Receipt {
	return env.Run(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: script})})
}

// sound fails the test if an audit finds anything, or what rules decided comes out otherwise when it is computed again.
func sound(t *testing.T, env *handlertest.Env) {
	t.Helper()
	// no test here changes rights
	report, err := audit.Database(t.Context(), env.DB, audit.Options{Skip: []string{"rights"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range report.Checks {
		if check.Found > 0 {
			t.Errorf("audit: %+v", check)
		}
	}
	if again := replayed(t, env); len(again.Differences) > 0 {
		t.Errorf("rules replay: %+v", again.Differences)
	}
}

func textOf(t *testing.T, r *receipts.Receipt) string {
	t.Helper()
	if r.Status != receipts.Succeeded {
		t.Fatalf("%s: %s", r.Status, r.Result)
	}
	return handlertest.Output[Done](t, r).Text
}

func number(t *testing.T, env *handlertest.Env, sql string, args ...any) (n int) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAHandlerWaitsForItsCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		want   string
		runs   int // attempts
	}{
		"one":               {"start a lab.send; wait a", "a", 2},
		"one after another": {"start a lab.send; wait a; start b lab.send; wait b", "a, b", 3},
		"all at once": {"start a lab.send; start b lab.write; start c lab.nothing; all a b c; wait c; " +
			"wait a", "c, a", 2},
		"one that fails":                {"start a lab.send fail; wait a; step b", "execution_error, b", 2},
		"a step after a call was begun": {"start a lab.send; step b; wait a", "b, a", 2},
		"a step that is tried again":    {"start a lab.send; step b once; wait a", "b, a", 3},
		"one that nobody waits for":     {"start a lab.send; step b", "b", 1},
		"names that come again":         {"start a lab.send; wait a; start a lab.nothing; wait a", "a, a", 3},
		"a time":                        {"sleep a 20; step b", "slept, b", 2},
		"a time that is over at once":   {"sleep a 0; sleep b -5", "slept, slept", 0},
		"a call that is in time":        {"start a lab.send; wait a 60000", "a", 2},
		"what cannot be made": {"start a no.tool; wait a; start b tree.else; wait b; step c",
			"not_allowed, not_allowed, c", 1},
		"inputs that are none": {"start a lab.send channel; wait a; start b lab.send long; wait b; start c " +
			"lab.send nul; start d lab.send list; start e lab.send; all c d e; wait c; wait d; wait e",
			"validation_error, validation_error, validation_error, validation_error, e", 2},
		"the first, where one is none":    {"start a lab.send list; start b lab.send; first b a; wait b", "first a, b", 2},
		"the same call twice":             {"start a lab.send; all a a; wait a", "a", 2},
		"four generations":                {"down 3", "3 2 1 ", 2},
		"more generations than there are": {"down 12", "12 11 10 9 8 7 6 5 not_allowed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := startTree(t, func(o *worker.Options) { o.Concurrency = 1 }) // a call that waits has no slot
			env.StartWorker()
			r := runTree(env, test.script)
			if got := textOf(t, r); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if test.runs > 0 && r.Attempt > test.runs {
				t.Errorf("it took %d attempts, want %d", r.Attempt, test.runs)
			}
			env.Until("children to end", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')") == 0
			})
			sound(t, env)
		})
	}
}

// A call of its own for each child, with what it has of its parent.
func TestAChildHasWhatItsParentHas(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, func(o *worker.Options) { o.Concurrency = 1 }) // so that the child runs once the parent waits
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "start a lab.send; wait a"}), CreatedBy: "ada",
		Priority: 7})
	if n := number(t, env, `select count(*) from core_tool_calls c join core_tool_calls p on p.id = c.parent_call_id
		where p.id = $1 and c.parent_step = 'a' and c.created_by = 'ada' and c.priority = 7 and c.status = 'succeeded'`,
		r.CallID); n != 1 {
		t.Errorf("%d children have what their parent has", n)
	}
	want := []string{"queued", "claimed", "called", "waiting", "returned", "woken", "claimed", "succeeded"}
	if diff := cmp.Diff(want, env.Journal(r.CallID)); diff != "" {
		t.Error(diff)
	}
}

// The parent's lock is taken once for each end, and it is woken once.
func TestManyChildrenWakeTheirParentOnce(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	env.StartWorker()
	var script, names strings.Builder
	for i := range 100 {
		fmt.Fprintf(&script, "start c%d lab.nothing;", i)
		fmt.Fprintf(&names, " c%d", i)
	}
	r := runTree(env, script.String()+"all"+names.String())
	if r.Status != receipts.Succeeded || r.Attempt != 2 {
		t.Errorf("%s in attempt %d", r.Status, r.Attempt)
	}
	journal := env.Journal(r.CallID)
	for event, want := range map[string]int{"called": 100, "returned": 100, "woken": 1, "waiting": 1} {
		if n := len(slices.DeleteFunc(slices.Clone(journal), func(e string) bool { return e != event })); n != want {
			t.Errorf("%d events %s, want %d", n, event, want)
		}
	}
	sound(t, env)
}

// A call may end before it is waited for, or while its parent does something else.
func TestWhatCameBeforeTheWaitIsThere(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "start a lab.nothing; start b " +
		"lab.nothing gate; step x; all a b; first a b; wait a; wait b"})})
	lab.awaitBegin(t)
	env.Until("a to return", func() bool { return slices.Contains(env.Journal(id), "returned") })
	lab.tell(t, "b", Order{})
	if got := textOf(t, env.Await(id)); got != "x, first a, a, b" {
		t.Errorf("got %q", got)
	}
	sound(t, env)
}

// Each worker stops in the middle of its work. All calls continue elsewhere, and nothing happens twice.
func TestFamiliesGoOnWhicheverWorkerStops(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, func(o *worker.Options) { o.Concurrency, o.ShutdownGrace = 3, 0 })
	var ids []string
	for range 8 {
		ids = append(ids, env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "down 4"})}))
	}
	claims := "select count(*) from core_tool_events where event = 'claimed'"
	for range 2 { // each keeps connections of a pooler until the test ends
		w, before := env.StartWorker(), number(t, env, claims)
		env.Until("calls to be claimed", func() bool {
			return number(t, env, claims) > before+4 || number(t, env,
				"select count(*) from core_tool_calls where status not in ('succeeded', 'failed')") == 0
		})
		w.Stop()
	}
	env.StartWorker()
	for _, id := range ids {
		if got := textOf(t, env.Await(id)); got != "4 3 2 1 " {
			t.Errorf("got %q", got)
		}
	}
	if n := number(t, env, "select count(*) from lab_rows"); n != 40 {
		t.Errorf("%d rows of 40 calls", n)
	}
	sound(t, env)
}

// The results of a call's children do not count as its own. Large ones are read one by one, each time the handler
// asks for them.
func TestChildrenMayReturnMuch(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	var script, waits, want strings.Builder
	names := ""
	n := 12
	if os.Getenv("GEM_TEST_LONG") != "" {
		n = 80 // more than a call's own results may take
	}
	for i := range n {
		fmt.Fprintf(&script, "start c%d lab.nothing large;", i)
		fmt.Fprintf(&waits, ";wait c%d", i)
		names += fmt.Sprintf(" c%d", i)
		want.WriteString("900000, ")
	}
	waits.WriteString(strings.Repeat(fmt.Sprintf(";wait c%d;wait c%d;wait c0", n-2, n-1), 2))
	want.WriteString(strings.Repeat("900000, ", 6))
	r := runTree(env, script.String()+"all"+names+waits.String()+";step x")
	if got := textOf(t, r); got != want.String()+"x" {
		t.Errorf("got %q", got)
	}
}

func TestAChildThatTakesTooLongIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "start a lab.nothing gate; wait a 50; " +
		"step x; wait a"})})
	if got := textOf(t, env.Await(id)); got != "timeout, x, timeout" {
		t.Errorf("got %q", got)
	}
	lab.tell(t, "a", Order{})
	env.Until("the child to end", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')") == 0
	})
	sound(t, env)
}

// Whatever a call left open ends soon after it.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*handlertest.Env, *Lab, string){
		"its handler returns": nil,
		"it is cancelled": func(env *handlertest.Env, _ *Lab, id string) {
			env.Until("the parent to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
			if _, err := env.DB.Exec(context.Background(), "select cancel_tool_call($1)", id); err != nil {
				panic(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil)
			env.StartWorker()
			script := "start a lab.send gate; start b tree.run; step x"
			if end != nil {
				script += "; wait a"
			}
			id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: script})})
			if end != nil {
				end(env, lab, id)
			}
			env.Await(id)
			env.Until("the children to end", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting') and "+
					"cancel_requested_at is null") == 0
			})
			sound(t, env)
		})
	}
}

// While it waits, and between its attempts, no other call runs with its key.
func TestACallKeepsItsKeyWhileItWaits(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil, tool{name: "tree.run", calls: []string{"lab.*"}, mode: "keyed", keyField: "key"})
	env.StartWorker()
	first := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "step x once; start a lab.nothing " +
		"gate; wait a", Key: "k"})})
	lab.awaitBegin(t)
	env.Until("the first to wait", func() bool { return slices.Contains(env.Journal(first), "waiting") })
	second := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "step y", Key: "k"})})
	env.Until("the second to wait", func() bool { return slices.Contains(env.Journal(second), "waiting") })
	lab.tell(t, "a", Order{})
	one, two := env.Await(first), env.Await(second)
	if one.Status != receipts.Succeeded || two.ReplayOf != one.ID {
		t.Errorf("first %s %s, second a replay of %q", one.Status, one.Result, two.ReplayOf)
	}
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"x", "x"}) {
		t.Errorf("the steps did %v", sent)
	}
	sound(t, env)
}

// Its parent waits for it, and would forever.
func TestAChildDoesNotWaitForTheKeyOfItsParent(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil, tool{name: "tree.run", calls: []string{"tree.run"}, mode: "keyed", keyField: "key"})
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "step x; start a tree.run; wait a", Key: "k"})})
	if got := textOf(t, r); got != "x, key_deadlock" {
		t.Errorf("got %q", got)
	}
	sound(t, env)
}

// A call waits without a worker, and any worker can continue it.
func TestACallWaitsWithoutAWorker(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	first := env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "step x; sleep night 300; step y"})})
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	first.Stop()
	second := env.StartWorker()
	r := env.Await(id)
	if got := textOf(t, r); got != "x, slept, y" || r.WorkerID != second.ID() {
		t.Errorf("got %q of %s", got, r.WorkerID)
	}
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"x", "y"}) {
		t.Errorf("the steps did %v", sent)
	}
	for _, effect := range []string{"x", "y"} {
		if !strings.Contains(string(r.Effects), `"recipient": "`+effect+`"`) {
			t.Errorf("the effects lack %s: %s", effect, r.Effects)
		}
	}
	sound(t, env)
}

// A handler learns of the request at any point, and may clean up.
func TestACancelledHandlerCleansUp(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"that waits for a call":    "step a; start x lab.send gate; wait x; undo a",
		"that waits for an answer": "step a; ask x; wait x; undo a",
		"that sleeps":              "step a; sleep x 3600000; undo a",
		"that begins a step":       "step a; hold; step b; undo a",
		"twice over":               "step a; sleep x 3600000; undo a; undo b",
		"and waits":                "step a; sleep x 3600000; undo a later; undo b",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil)
			env.StartWorker()
			id := startTreeCall(env, script)
			if strings.Contains(script, "hold") {
				lab.awaitBegin(t)
			} else {
				env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
			}
			came, err := client.Cancel(t.Context(), env.DB, id)
			if err != nil || came != client.CancelRequested {
				t.Fatal(came, err)
			}
			r := env.Await(id)
			e := handlertest.ErrorOf(t, r)
			undone := strings.Count(script, "undo")
			if e.Code != receipts.Cancelled || strings.Count(string(r.Effects), `"recipient": "undo`) != undone {
				t.Errorf("%+v, %s", e, r.Effects)
			}
			sent := slices.DeleteFunc(lab.sentSoFar(), func(what string) bool { return what == "x" }) // of the child
			if len(sent) != 1+undone || sent[0] != "a" || sent[1] != "undo a" {
				t.Errorf("it did %v", sent)
			}
			env.Until("all to end", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting') and "+
					"cancel_requested_at is null") == 0
			})
			sound(t, env)
		})
	}
}

// The clean-up has begun and waits. A wait that the cancellation ended stays ended, whatever arrives meanwhile.
func TestNothingThatArrivesEndsACleanUp(t *testing.T) {
	t.Parallel()
	for _, waitsFor := range []string{"wait", "first", "all", "child"} {
		t.Run(waitsFor, func(t *testing.T) {
			t.Parallel()
			env, late := startLate(t, nil)
			env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "late.run", Input: task(Task{Text: waitsFor, Then: "rests"})})
			kind, arrival := "answer", "answered"
			if waitsFor == "child" {
				kind, arrival = "call", "returned"
				late.lab.awaitBegin(t)
			}
			env.UntilItWaits(id, kind)
			if came, err := client.Cancel(t.Context(), env.DB, id); err != nil || came != client.CancelRequested {
				t.Fatal(came, err)
			}
			waits := func(name string) bool {
				return number(t, env, "select count(*) from core_tool_calls where status = 'waiting' and waits = array['#"+name+
					"'] and id = '"+id+"'") == 1
			}
			arrives := func(name string) {
				if err := client.Answer(t.Context(), env.DB, id, "x", name); err != nil {
					t.Fatal(err)
				}
			}
			env.Until("the clean-up to wait", func() bool { return waits("rest") })
			if waitsFor == "child" {
				late.lab.tell(t, "slow", Order{})
			} else {
				arrives("question")
			}
			env.Until("it to arrive", func() bool { return slices.Contains(env.Journal(id), arrival) })
			arrives("rest")
			if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
				t.Errorf("%+v", e)
			}
			if got := strings.Join(late.did, " "); got != "before first undo" {
				t.Errorf("it did %s", got)
			}
			sound(t, env)
		})
	}
}

// The answer and then the cancellation arrive during a step. No operation follows the wait.
func TestAReplayReturnsTheSameCancellation(t *testing.T) {
	t.Parallel()
	env, late := startLate(t, nil)
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "late.run", Input: task(Task{Text: "step and wait", Then: "returns"})})
	<-late.cleaning
	if err := client.Answer(t.Context(), env.DB, id, "x", "question"); err != nil {
		t.Fatal(err)
	}
	if came, err := client.Cancel(t.Context(), env.DB, id); err != nil || came != client.CancelRequested {
		t.Fatal(came, err)
	}
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
	if got := late.errs; len(got) != 1 || !errors.Is(got[0], handlers.ErrCancelled) {
		t.Errorf("the wait returned %v", got)
	}
	if got := replay(t, env, id); got.Differs || got.Lacks+got.Misfit+got.Stopped != "" || len(got.Unread) > 0 {
		t.Errorf("a replay: %+v", got)
	}
	sound(t, env)
}

// Nobody runs it, or its handler takes too long to clean up.
func TestACallThatIsCancelledAgainEndsAtOnce(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	w := env.StartWorker()
	id := startTreeCall(env, "step a; sleep x 3600000; undo a")
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	w.Stop()
	for _, want := range []client.Cancellation{client.CancelRequested, client.Cancelled, "failed"} {
		if came, err := client.Cancel(t.Context(), env.DB, id); err != nil || came != want {
			t.Errorf("it came to %s, %v, want %s", came, err, want)
		}
	}
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
	sound(t, env)
}

// After an hour the handler has no more time to clean up, whatever it waits for.
func TestCleaningUpTakesAnHourAtMost(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "step a; sleep x 3600000; undo a forever; undo b")
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
		t.Fatal(err)
	}
	env.Until("it to wait again", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where id = $1 and status = 'waiting' and "+
			"cancel_requested_at is not null", id) == 1
	})
	sound(t, env)
	env.Pass(time.Hour)
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"a"}) {
		t.Errorf("it did %v", sent)
	}
	sound(t, env)
}

func TestACallEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"that sleeps": "step a; sleep x 86400000",
		"that waits for an answer": "step a; hear x; wait x", "that runs": "step a; hold; step b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil, tool{name: "tree.run", calls: []string{"lab.*"},
				deadline: map[bool]time.Duration{true: 4 * time.Second, false: time.Hour}[name == "that runs"]})
			env.StartWorker()
			id := startTreeCall(env, script)
			if name == "that runs" {
				lab.awaitBegin(t)
			} else {
				env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
				env.Pass(time.Hour)
			}
			if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Timeout ||
				!strings.Contains(string(e.Details), "deadline_ms") {
				t.Errorf("%+v", e)
			}
			sound(t, env)
		})
	}
}

// Whatever the registry says by then: the first run went on with the refusal.
func TestARefusedCallStaysRefused(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil, tool{name: "tree.run"})
	w := env.StartWorker()
	id := startTreeCall(env, "start a lab.send; wait a; step b; hear c; wait c; first a; wait a")
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	w.Stop()
	env.StartWorker(func(o *worker.Options) {
		reg, err := registry.Parse(asking(labRegistry("1.0.1", tool{name: "tree.run", calls: []string{"lab.*"}},
			tool{name: "lab.send"})))
		if err != nil {
			t.Fatal(err)
		}
		o.Registry = reg
	})
	if err := answerAs(t, env, "ada", id, "go", "c"); err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, env.Await(id)); got != "not_allowed, b, go by ada, first a, not_allowed" {
		t.Errorf("got %q", got)
	}
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"b"}) {
		t.Errorf("it did %v", sent)
	}
	sound(t, env)
}
