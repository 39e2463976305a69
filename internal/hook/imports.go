package hook

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxImports limits the bytes of a file that are read for its imports, which are at the top.
const maxImports = 64 << 10

// importLine matches import lines of Go, JavaScript, TypeScript, Python and Rust.
var importLine = regexp.MustCompile(`(?m)^\s*(?:import\b|from\b|export\b.*\bfrom\b|.*\brequire\(|(?:pub )?use\b|(?:pub )?mod\b|\}\s*from\b|(?:[\w.]+ )?"[^"]+"\s*$).*$`)

var importName = regexp.MustCompile(`[\w-]+`)

// importsOf returns the words in the import lines of a file. They include the names of its dependencies.
func importsOf(path string) (names []string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	data, _ := io.ReadAll(io.LimitReader(file, maxImports)) // as much as can be read
	seen := map[string]bool{}
	for _, line := range importLine.FindAllString(string(data), 1000) {
		for _, name := range importName.FindAllString(line, 50) {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// dependsOn reports whether a file imports one of the others. It compares names: the name of the other file, or of its
// folder. Go files of the same folder depend on each other.
func dependsOn(t target, others []string) bool {
	for _, path := range others {
		dir, base := filepath.Split(path)
		stem := strings.TrimSuffix(base, filepath.Ext(base))
		folder := filepath.Base(dir)
		isGo := filepath.Ext(path) == ".go"
		if isGo && filepath.Ext(t.path) == ".go" && filepath.Dir(t.path) == filepath.Clean(dir) {
			return true
		}
		for _, name := range t.imports {
			if name == stem && !isGo || name == folder && (isGo || stem == "index" || stem == "mod" || stem == "__init__") {
				return true
			}
		}
	}
	return false
}
