package cli

import (
	"runtime/debug"
	"testing"
)

func TestTheVersionNamesOnlyACommitThatIsKnown(t *testing.T) {
	t.Parallel()
	for commit, want := range map[string]string{"0123abc": "gem v1.2.3 (commit 0123abc)", "": "gem v1.2.3"} {
		if got := versionLine("v1.2.3", commit); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got, want := versionLine("dev", ""), "gem (development build)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestVersionComesFromTheBuildElseFromGoElseFromRender(t *testing.T) {
	t.Parallel()
	const hash = "0123456789abcdef0123456789abcdef01234567"
	checkout := &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20260102030405-0123456789ab"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: hash}, {Key: "vcs.modified", Value: "true"}}}
	plain := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for name, test := range map[string]struct {
		version, commit string
		recorded        *debug.BuildInfo
		render          string
		v, c            string
	}{
		"the build's":        {"v1.2.3", "0123abc", checkout, "fedcba9876543210", "v1.2.3", "0123abc"},
		"the build's, whole": {"v1.2.3", hash, plain, "", "v1.2.3", "0123456789ab"},
		"Go's": {"", "", checkout, "fedcba9876543210", "v0.0.0-20260102030405-0123456789ab",
			"0123456789ab, modified"},
		"the build's version alone":  {"v1.2.3", "", checkout, "", "v1.2.3", "0123456789ab, modified"},
		"Render's":                   {"", "", plain, "fedcba98765432100123", "dev", "fedcba987654"},
		"nobody's":                   {"", "", plain, "", "dev", ""},
		"nobody's, not even the Go ": {"", "", &debug.BuildInfo{}, " ", "dev", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := func(name string) string {
				if name == "RENDER_GIT_COMMIT" {
					return test.render
				}
				return ""
			}
			if v, c := versionOf(test.version, test.commit, test.recorded, env); v != test.v || c != test.c {
				t.Errorf("got %q and %q, want %q and %q", v, c, test.v, test.c)
			}
		})
	}
}
