package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestPruneArchivesWhatItRemoves(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	file := filepath.Join(t.TempDir(), "calls.jsonl")
	s.worker("w-1", 4)
	for range 3 {
		id := s.insert()
		s.claim("w-1")
		s.finish(id, "w-1", "succeeded", `{"lead_id": "L-1"}`)
	}
	s.insert()
	calls := func() int { return testdb.Value[int](t, s.db, "select count(*)::int from core_tool_calls") }

	young := gemWith(t, env, "prune", "--older-than", "1h", "--archive", file)
	young.wantCode(t, exitDone)
	wants(t, young.stdout, "0 calls removed that ended before 2")
	for deadline := time.Now().Add(patience); ; { // until all are a second old
		dry := gemWith(t, env, "prune", "--older-than", "1s", "--dry-run")
		dry.wantCode(t, exitDone)
		if strings.HasPrefix(dry.stdout, "3 calls to be removed that ended before 2") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(dry.stdout)
		}
	}
	if n := calls(); n != 4 {
		t.Errorf("%d calls after a dry run", n)
	}
	another := gemWith(t, []string{"DATABASE_URL=" + url + "&options=-c%20role%3Dgem_worker"}, "prune", "--older-than",
		"1s", "--no-archive")
	another.wantCode(t, exitFailed)
	wants(t, another.stderr, "connect as the owner of the tables", "permission denied")

	for _, want := range []string{"3 calls removed that ended before 2", "0 calls removed that ended before 2"} {
		got := gemWith(t, env, "prune", "--older-than", "1s", "--archive", file, "--batch", "2")
		got.wantCode(t, exitDone)
		wants(t, got.stdout, want)
	}
	if n := calls(); n != 1 {
		t.Errorf("%d calls are left, want the one that has not ended", n)
	}
	content, err := os.ReadFile(file)
	if err != nil || strings.Count(string(content), "\n") != 3 {
		t.Errorf("%v: %s", err, content)
	}
	gemWith(t, env, "audit").wantCode(t, exitDone)
	audited := gemWith(t, env, "audit", "--archive", file)
	audited.wantCode(t, exitDone)
	wants(t, audited.stdout, "archive-line                3 lines           ok",
		"journal-replay              3 calls           ok")
}

func TestASecondPruneOfAnArchiveIsRefusedAndAnAuditIsNot(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	s.worker("w-1", 4)
	id := s.insert()
	s.claim("w-1")
	s.finish(id, "w-1", "succeeded", `{"lead_id": "L-1"}`)
	first, err := archive.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()

	second := gemWith(t, env, "prune", "--older-than", "1s", "--archive", path)
	second.wantCode(t, exitFailed)
	wants(t, second.stderr, path+": another gem prune writes to the file: wait until it ends")
	if n := testdb.Value[int](t, s.db, "select count(*)::int from core_tool_calls"); n != 1 {
		t.Errorf("%d calls are left, want the one that was there", n)
	}
	audited := gemWith(t, env, "audit", "--archive", path)
	audited.wantCode(t, exitDone)
	wants(t, audited.stdout, "archive-line                0 lines           ok")
}

func TestPruneUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no age":         {[]string{"--archive", "x.jsonl"}, `--older-than is ""`},
		"no unit":        {[]string{"--older-than", "90", "--archive", "x.jsonl"}, `--older-than is "90"`},
		"nothing":        {[]string{"--older-than", "0d", "--archive", "x.jsonl"}, `--older-than is "0d"`},
		"the future":     {[]string{"--older-than", "-1d", "--archive", "x.jsonl"}, `--older-than is "-1d"`},
		"all of history": {[]string{"--older-than", "99999d", "--archive", "x.jsonl"}, `--older-than is "99999d"`},
		"nowhere to go": {[]string{"--older-than", "90d"},
			"name the archive for removed calls with --archive or GEM_ARCHIVE, or do not keep them with --no-archive"},
		"a contradiction": {[]string{"--older-than", "90d", "--archive", "x.jsonl", "--no-archive"}, "contradict each other"},
		"no suffix":       {[]string{"--older-than", "90d", "--archive", "my-calls"}, "the archive must be s3://BUCKET/PREFIX, or a"},
		"another scheme":  {[]string{"--older-than", "90d", "--archive", "gs://calls/x"}, "the archive must be s3://BUCKET/PREFIX"},
		"no batch":        {[]string{"--older-than", "90d", "--archive", "x.jsonl", "--batch", "0"}, "--batch is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := inProcess(t.Context(), append([]string{"prune"}, c.args...)...)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, c.want)
		})
	}
}

func TestAges(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90d": 90 * day, "12h": 12 * time.Hour, "1d12h": 36 * time.Hour, "2w": 14 * day,
		"1w1d1h1m1s": 8*day + time.Hour + time.Minute + time.Second, "30m": 30 * time.Minute,
	} {
		if got, err := age("--older-than", "a call ended", text); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestPruneLeavesAFileAloneThatIsNoArchive(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	path := filepath.Join(t.TempDir(), "letter.jsonl")
	if err := os.WriteFile(path, []byte("Dear Jo,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "prune", "--older-than", "1d", "--archive", path)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "letter.jsonl", "is not an archive of pruned calls")
}
