package cli

import "testing"

// The commands of docs/tutorial.md are run in an empty folder, and print what it shows.
func TestTheTutorialIsFollowed(t *testing.T) {
	t.Parallel()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}}
	f.follow(t, "docs/tutorial.md", "Change something", nil)
	if f.calls != 14 || f.shown != 6 {
		t.Errorf("%d calls are made, and %d results shown", f.calls, f.shown)
	}
}
