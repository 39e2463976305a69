package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/client/view"
)

// A conversation is cut into pages anywhere: no turn is lost, and each appears before its calls.
func TestTurnsStandBeforeTheirCallsOnEveryPage(t *testing.T) {
	t.Parallel()
	call := func(id, parent, step string, depth int) view.SessionCall {
		return view.SessionCall{Call: view.Call{ID: id, ParentID: parent, ParentStep: step}, Depth: depth}
	}
	// The agent a calls twice in turn 1; in turn 2 it starts the agent b, which calls once and answers; its turn 3 is the
	// answer. c follows.
	calls := []view.SessionCall{call("a", "", "", 0), call("a11", "a", "turn 1 call 1", 1),
		call("a12", "a", "turn 1 call 2", 1), call("b", "a", "turn 2 call 2", 1),
		call("b11", "b", "turn 1 call 1", 2), call("c", "", "", 0)}
	all := turns{"a": {}, "b": {}}
	for agent, last := range map[string]int{"a": 3, "b": 2} {
		for n := 1; n <= last; n++ {
			all[agent][n] = &turn{N: n, CallID: agent}
		}
	}
	said := func(items []item) string {
		var names []string
		for _, i := range items {
			if i.Turn != nil {
				names = append(names, fmt.Sprintf("%s:%d", i.Turn.CallID, i.Turn.N))
			} else {
				names = append(names, i.Call.ID)
			}
		}
		return strings.Join(names, " ")
	}
	if got, want := said(weave(nil, calls, all, nil)), "a a:1 a11 a12 a:2 b b:1 b11 b:2 a:3 c"; got != want {
		t.Errorf("one page: got %s, want %s", got, want)
	}
	// The depth counts from the calls that have no parent on the page.
	for at, page := range map[int]struct {
		above, depths []int
		first, second string
	}{
		1: {[]int{0}, []int{0, 0, 0, 1, 0}, "a", "a:1 a11 a12 a:2 b b:1 b11 b:2 a:3 c"},
		2: {[]int{0}, []int{0, 0, 1, 0}, "a a:1 a11", "a:1 a12 a:2 b b:1 b11 b:2 a:3 c"},
		3: {[]int{0}, []int{0, 1, 0}, "a a:1 a11 a12", "a:2 b b:1 b11 b:2 a:3 c"},
		4: {[]int{0, 3}, []int{0, 0}, "a a:1 a11 a12 a:2 b", "b:1 b11 b:2 a:3 c"},
		5: {nil, []int{0}, "a a:1 a11 a12 a:2 b b:1 b11 b:2 a:3", "c"},
	} {
		var above []view.Call
		var goesOn []string
		for _, i := range page.above {
			above, goesOn = append(above, calls[i].Call), append(goesOn, calls[i].ID)
		}
		rest := slices.Clone(calls[at:])
		for i, d := range page.depths {
			rest[i].Depth = d
		}
		if got := said(weave(nil, calls[:at], all, goesOn)); got != page.first {
			t.Errorf("the first %d calls: got %s, want %s", at, got, page.first)
		}
		if got := said(weave(above, rest, all, nil)); got != page.second {
			t.Errorf("from call %d on: got %s, want %s", at, got, page.second)
		}
	}
}
