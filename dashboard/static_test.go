package dashboard

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path"
	"strings"
	"testing"
)

// Third-party files are unchanged, and NOTICE names them.
func TestFilesOfOthersAreThoseOfTheList(t *testing.T) {
	t.Parallel()
	list, err := staticFiles.Open("static/LIST")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	listed := map[string]bool{}
	for lines := bufio.NewScanner(list); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if strings.HasPrefix(lines.Text(), "#") || len(fields) == 0 {
			continue
		}
		if len(fields) != 5 {
			t.Fatalf("%q has %d fields", lines.Text(), len(fields))
		}
		body, err := readStatic(fields[0])
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != fields[4] {
			t.Errorf("%s is not the file of %s", fields[0], fields[1])
		}
		listed[fields[0]] = true
	}
	files, err := fs.Glob(staticFiles, "static/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := path.Base(f)
		if strings.Contains(name, ".min.") != listed[name] {
			t.Errorf("%s: in the list %v", name, listed[name])
		}
	}
}
