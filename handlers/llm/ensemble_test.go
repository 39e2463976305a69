package llm_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

type handlertestCall = handlertest.Call

// threeMembers are routes over three providers, and a judge.
func threeMembers(t *testing.T) *scene {
	t.Helper()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Anthropic, nil).target("c", llmtest.Gemini,
		nil).target("judge", llmtest.OpenAI, nil)
	for _, name := range []string{"a", "b", "c", "judge"} {
		s.route(name, name)
		s.server.Always("/"+name, llmtest.Say("from "+name))
	}
	return s
}

// meeting holds the first deltas of so many answers until all are there.
func meeting(n int) func(ctx context.Context, delta int) {
	var there sync.WaitGroup
	there.Add(n)
	return func(ctx context.Context, delta int) {
		if delta != 0 {
			return
		}
		there.Done()
		all := make(chan struct{})
		go func() { there.Wait(); close(all) }()
		select {
		case <-all:
		case <-ctx.Done():
		}
	}
}

func ensemble(strategy string, more ...object) handlertestCall {
	c := asks("Which?", append([]object{{"strategy": strategy,
		"members": []any{object{"route": "a"}, object{"route": "b"}, object{"route": "c"}}}}, more...)...)
	c.Tool = "llm.ensemble"
	return c
}

func TestAllMembersOfAnEnsembleAnswerSideBySide(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	three := meeting(3) // each waits for the other two
	for _, name := range []string{"a", "b", "c"} {
		script := llmtest.Say("from " + name)
		script.Before = three
		s.server.Always("/"+name, script)
	}
	env := s.start(t)
	r := env.Run(ensemble("all"))
	got := succeeded(t, r)
	for i, c := range got.Candidates {
		if c.Member != i+1 || c.Text != "from "+string(rune('a'+i)) {
			t.Errorf("%+v", c)
		}
	}
	if len(got.Candidates) != 3 {
		t.Errorf("%s", r.Result)
	}
}

func TestAQuorumBearsTheLossOfAMember(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	s.server.Always("/b", llmtest.Script{Fault: llmtest.Status(400)})
	env := s.start(t)
	got := succeeded(t, env.Run(ensemble("all", object{"quorum": 2})))
	if got.Candidates[1].Error == nil || got.Candidates[1].Error.Code != "provider_refused" ||
		got.Candidates[2].Text != "from c" {
		t.Errorf("%+v", got.Candidates)
	}
	got = failedWith(t, env.Run(ensemble("all")), "quorum_missed")
	if len(got.Candidates) != 3 || got.Candidates[0].Text != "from a" {
		t.Errorf("what was paid for is gone: %+v", got.Candidates)
	}
}

func TestAMemberThatTakesTooLongIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	s.server.Always("/c", llmtest.Say("a long answer that never ends").With(llmtest.After(2, llmtest.Stalled)))
	env := s.start(t)
	id := env.Insert(ensemble("all", object{"quorum": 2, "member_timeout_s": 60}))
	env.Until("a stream that stalls, and two members that have answered", func() bool {
		var ended int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_calls where parent_call_id = $1 and status "+
			"= 'succeeded'", id).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		return ended == 2 && s.server.Counts().Open == 1
	})
	env.Pass(61 * time.Second)
	if got := succeeded(t, env.Await(id)); got.Candidates[2].Error == nil || got.Candidates[2].Error.Code != "timeout" {
		t.Errorf("%+v", got.Candidates)
	}
	env.Until("the member to be cancelled", func() bool { return s.server.Counts().Open == 0 })
}

func TestAJudgeChoosesWithoutKnowingWhoAnswered(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	s.server.Always("/judge", llmtest.Say(`{"winner": "B", "reason": "It is short."}`))
	got := succeeded(t, s.start(t).Run(ensemble("judge", object{"judge_route": "judge"})))
	var shown string
	for _, r := range s.server.Requests() {
		if strings.HasPrefix(r.Path, "/judge") {
			shown = r.Asked.Messages[len(r.Asked.Messages)-1].Content[0].Text
		}
	}
	_, second, _ := strings.Cut(shown, "--- answer B ---\n")
	second, _, _ = strings.Cut(second, "\n--- end")
	if got.Text != second || got.Text != got.Candidates[got.Winner-1].Text || got.Judge.Reason != "It is short." ||
		strings.Contains(shown, "model-") {
		t.Errorf("%+v\n%s", got, shown)
	}
}

func TestAJudgeThatFailsIsNoWinnerByLot(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	s.server.Always("/judge", llmtest.Say(`I like them all.`))
	got := failedWith(t, s.start(t).Run(ensemble("judge", object{"judge_route": "judge"})), "judge_failed")
	if len(got.Candidates) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestAModelWritesOneAnswerOutOfAll(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	got := succeeded(t, s.start(t).Run(ensemble("fuse", object{"judge_route": "judge"})))
	if got.Text != "from judge" || len(got.Candidates) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestAVoteIsWhatMostAgreeOn(t *testing.T) {
	t.Parallel()
	schema := object{"schema": object{"type": "object",
		"properties": object{"n": object{"type": "number"}, "s": object{"type": "string"}}}}
	for name, test := range map[string]struct {
		answers [3]string
		winner  int
		tie     bool
	}{
		"two of three":      {[3]string{`{"n": 1}`, `{"n": 2, "s": "x"}`, `{"s": "x", "n": 2.0}`}, 2, false},
		"all":               {[3]string{`{"n": 1}`, `{"n": 1}`, `{"n": 1}`}, 1, false},
		"each one's own":    {[3]string{`{"n": 1}`, `{"n": 2}`, `{"n": 3}`}, 0, true},
		"numbers are equal": {[3]string{`{"n": 3}`, `{"n": 1e2}`, `{"n": 100}`}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := threeMembers(t)
			for i, answer := range test.answers {
				s.server.Always("/"+string(rune('a'+i)), llmtest.Say(answer))
			}
			got := succeeded(t, s.start(t).Run(ensemble("vote", schema)))
			if got.Winner != test.winner || got.Tie != test.tie || len(got.Candidates) != 3 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestTheCostOfAnEnsembleIsThatOfAllItsCalls(t *testing.T) {
	t.Parallel()
	s := threeMembers(t)
	for _, name := range []string{"a", "b", "c", "judge"} {
		script := llmtest.Say("x")
		script.Usage = &provider.Usage{Input: 1000, Output: 1000, Known: true}
		s.server.Always("/"+name, script)
	}
	env := s.start(t)
	r := env.Run(ensemble("fuse", object{"judge_route": "judge"}))
	var cost string
	if err := env.DB.QueryRow(t.Context(), "select r.result #>> '{usage,cost_usd}' || ' ' || (r.result #>> "+
		"'{usage,requests}') || ' ' || (select sum(cost) from core_llm_requests) from core_tool_receipts r where "+
		"r.id::text = $1", r.ID).
		Scan(&cost); err != nil || cost != "0.012 4 12000000" {
		t.Errorf("%q %v: %s", cost, err, r.Result)
	}
}
