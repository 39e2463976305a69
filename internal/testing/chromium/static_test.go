package chromium

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheFilesOfOthersAreThoseOfTheirPackages(t *testing.T) {
	t.Parallel()
	theBrowser(t) // ensures that the npm packages are installed
	list, err := os.ReadFile("../../../dashboard/static/LIST")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] == "#" {
			continue
		}
		ours, err := os.ReadFile(filepath.Join("..", "..", "..", "dashboard", "static", words[0]))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(words[0], ".gz") {
			unpacked, err := gzip.NewReader(bytes.NewReader(ours))
			if err != nil {
				t.Fatal(err)
			}
			if ours, err = io.ReadAll(unpacked); err != nil {
				t.Fatal(err)
			}
		}
		name, version, _ := strings.Cut(words[1], "@")
		theirs, err := os.ReadFile(filepath.Join("node_modules", name, filepath.FromSlash(words[2])))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ours, theirs) {
			t.Errorf("%s is not the %s of %s", words[0], words[2], words[1])
		}
		about, err := os.ReadFile(filepath.Join("node_modules", name, "package.json"))
		if err != nil || !bytes.Contains(about, []byte(`"version": "`+version+`"`)) {
			t.Errorf("%s is not of the version %s: npm ci --prefix internal/testing/chromium (%v)", name, version, err)
		}
		compared++
	}
	if compared < 2 {
		t.Errorf("%d files were compared", compared)
	}
}
