package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
)

// envFile has variables for gem dev and the services that it calls, in the working directory.
const envFile = ".env"

// ofDatabases are the variables that gem dev ignores in the file.
var ofDatabases = []string{"DATABASE_URL", "DIRECT_URL", "DATABASE_POOLER"}

var envLine = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)$`)

// readEnvFile sets the variables of .env that are not set, except those of databases, since gem dev has one of its
// own. It prints their names. A value may be in quotes, in which nothing has a special meaning.
func readEnvFile(progress io.Writer) error {
	text, err := os.ReadFile(envFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var names []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		found := envLine.FindStringSubmatch(line)
		if found == nil {
			return usage("%s: line %d is not NAME=value: correct it, or begin it with #", envFile, number)
		}
		name, value := found[1], unquoted(found[2])
		if _, set := os.LookupEnv(name); set || slices.Contains(ofDatabases, name) {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return usage("%s: line %d: %w", envFile, number, err)
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		fmt.Fprintf(progress, "read from %s: %s\n", envFile, strings.Join(names, ", "))
	}
	return nil
}

// unquoted returns a value without its quotes, or without the comment after it.
func unquoted(value string) string {
	if value != "" && (value[0] == '\'' || value[0] == '"') {
		inner, rest, closed := strings.Cut(value[1:], value[:1])
		if rest = strings.TrimSpace(rest); closed && (rest == "" || rest[0] == '#') {
			return inner
		}
	}
	value, _, _ = strings.Cut(value, " #")
	return strings.TrimSpace(value)
}
