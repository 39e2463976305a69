package migrations_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// unqualifiedNames are allowed, by file: queries of a WITH clause that hide a table, and examples for the private
// Postgres of gem dev.
var unqualifiedNames = map[string][]string{
	"handlers/os/state.go":           {"leads", "interactions", "comms_log", "tasks", "reminders", "notes"},
	"handlers/os/audit.go":           {"calls"},
	"client/view/overview.go":        {"workers", "queue"},
	"migrations/functions/rules.sql": {"journal"},
	"migrations/functions/waits.sql": {"journal"},
	"internal/cli/dev.go":            {"core_tool_receipts"},
	"internal/cli/sample.go":         {"core_tool_calls"},
	"internal/cli/registryexport.go": {"list_tools"},
}

// SQL that names a table without its schema uses someone else's table if that comes first in the search path.
func TestTheProgramsSQLNamesTheSchemasOfGEMsTables(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, all()...))
	tables := testdb.Value[string](t, db, "select string_agg(relname, '|') from pg_class where relnamespace in "+
		"('public'::regnamespace, 'gem'::regnamespace) and relkind in ('r', 'p', 'v')")
	functions := testdb.Value[string](t, db,
		"select string_agg(distinct proname, '|') from pg_proc where pronamespace in "+
			"('public'::regnamespace, 'gem'::regnamespace) and proname ~ '_'")
	unqualified := regexp.MustCompile(`\b(?:from|join|into|update|only|lateral|on table|truncate|references)\s+(` +
		tables + `)\b(?:[^.]|$)|` +
		`\bto_reg\w+\('(` + tables + `)|(?:^|[\s(,])(` + functions + `)\(`)
	isSQL := regexp.MustCompile(`\b(?:select|insert into|update|delete from|with|grant|create)\s`)
	looked := 0
	look := func(path, text string) {
		if !isSQL.MatchString(text) {
			return
		}
		looked++
		for _, m := range unqualified.FindAllStringSubmatch(text, -1) {
			if name := m[1] + m[2] + m[3]; !slices.Contains(unqualifiedNames[path], name) {
				t.Errorf("%s: %q has no schema in %q", path, name, strings.TrimSpace(m[0]))
			}
		}
	}
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			// bench and internal/testing/chaos have private servers; the scripts of examples are for people.
			if slices.Contains([]string{"bench", "internal/testing/chaos", "docs", "examples", "deploy"}, path) ||
				e.Name() == "node_modules" || e.Name() == "testdata" {
				return fs.SkipDir
			}
		case strings.HasSuffix(path, ".sql"):
			text, err := os.ReadFile(filepath.Join("..", path))
			if err != nil {
				return err
			}
			look(path, regexp.MustCompile(`--.*`).ReplaceAllString(string(text), ""))
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path), nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					look(path, text)
				}
				return true
			})
		}
		return nil
	})
	if err != nil || looked < 300 {
		t.Errorf("%d texts of SQL, %v", looked, err)
	}
}
