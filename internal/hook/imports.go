package hook

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxImports is how much of a file is read for its imports, which are at its top.
const maxImports = 64 << 10

// importLine finds the lines of Go, JavaScript, TypeScript, Python and Rust that import something.
var importLine = regexp.MustCompile(`(?m)^\s*(?:import\b|from\b|export\b.*\bfrom\b|.*\brequire\(|(?:pub )?use\b|(?:pub )?mod\b|\}\s*from\b|(?:[\w.]+ )?"[^"]+"\s*$).*$`)

var importName = regexp.MustCompile(`[\w-]+`)

// importsOf returns the words that the imports of a file consist of: the names of what it depends on are among them.
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
	data, _ := io.ReadAll(io.LimitReader(file, maxImports)) // what can be read of it
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

// dependsOn reports whether a file imports one of the others, as far as names tell: that one's name, or its folder's.
// Go files of one folder depend on each other.
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
