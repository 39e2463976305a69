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

	"github.com/gemworker/gem/internal/plainfile"
)

// envFile is the file in the working directory with variables for gem dev and the services that it calls.
const envFile = ".env"

// ofDatabases are the variables of the file that gem dev ignores.
var ofDatabases = []string{"DATABASE_URL", "DIRECT_URL", "DATABASE_POOLER", "READ_DATABASE_URL"}

// ofPrograms are the variables that gem dev ignores in the file, since with them a folder could run code at the start:
// they make this program, or one that it starts, load code or find programs and settings elsewhere.
var ofPrograms = regexp.MustCompile(`(?i)^(?:(?:LD|DYLD|BASH|XDG|MALLOC|GLIBC|NPM_CONFIG|CLR|COR|COMPLUS|DOTNET)_.*|` +
	`(?:PG|PYTHON|RUBY|PERL5|OPENSSL_).*|GO[A-Z0-9]+|NODE_(?:OPTIONS|PATH|EXTRA_CA_CERTS)|GIT_(?:SSH|EXEC|CONFIG).*|SSH_ASKPASS|` +
	`PATH|HOME|SHELL|ENV|IFS|CDPATH|TMPDIR|TZDIR|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|BROWSER|EDITOR|VISUAL|PAGER|` +
	`CLASSPATH|JAVA_HOME|_?JAVA_(?:TOOL_)?OPTIONS|JDK_JAVA_OPTIONS|GEM_POSTGRES_BIN)$`)

var envLine = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)$`)

// readEnvFile sets the variables of .env that are not set, except those of databases, since gem dev has one of its
// own, and of programs. It prints their names. A value may be in quotes, in which nothing has a special meaning.
func readEnvFile(progress io.Writer) error {
	text, err := plainfile.Read(envFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var names, ignored []string
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
		if ofPrograms.MatchString(name) && !strings.HasPrefix(strings.ToUpper(name), "GOOGLE") {
			ignored = append(ignored, name)
			continue
		}
		if _, set := os.LookupEnv(name); set || slices.Contains(ofDatabases, name) {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return usage("%s: line %d: %w", envFile, number, err)
		}
		names = append(names, name)
	}
	if len(ignored) > 0 {
		fmt.Fprintf(progress, "warning: ignored in %s: %s. With these variables the folder could run programs of its own: "+
			"if you need them, set them in your shell\n", envFile, strings.Join(ignored, ", "))
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
