package agent_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
)

func TestTheSecondTurnOfAnAgentIsReadFromTheCache(t *testing.T) {
	s := newScene(t)
	s.says(wants("leads_create", lead), llmtest.Say("done"), llmtest.Say("nothing to do"))
	tools := object{"tools": []string{"leads.*", "os.*"}}
	got := s.answered(s.Run(run(tools)))
	requests := s.server.Requests()
	first, second := requests[0].Usage, requests[1].Usage
	if first.CacheRead != 0 || first.CacheWrite != first.Input {
		t.Errorf("the first turn: %+v", first)
	}
	if second.CacheRead*10 < first.Input*9 || second.CacheRead+second.CacheWrite != second.Input {
		t.Errorf("of the %d tokens of the first turn, the second one read %d from the cache: %+v", first.Input,
			second.CacheRead, second)
	}
	if u := got.Usage; u.Read != second.CacheRead || u.Written != first.CacheWrite+second.CacheWrite ||
		u.Input != first.Input+second.Input {
		t.Errorf("the result has %+v", u)
	}
	s.answered(s.Run(run(tools, object{"task": "Something else."})))
	if other := s.server.Last().Usage; other.CacheRead == 0 {
		t.Errorf("another agent with the same tools shares nothing: %+v", other)
	}
}

// A provider finds a beginning again only if no byte of it has changed.
func TestEachTurnOfAnAgentBeginsWithTheOneBefore(t *testing.T) {
	s := newScene(t)
	for _, d := range llmtest.Dialects {
		s.says(wants("leads_create", lead, "os_create_note", note), wants("os_make_coffee", "{}"), llmtest.Say("done"))
		before := len(s.server.Requests())
		s.answered(s.Run(run(object{"route": d, "tools": []string{"leads.*", "os.*"}})))
		var last map[string]json.RawMessage
		for _, r := range s.server.Requests()[before:] {
			var body map[string]json.RawMessage
			if err := json.Unmarshal(r.Body, &body); err != nil {
				t.Fatal(err)
			}
			for field, value := range last {
				var was, is []json.RawMessage
				if field != "messages" && field != "contents" {
					if string(body[field]) != string(value) {
						t.Errorf("%s: %s changed from %s to %s", d, field, value, body[field])
					}
					continue
				}
				if json.Unmarshal(value, &was) != nil || json.Unmarshal(body[field], &is) != nil || len(is) <= len(was) ||
					!slices.EqualFunc(was, is[:len(was)], func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
					t.Errorf("%s: %s became %s", d, value, body[field])
				}
			}
			last = body
		}
		if last == nil {
			t.Errorf("%s: no request came", d)
		}
	}
}

func TestATargetWhoseCacheIsOffIsNotAskedToCache(t *testing.T) {
	s := newSceneOf(t, object{"cache": "off"})
	s.says(wants("os_health_check", "{}"), llmtest.Say("done"))
	s.answered(s.Run(agent("os.health_check")))
	for _, r := range s.server.Requests() {
		if len(r.CacheAt) > 0 || r.Usage.CacheWrite != 0 {
			t.Errorf("%s", r.Body)
		}
	}
}
