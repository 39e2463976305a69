package cli

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/fakestore"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// oldCalls makes a database with n calls that ended at least a second ago.
func oldCalls(t *testing.T, n int) (s scene, env []string) {
	t.Helper()
	url := newDatabase(t)
	s = scene{t, testdb.Pool(t, url)}
	s.worker("w-1", 4)
	for range n {
		id := s.insert()
		s.claim("w-1")
		s.finish(id, "w-1", "succeeded", `{"lead_id": "L-1"}`)
	}
	for testdb.Value[bool](t, s.db,
		"select max(created_at) > clock_timestamp() - interval '1 second' from core_tool_receipts") {
		time.Sleep(50 * time.Millisecond)
	}
	return s, []string{"DATABASE_URL=" + url}
}

func (s scene) calls() int {
	s.Helper()
	return testdb.Value[int](s.T, s.db, "select count(*)::int from core_tool_calls")
}

func TestPruneArchivesInABucket(t *testing.T) {
	t.Parallel()
	s, env := oldCalls(t, 5)
	store := fakestore.New(t)
	env = append(env, store.Env()...)
	env = append(env, "GEM_ARCHIVE=s3://calls/of/gem")

	none := gemWith(t, env, "audit", "--archive", "s3://calls/of/gem")
	none.wantCode(t, exitFailed)
	wants(t, none.stderr, "s3://calls/of/gem has no archive")

	got := gemWith(t, env, "prune", "--older-than", "1s", "--batch", "2")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "5 calls removed")
	if n := s.calls(); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	objects := store.Objects()
	names := slices.Sorted(maps.Keys(objects))
	form := regexp.MustCompile(`^/calls/of/gem/20\d\d/\d\d/\d\d/\d{6}Z-[0-9a-f]{16}-00000[1-3]\.jsonl\.gz$`)
	lines := 0
	for _, name := range names {
		if !form.MatchString(name) {
			t.Errorf("an object is called %s", name)
		}
		zip, err := gzip.NewReader(bytes.NewReader(objects[name]))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(zip)
		if err != nil || !strings.HasPrefix(string(text), `{"call": {"id": "`) {
			t.Errorf("%s has %s, %v", name, text, err)
		}
		lines += strings.Count(string(text), "\n")
	}
	if len(names) != 3 || lines != 5 {
		t.Errorf("%d lines in %q", lines, names)
	}

	store.Set("/calls/of/gem/README.txt", []byte("Dear Jo"))
	audited := gemWith(t, env, "audit", "--archive", "s3://calls/of/gem")
	audited.wantCode(t, exitDone)
	wants(t, audited.stdout, "archive-line                5 lines           ok", "journal-replay              5 calls")

	half := objects[names[0]]
	store.Set(names[0], append(half[:len(half)-8:len(half)-8], 1, 2, 3, 4, 5, 6, 7, 8))
	audited = gemWith(t, env, "audit", "--archive", "s3://calls/of/gem")
	audited.wantCode(t, exitFailed)
	wants(t, audited.stdout, "archive-line", "s3:/"+names[0]+":", "cannot be read from here on")
}

func TestNothingIsRemovedWithoutAnAnswerFromTheStore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail func(w http.ResponseWriter, r *http.Request, serve func()) bool
		want string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request, _ func()) bool {
			fakestore.Refuse(w, http.StatusForbidden, "AccessDenied")
			return true
		}, "the store answered 403 Forbidden (AccessDenied)"},
		"busy": {func(w http.ResponseWriter, _ *http.Request, _ func()) bool {
			fakestore.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
			return true
		}, "the store answered 503 Service Unavailable (SlowDown)"},
		"cut": {func(_ http.ResponseWriter, r *http.Request, _ func()) bool {
			_, _ = io.CopyN(io.Discard, r.Body, 10)
			panic(http.ErrAbortHandler)
		}, "write the archive: put s3://calls/20"},
		"lost answers": {func(_ http.ResponseWriter, _ *http.Request, serve func()) bool {
			serve()
			panic(http.ErrAbortHandler)
		}, "write the archive: put s3://calls/20"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, env := oldCalls(t, 1)
			store := fakestore.New(t)
			env = append(env, store.Env()...)
			store.Fail(func(w http.ResponseWriter, r *http.Request, serve func()) bool {
				if name == "lost answers" {
					return c.fail(w, r, func() { store.Serve(httptest.NewRecorder(), r) })
				}
				return c.fail(w, r, serve)
			})
			got := gemWith(t, env, "prune", "--older-than", "1s", "--archive", "s3://calls")
			got.wantCode(t, exitFailed)
			wants(t, got.stderr, "put s3://calls/20", c.want)
			if strings.Contains(got.stderr, fakestore.Secret) || s.calls() != 1 {
				t.Errorf("%d calls are left: %s", s.calls(), got.stderr)
			}

			store.Fail(nil)
			got = gemWith(t, env, "prune", "--older-than", "1s", "--archive", "s3://calls")
			got.wantCode(t, exitDone)
			if s.calls() != 0 {
				t.Error("the call is still there")
			}
			audited := gemWith(t, env, "audit", "--archive", "s3://calls")
			audited.wantCode(t, exitDone)
			wants(t, audited.stdout, "1 calls           ok") // even if the archive has its line twice
		})
	}
}

func TestWithoutAnAccessKeyNothingIsPruned(t *testing.T) {
	t.Parallel()
	s, env := oldCalls(t, 1)
	got := gemWith(t, append(env, "AWS_PROFILE=mine"), "prune", "--older-than", "1s", "--archive", "s3://calls")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, since profiles")
	got = gemWith(t, env, "prune", "--older-than", "1s", "--archive", "s3://Calls")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "s3://BUCKET/PREFIX")
	got = gemWith(t, env, "prune", "--older-than", "1s", "--dry-run", "--archive", "s3://calls")
	got.wantCode(t, exitDone)
	if s.calls() != 1 {
		t.Error("the call is gone")
	}
}

func TestPruneRefusesTimesThatAreTooShort(t *testing.T) {
	t.Parallel()
	s, env := oldCalls(t, 1)
	testdb.Exec(t, s.db, `insert into core_rules_versions (version, sha256, rules, longest, recorded_at)
		values ('7', repeat('0', 64), '{}', '2 hours', now())`)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"too young": {[]string{"--older-than", "1s"}, "--older-than is shorter than 2h0m0s, the time that the rules of " +
			"version 7 look back"},
		"shorter": {[]string{"--older-than", "3h", "--keep-keys", "2h"}, "--keep-keys is 2h, and must be longer than " +
			"--older-than, 3h"},
		"no time": {[]string{"--older-than", "3h", "--keep-keys", "x"}, `--keep-keys is "x"`},
	} {
		got := gemWith(t, env, append([]string{"prune", "--no-archive"}, c.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%s: %d %s", name, got.code, got.stderr)
		}
	}
	got := gemWith(t, env, "prune", "--no-archive", "--older-than", "3h", "--keep-keys", "1d")
	got.wantCode(t, exitDone)
}

func TestPruneCompressesAFile(t *testing.T) {
	t.Parallel()
	s, env := oldCalls(t, 3)
	path := filepath.Join(t.TempDir(), "calls.jsonl.gz")
	gemWith(t, env, "prune", "--older-than", "1s", "--archive", path, "--batch", "2").wantCode(t, exitDone)
	if s.calls() != 0 {
		t.Error("calls are left")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(zip); err != nil || strings.Count(string(text), "\n") != 3 {
		t.Errorf("%v %s", err, text)
	}
	audited := gemWith(t, env, "audit", "--archive", path)
	audited.wantCode(t, exitDone)
	wants(t, audited.stdout, "archive-line                3 lines           ok")
}
