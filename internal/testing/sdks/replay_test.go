package sdks

import (
	"testing"
)

// A replay, as gem replay makes it, runs no step. It ends at the first operation that the journal lacks or that does
// not fit the journal.
func TestAReplayEndsWhereTheJournalEndsOrDoesNotFit(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		id, q := s.asked()
		replayed := func(what string) {
			t.Helper()
			r := s.env.Replay(id)
			if got := r.Stopped + r.Misfit + r.Lacks; got != what || r.Stopped != "" && len(r.Unread) > 0 {
				t.Errorf("the replay ends with %q, want %q; unread entries: %v", got, what, r.Unread)
			}
		}
		replayed("the wait for act")
		s.restart("AGENT_VERSION=another kind")
		replayed("think: The journal has an entry of the kind step under this name, and the handler asks for one of the " +
			"kind once.")
		s.restart()
		s.answer(q.ID, "blue", "")
		s.env.StartWorker()
		s.ran(id)
		if r := s.env.Replay(id); !r.Same() || s.effects.count("think 1") != 1 || s.effects.count("think 2") != 1 {
			t.Errorf("%+v; the two steps ran %d and %d times, want 1 each", r, s.effects.count("think 1"),
				s.effects.count("think 2"))
		}
	})
}
