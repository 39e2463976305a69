package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// The commands of docs/schedules.md are run from its top.
func TestTheGuideToSchedulesWorks(t *testing.T) {
	t.Parallel()
	page := readPage(t, "docs/schedules.md")
	env := []string{"DATABASE_URL=" + testdb.New(t)}
	run := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		for _, words := range commands(t, strings.ReplaceAll(block[1], "\\\n", "")) {
			if words[0] != "gem" {
				t.Fatal(words)
			}
			gemWith(t, env, words[1:]...).wantCode(t, 0)
			run++
		}
	}
	if run < 7 {
		t.Errorf("the guide has %d commands", run)
	}
	file := filepath.Join(t.TempDir(), "schedules.json")
	list := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(page)
	if err := os.WriteFile(file, []byte(list[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	got := gemWith(t, env, "schedules", "apply", file)
	got.wantCode(t, 0)
	if strings.Count(got.stdout, ": its next call: 2") != 2 {
		t.Error(got.stdout)
	}
}

func TestSchedulesShowWhatBecameOfTheirTimes(t *testing.T) {
	testdb.Long(t, "TestTheGuideToSchedulesWorks")
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	env := []string{"DATABASE_URL=" + url}
	run := func(args ...string) string {
		t.Helper()
		got := gemWith(t, env, append([]string{"schedules"}, args...)...)
		got.wantCode(t, 0)
		return got.stdout
	}
	run("add", "nightly", "0 2 * * *", "a.b", `{"x": "{due_at}"}`, "--missed", "all", "--missed-within", "31 days")
	testdb.Exec(t, db, "update gem.schedules set since = now() - interval '3 days', look_at = now(), "+
		"next_at = gem.cron_next(cron, zone, now() - interval '3 days')")
	testdb.Exec(t, db, "select gem.run_timers('w', 1000)")
	for want, in := range map[string]string{
		"0 2 * * * in UTC":        run("show", "nightly"),
		"queued":                  run("show", "nightly"),
		"skipped: overlap, call ": run("show", "nightly"),
		"nightly  -     0 2 * * *  UTC   a.b   2": run("list"),
		"It is paused":     run("pause", "nightly", "--reason", "moving house"),
		"paused by ":       run("list"),
		"moving house":     run("show", "nightly"),
		"Its next call: 2": run("resume", "nightly"),
		"2 calls made.": run("backfill", "nightly", "--from", "2020-01-01T00:00:00Z",
			"--to", "2020-01-02T12:00:00Z"),
		"01":        run("run", "nightly"),
		"02:00 UTC": run("next", "0 2 * * *", "--count", "1"),
		"It is removed, and makes no further calls": run("remove", "nightly"),
	} {
		if !strings.Contains(in, want) {
			t.Errorf("no %q in:\n%s", want, in)
		}
	}
	for args, want := range map[string]string{
		"show nightly":                        "the schedule nightly does not exist",
		"pause nightly":                       "the schedule nightly does not exist",
		"add x 0_9_*_* a.b":                   `the cron expression "0 9 * *" cannot be read`,
		"add x @daily a.b []":                 "the input must be a JSON object",
		"add x @daily a.b {":                  "is not JSON",
		"add x @daily a.b {} --starts-at now": "--starts-at is \"now\"",
		"next 0_0_31_2_*":                     "has no time in eight years",
		"backfill x":                          "it needs --from and --to",
		"apply no.json":                       "no such file",
	} {
		words := strings.Fields(args)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "_", " ")
		}
		got := gemWith(t, env, append([]string{"schedules"}, words...)...)
		if got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("gem schedules %s: %d, no %q in:\n%s", args, got.code, want, got.stderr)
		}
	}
}

// An unset variable of the shell is an empty argument.
func TestAnEmptyNameIsNotEverySchedule(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"pause", "", "--of", "ada"}, {"remove", "report", "--of", ""}, {"run", "x", "--of="}} {
		got := gemWith(t, []string{"DATABASE_URL=postgres://localhost:1/none"}, append([]string{"schedules"}, args...)...)
		got.wantCode(t, exitUsage)
		wants(t, got.stderr, "empty")
	}
}
