//go:build !windows

package plainfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/plainfile"
)

func TestAFileIsCreatedWithItsModeAndOpenedAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"one, long", "two"} {
		if err := plainfile.Write(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("the file has %q (%v), want %q", got, err, text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the mode is %v (%v)", info.Mode(), err)
	}
}

func TestALinkAPipeAndADeviceAreRefusedAndUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("target"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Symlink(at("target"), at("link")), os.Symlink(at("nothing"), at("dangling")),
		os.Symlink("/dev/null", at("device")),
		syscall.Mkfifo(at("pipe"), 0o600), os.Mkdir(at("folder"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, why := range map[string]string{
		at("link"): "symbolic link", at("dangling"): "symbolic link", at("device"): "symbolic link",
		at("pipe"):   "not a regular file",
		at("folder"): "is a folder", "/dev/null": "not a regular file",
	} {
		for _, flag := range []int{os.O_WRONLY | os.O_CREATE | os.O_TRUNC, os.O_RDWR | os.O_CREATE | os.O_APPEND} {
			f, err := plainfile.Open(name, flag, 0o600)
			if err == nil {
				_ = f.Close()
			}
			if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: got %v, want a refusal: %s", name, err, why)
			}
		}
	}
	if _, err := os.Lstat(at("nothing")); err == nil {
		t.Error("a file was created behind a dangling link")
	}
	if got, err := os.ReadFile(at("target")); err != nil || string(got) != "kept" {
		t.Errorf("the target of the link has %q (%v)", got, err)
	}
}

// A folder may be reached through a link: only the file itself must not be one.
func TestALinkedFolderIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "here")); err != nil {
		t.Fatal(err)
	}
	if err := plainfile.Write(filepath.Join(dir, "here", "file"), []byte("text"), 0o600); err != nil {
		t.Error(err)
	}
}

func TestOnlyARegularFileOfABoundedSizeIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("file"), []byte("text"), 0o600), os.WriteFile(at("big"), nil, 0o600),
		os.Truncate(at("big"), plainfile.Most+1), os.WriteFile(at("most"), nil, 0o600),
		os.Truncate(at("most"), plainfile.Most), os.Symlink("file", at("link")), os.Symlink("/dev/zero", at("device")),
		syscall.Mkfifo(at("pipe"), 0o600), os.Symlink("pipe", at("link to a pipe")), os.Mkdir(at("folder"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range map[string]int{"file": 4, "link": 4, "most": plainfile.Most} {
		if text, err := plainfile.Read(at(name)); err != nil || len(text) != size {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	for name, why := range map[string]string{
		"device": "not a regular file", "pipe": "not a regular file", "link to a pipe": "not a regular file",
		"folder": "is a folder", "big": "more than 16 MB",
	} {
		_, err := plainfile.Read(at(name))
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), at(name)) {
			t.Errorf("%s: got %v, want a refusal: %s", name, err, why)
		}
	}
	if _, err := plainfile.Read(at("nothing")); !os.IsNotExist(err) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

// Every file that a folder may hold is read with a bound: a link to /dev/zero would take all memory, and a pipe would
// block the program. What is read otherwise is not a file of a folder.
func TestNoFileIsReadWithoutABound(t *testing.T) {
	t.Parallel()
	others := []string{
		"bench/", "scripts/", "internal/testing/", "internal/plainfile/",
		"internal/archive/file.go", // a folder
		"internal/hook/imports.go", // which has a bound
		"handlers/handlertest/",    // tests
		"internal/cli/init.go",     // creates files
	}
	root := filepath.Join("..", "..")
	reads := regexp.MustCompile(`\bos\.(ReadFile|Open|OpenFile)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(name, other) }) {
			return nil
		}
		text, err := os.ReadFile(path)
		if found := reads.Find(text); found != nil {
			t.Errorf("%s has %s…): use plainfile.Read", name, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
