package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines of Go are checked by the linter lll.
func TestLinesOfMarkdownAndSQLHaveAtMost120Columns(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir(fromRoot(t, "."), func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "node_modules" || name == "testdata" || name == "dist"):
			return fs.SkipDir
		case filepath.Ext(name) != ".md" && filepath.Ext(name) != ".sql":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		inCode, markdown := false, filepath.Ext(path) == ".md"
		for i, line := range strings.Split(string(text), "\n") {
			if markdown && strings.HasPrefix(strings.TrimSpace(line), "```") {
				inCode = !inCode
			}
			// Tables, links and code may be longer.
			free := markdown && (inCode || strings.HasPrefix(strings.TrimSpace(line), "|") || strings.ContainsAny(line, "`[<"))
			if n := utf8.RuneCountInString(line); n > 120 && !free {
				t.Errorf("%s:%d has %d columns", path, i+1, n)
			}
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatal(files, err)
	}
}
