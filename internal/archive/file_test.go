package archive_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/testing/testdb"
)

const (
	first  = `{"call": {"id": "1"}, "gem_archive": 1}`
	second = `{"call": {"id": "2"}, "gem_archive": 1}`
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestAnArchiveGrows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	for _, line := range []string{first, second} {
		a, err := archive.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Add(t.Context(), line); err != nil {
			t.Fatal(err)
		}
		if err := a.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path); got != first+"\n"+second+"\n" {
		t.Errorf("got %s", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v: others may read it", info.Mode(), err)
	}
}

func TestWhatWasNotSyncedIsNotHalfThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	a, err := archive.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	line := strings.Replace(first, "1", strings.Repeat("1", 1000), 1)
	for range 3000 {
		if err := a.Add(t.Context(), line); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path); len(got) == 0 || len(got)%(len(line)+1) != 0 {
		t.Errorf("%d bytes of lines of %d", len(got), len(line)+1)
	}
}

// Otherwise prune would remove calls whose lines are nowhere.
func TestAnArchiveThatIsDeletedOrReplacedMeanwhileIsNotSafe(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(path string) error{
		"deleted": os.Remove,
		"moved":   func(path string) error { return os.Rename(path, path+".1") },
		"replaced": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte(first+"\n"), 0o600))
		},
		"behind a link": func(path string) error {
			return errors.Join(os.Rename(path, path+".1"), os.Symlink(path+".1", path))
		},
	} {
		path := filepath.Join(t.TempDir(), "calls.jsonl")
		a, err := archive.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Add(t.Context(), first), a.Sync(t.Context()), change(path),
			a.Add(t.Context(), second)); err != nil {
			t.Fatal(err)
		}
		if err := a.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "prune again") {
			t.Errorf("%s: %v", name, err)
		}
		_ = a.Close()
	}
}

// opened writes a file, opens it as an archive, and checks what it then contains. It returns nil if that fails.
func opened(t *testing.T, name, path, before, after string) *archive.File {
	t.Helper()
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := archive.Open(path)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	if got := read(t, path); got != after {
		t.Errorf("%s: got %q, want %q", name, got, after)
	}
	return a
}

func TestTheRestOfALineIsCutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after string }{
		"after lines":     {first + "\n" + second + "\n" + second[:20], first + "\n" + second + "\n"},
		"a long one":      {first + "\n" + first + strings.Repeat(" ", 200_000), first + "\n"},
		"nothing else":    {first[:20], ""},
		"no rest":         {first + "\n", first + "\n"},
		"an empty file":   {"", ""},
		"only line break": {first + "\n" + second, first + "\n"},
	} {
		path := filepath.Join(t.TempDir(), "calls.jsonl")
		a := opened(t, name, path, c.before, c.after)
		if a == nil {
			continue
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A second run would take the line that the first one is writing for the rest of an interrupted run, and cut it off.
func TestOneRunAtATimeWritesAnArchive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	a, err := archive.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Add(t.Context(), first), a.Sync(t.Context())); err != nil {
		t.Fatal(err)
	}
	written := first + "\n" + second[:20]
	if err := os.WriteFile(path, []byte(written), 0o600); err != nil { // as the first run may leave it between two writes
		t.Fatal(err)
	}
	another, err := archive.Open(path)
	if err == nil {
		_ = another.Close()
	}
	if err == nil || !strings.Contains(err.Error(), path+": another gem prune writes to the file") {
		t.Errorf("a second run got %v", err)
	}
	if got := read(t, path); got != written {
		t.Errorf("a second run changed the file to %q", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if another, err = archive.Open(path); err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	if got := read(t, path); got != first+"\n" {
		t.Errorf("a run after the first one left %q", got)
	}
}

func TestAFileThatIsNoArchiveIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"a text":           "Dear Jo,\nplease",
		"other JSON":       "{\"a\": 1}\n",
		"a line of text":   "Dear Jo",
		"another call":     `{"call": "my only copy of something else"}`,
		"another document": `{"call": {"id": "1"}, "text": "my only copy"`,
		"another object":   `{"call": {"id": "1"}}`,
		"a text behind":    first + " and my notes",
		"another line":     first + "\n" + "{\"mine\": 1}\n" + second[:20],
		"notes at the end": first + "\nmy notes",
		"a later version":  first + "\n" + strings.Replace(first, "1}", "2}", 1) + "\n" + second[:20],
		"a later GEM's":    `{"call": {"id": "1"}, "gem_archive": 2}` + "\n",
	} {
		path := filepath.Join(t.TempDir(), "calls.jsonl")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
		if got := read(t, path); got != content {
			t.Errorf("%s: it was changed to %q", name, got)
		}
	}
	if _, err := archive.Open(os.DevNull); err == nil {
		t.Errorf("%s keeps nothing", os.DevNull)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestAnArchiveThatOthersMayReadIsClosedToThem(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such rights")
	}
	for before, after := range map[os.FileMode]os.FileMode{0o644: 0o600, 0o666: 0o600, 0o777: 0o700, 0o640: 0o600,
		0o620: 0o600, 0o600: 0o600} {
		for what, lines := range map[string]string{"empty": "", "with lines": first + "\n",
			"cut off": first + "\n" + second[:20]} {
			path := filepath.Join(t.TempDir(), "calls.jsonl")
			if err := errors.Join(os.WriteFile(path, []byte(lines), 0o600), os.Chmod(path, before)); err != nil {
				t.Fatal(err)
			}
			a, err := archive.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != after {
				t.Errorf("%v, %s: %v after it was opened, want %v (%v)", before, what, info.Mode().Perm(), after, err)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "letter.txt")
	if err := errors.Join(os.WriteFile(path, []byte("Dear Ada,\n"), 0o600), os.Chmod(path, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(path); err == nil {
		t.Error("a letter is no archive")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("a file that is not an archive has the rights %v (%v)", info.Mode(), err)
	}
}

func TestAnArchiveOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	if err := os.WriteFile(path, []byte(first+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, -1); err != nil {
		t.Skipf("only root can give a file away: %v", err)
	}
	if _, err := archive.Open(path); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("got %v", err)
	}
}

// A link in a folder that others can write to must not decide where calls are stored, or whose file is read and closed
// to others.
func TestAnArchiveBehindALinkOrAPipeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "calls.jsonl")
	if err := errors.Join(os.WriteFile(target, []byte(first+"\n"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nothing"), dangling); err != nil {
		t.Fatal(err)
	}
	for path, why := range map[string]string{link: "symbolic link", dangling: "symbolic link",
		os.DevNull: "not a regular file", dir: "folder"} {
		file, err := archive.Open(path)
		if err == nil {
			_ = file.Close()
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want %s", path, err, why)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a file was created behind a dangling link")
	}
}

// member returns lines as a member of a compressed archive.
func member(lines ...string) string {
	var packed bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&packed, 5)
	_, _ = zip.Write([]byte(strings.Join(lines, "\n") + "\n"))
	_ = zip.Close()
	return packed.String()
}

func TestTheRestOfACompressedBatchIsCutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after string }{
		"nothing":              {"", ""},
		"whole":                {member(first) + member(second), member(first) + member(second)},
		"a byte":               {member(first) + member(second)[:1], member(first)},
		"half":                 {member(first) + member(second)[:30], member(first)},
		"without its checksum": {member(first) + member(first, second)[:len(member(first, second))-3], member(first)},
		"nothing else":         {member(first)[:12], ""},
	} {
		path := filepath.Join(t.TempDir(), "calls.jsonl.gz")
		a := opened(t, name, path, c.before, c.after)
		if a == nil {
			continue
		}
		if err := errors.Join(a.Add(t.Context(), second), a.Sync(t.Context()), a.Sync(t.Context()), a.Close()); err != nil {
			t.Error(err)
		}
		if got := read(t, path); got != c.after+member(second) {
			t.Errorf("%s: %q was added", name, strings.TrimPrefix(got, c.after))
		}
	}
}

func TestACompressedFileThatIsNotAnArchiveIsLeftAlone(t *testing.T) {
	t.Parallel()
	damaged := []byte(member(first) + member(second))
	damaged[len(damaged)-6]++
	for name, content := range map[string]string{
		"a text":              "Dear Jo,\nplease",
		"a letter":            "D",
		"a compressed text":   member("Dear Jo,"),
		"another tool's":      "\x1f\x8b\x08\x08\x00\x00\x00",
		"half a text":         member(strings.Repeat("Dear Jo, ", 100))[:40],
		"a text after it":     member(first) + "my notes",
		"an archive, not .gz": first + "\n",
		"a damaged member":    string(damaged),
	} {
		path := filepath.Join(t.TempDir(), "calls.jsonl.gz")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
		if got := read(t, path); got != content {
			t.Errorf("%s: it was changed to %q", name, got)
		}
	}
}
