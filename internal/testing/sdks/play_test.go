package sdks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// program is a list of operations. The services and Go run it alike.
type program struct {
	Program []operation `json:"program"`
}

// operation is one of a program.
type operation struct {
	Do        string      `json:"do"`
	Name      string      `json:"name,omitempty"`
	Value     any         `json:"value,omitempty"`
	Error     string      `json:"error,omitempty"`
	Transient int         `json:"transient,omitempty"`
	Wrote     bool        `json:"wrote,omitempty"`
	Fatal     bool        `json:"fatal,omitempty"`
	Of        []operation `json:"of,omitempty"`
	Ops       []operation `json:"ops,omitempty"`
}

var tried sync.Map // how often transient steps were tried, by call and name

// Play runs a program.
func (Go) Play(ctx context.Context, d *handlers.Durable, in program) (map[string]any, error) {
	out := []any{}
	for _, op := range in.Program {
		result, err := perform(ctx, d, op)
		if failure := (*handlers.Failure)(nil); err != nil && !op.Fatal && errors.As(err, &failure) {
			result, err = failure.Code+": "+failure.Message, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}
	return map[string]any{"out": out}, nil
}

func perform(ctx context.Context, d *handlers.Durable, op operation) (any, error) {
	type echo struct {
		Value any `json:"value"`
	}
	child := func(of operation) *handlers.Child[echo] {
		return handlers.Start[echo](d, of.Name, "go.echo", map[string]any{"value": of.Value})
	}
	work := func(context.Context) (any, error) {
		n, _ := tried.LoadOrStore(d.ID+" "+op.Name, new(int))
		if *n.(*int)++; *n.(*int) <= op.Transient {
			return nil, handlers.Transient(errors.New("not yet"))
		}
		if op.Error != "" {
			return nil, &handlers.Failure{Code: "of_mine", Message: op.Error, Details: map[string]int{"a": 1}}
		}
		if op.Wrote {
			d.Wrote("things", handlers.Insert, op.Name)
		}
		return op.Value, nil
	}
	switch op.Do {
	case "step":
		return handlers.Step(ctx, d, op.Name, work)
	case "once":
		return handlers.StepOnce(ctx, d, op.Name, work)
	case "call":
		got, err := child(op).Wait(ctx)
		return got.Value, err
	case "all":
		children := make([]*handlers.Child[echo], len(op.Of))
		for i, of := range op.Of {
			children[i] = child(of)
		}
		if err := handlers.All(ctx, children...); err != nil {
			return nil, err
		}
		values := make([]any, len(children))
		for i, c := range children {
			got, err := c.Wait(ctx)
			if err != nil {
				return nil, err
			}
			values[i] = got.Value
		}
		return values, nil
	case "sleep":
		return nil, handlers.Sleep(ctx, d, op.Name, time.Millisecond)
	case "version":
		return handlers.Version(d, op.Name, int(op.Value.(float64))), nil
	case "late":
		_, err := handlers.Receive[any](d, op.Name).Within(time.Millisecond).Wait(ctx)
		return nil, err
	case "fail":
		return nil, &handlers.Failure{Code: "of_mine", Message: op.Error, Details: []int{1}}
	}
	return nil, fmt.Errorf("%s is unknown", op.Do)
}

// draw draws a program.
func draw(r *rand.Rand) (p program) {
	value := func() any {
		return []any{1.0, "é \"x\"", nil, true, []any{1.5}, map[string]any{"k": "v"}}[r.IntN(6)]
	}
	name := func() string { return []string{"a", "b", "c d"}[r.IntN(3)] }
	for range 1 + r.IntN(6) {
		op := operation{Do: []string{"step", "step", "once", "call", "all", "sleep", "late", "fail"}[r.IntN(8)],
			Value: value()}
		op.Name = op.Do + name() // so that a program never uses a name for two kinds
		switch op.Do {
		case "step":
			op.Transient, op.Wrote = []int{0, 0, 1}[r.IntN(3)], r.IntN(2) == 0
			if r.IntN(4) == 0 {
				op.Error = "no"
			}
		case "all":
			op.Of = []operation{{Name: "call" + name(), Value: value()}, {Name: "call" + name(), Value: value()}}
		case "fail":
			op.Error, op.Fatal = "broken", r.IntN(2) == 0
		}
		p.Program = append(p.Program, op)
	}
	return p
}

// journal describes what the journal of a call has, without times and ids.
func journal(t *testing.T, env *handlertest.Env, id string) []string {
	t.Helper()
	return testdb.Value[[]string](t, env.DB, `select coalesce(array_agg(line order by seq), '{}') from (
		select seq, event || ' ' || (data - array['call_id', 'until', 'receipt_id'])::text as line from core_tool_events
		where call_id = $1 and event in ('step', 'began', 'called', 'timed_out')) e`, id)
}

// A program has the same journal and the same receipt in every language.
func TestLanguagesAgree(t *testing.T) {
	t.Parallel()
	seed, programs := uint64(time.Now().UnixNano()), 12
	if testdb.IsLong() {
		programs = 300
	}
	if given := os.Getenv("SDK_SEED"); given != "" {
		seed, _ = strconv.ParseUint(given, 10, 64)
	}
	t.Log("SDK_SEED =", seed)
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			env, _ := begin(t, language)
			r := rand.New(rand.NewPCG(seed, 0))
			for range programs {
				input, err := json.Marshal(draw(r))
				if err != nil {
					t.Fatal(err)
				}
				ours := env.Run(handlertest.Call{Tool: "go.play", Input: string(input)})
				theirs := env.Run(handlertest.Call{Tool: "remote.play", Input: string(input)})
				if diff := cmp.Diff(told(ours), told(theirs)); diff != "" {
					t.Fatalf("%s\nends otherwise than in Go:\n%s", input, diff)
				}
				if diff := cmp.Diff(string(ours.Effects), string(theirs.Effects)); diff != "" {
					t.Fatalf("%s\nhas other effects than in Go:\n%s", input, diff)
				}
				if diff := cmp.Diff(journal(t, env, ours.CallID), journal(t, env, theirs.CallID)); diff != "" {
					t.Fatalf("%s\nhas another journal than in Go:\n%s", input, diff)
				}
			}
		})
	}
}

// Services and workers die in the middle of everything. Each call ends, its rows are there once, and a step that must
// not run twice has not.
func TestNothingIsLostWhenServicesAndWorkersDie(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, s *service) {
		kills, calls := 6, 30
		if testdb.IsLong() {
			kills, calls = 500, 1000
		}
		var ids []string
		for i := range calls {
			input := `{"program": [{"do": "step", "name": "a", "value": 1}, {"do": "call", "name": "c", "value": 2},
				{"do": "once", "name": "o", "value": 3}, {"do": "sleep", "name": "s"}]}`
			tool := "remote.play"
			if i%3 == 0 {
				tool, input = "remote.book", `{}`
			}
			ids = append(ids, env.Insert(handlertest.Call{Tool: tool, Input: input}))
		}
		for i := range kills {
			time.Sleep(time.Duration(20+rand.IntN(200)) * time.Millisecond)
			if i%2 == 0 {
				s.kill()
				s.start()
			} else {
				w := env.StartWorker()
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				w.Kill()
			}
		}
		open := func(more string) int {
			return testdb.Value[int](t, env.DB, "select count(*) from core_tool_calls where not gem.is_final(status)"+more)
		}
		for open("") > 0 { // the pauses after failures grow
			env.Until("the calls that may run to do so", func() bool {
				return open(" and not (status = 'queued' and run_at > gem.now() or coalesce(waits_for = 'code', false))") == 0
			})
			env.Pass(time.Minute)
		}
		for _, id := range ids {
			r := env.Await(id)
			if got := told(r); !slices.Contains([]string{`succeeded "x"`, `succeeded {"out": [1, 2, 3, null]}`}, got) &&
				!strings.Contains(got, "outcome_unknown: ") && !strings.Contains(got, "must not run twice") {
				t.Errorf("%s: %s", id, got)
			}
		}
		wrong := testdb.Value[int](t, env.DB, `select count(*) from core_tool_calls c where c.tool_name = 'remote.book' and
			(select count(*) from things where call_id like c.id || '.%') <> (c.status = 'succeeded')::int`)
		if wrong > 0 {
			t.Errorf("%d calls have other rows than their receipts say", wrong)
		}
		report, err := audit.Database(t.Context(), env.DB, audit.Options{})
		if err != nil || report.Faults > 0 {
			t.Errorf("%+v, %v", report, err)
		}
	})
}
