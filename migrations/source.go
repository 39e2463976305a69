package migrations

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers/binding"
)

// Source is a set of SQL files with one owner, such as a domain or a program. Each file is applied once.
type Source struct {
	// Name is the name under which the files are recorded: lower-case letters, digits and _. The names core and functions
	// are GEM's.
	Name string
	// Files has NNNNN_name.sql at its top: plain SQL, each run as one transaction, in the order of their numbers. Do not
	// change a file that was applied; add the next one. The file grants.sql, if it exists, grants rights to roles: it is
	// applied with the Grants. Files that are not SQL are ignored.
	Files fs.FS
	// Grants are the rights of handlers on the tables, as in "select, insert, update on notes". The role gem_worker gets
	// them, and a policy that admits it to all rows, whenever a file of this source is applied.
	Grants []string
}

// The names of GEM's own sources, and that of a program.
const (
	core          = "core"
	functions     = "functions"
	apiSource     = "api"
	programSource = "program"
)

// The names under which the additions to objects of others are recorded, or their absence.
const (
	withAPI = "api.sql"
	noAPI   = "no_api"
)

// functionsNumber increases with every change of the files in functions/; a test compares it with their hash.
const functionsNumber = 1

// functionFiles are applied in this order: the rights and the states first, because the others use them.
var functionFiles = []string{"create_roles.sql", "roles.sql", "refuse.sql", "earlier.sql", "states.sql", "steps.sql",
	"waits.sql", "answers.sql", "places.sql", "rules.sql", "admit.sql", "guards.sql", "servers.sql", "workers.sql",
	"rules_versions.sql", "llm.sql", "progress.sql", "hook.sql", "tools.sql", "exchanges.sql", "operate.sql", "cron.sql",
	"schedules.sql", "user_schedules.sql", "notices.sql", "frontends.sql", "prune.sql", "watch.sql",
	"watch_calls.sql"}

//go:embed tables/*.sql functions/*.sql
var embedded embed.FS

// CreateRoles is the SQL that creates GEM's roles, unless they exist. The migrations contain it, and need it first only
// if their own role may not create roles.
//
//go:embed functions/create_roles.sql
var CreateRoles string

//go:embed api.sql
var apiSQL string

// file is a step of a migration: one transaction.
type file struct {
	source  string
	version int
	name    string
	sql     string
}

func (f file) sha256() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(f.sql))) }

func (f file) String() string { return f.source + "/" + f.name }

// repeats reports whether the file may be applied again.
func (f file) repeats() bool { return f.source == functions || f.version == grantsVersion }

// objects returns the objects that the file creates. Other SQL creates the schemas of the ledger and of the functions.
func (f file) objects() []object { return objectsOf(f.sql) }

// record returns the statement that writes the file's row in the ledger.
func (f file) record() string {
	keys := []string{}
	for _, o := range f.objects() {
		if o.Schema == "" && o.Kind != "schema" {
			keys = append(keys, literal(o.Kind+" ")+" || current_setting('gem.schema') || "+literal("."+o.Name))
		} else {
			keys = append(keys, literal(o.key()))
		}
	}
	return fmt.Sprintf(record, f.source, f.version, f.name, f.sha256(), "array["+strings.Join(keys, ", ")+"]::text[]")
}

// only returns the file of the additions to objects of others, or the empty file that replaces it.
func (f file) only(api bool) file {
	if !api {
		f.name, f.sql = noAPI, "-- Nothing is added to objects that are not GEM's: --no-api."
	}
	return f
}

// plan returns all files that a database needs, in order: GEM's tables, its functions, then the other sources.
func plan(sources []Source) ([]file, error) {
	tables, err := fs.Sub(embedded, "tables")
	if err != nil {
		return nil, err
	}
	whole, err := allFunctions()
	if err != nil {
		return nil, err
	}
	additions := file{source: apiSource, version: grantsVersion, name: withAPI, sql: apiSQL}
	var all []file
	named := map[string]bool{functions: true, apiSource: true}
	for _, s := range append([]Source{{Name: core, Files: tables}}, sources...) {
		if !sourceName.MatchString(s.Name) || named[s.Name] {
			return nil, fmt.Errorf("the name %q of a set of migrations is taken, or is not made of a to z, 0 to 9 and _", s.Name)
		}
		named[s.Name] = true
		of, err := s.files()
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
		if s.Name == core {
			all = append(all, whole, additions)
		}
	}
	return all, nil
}

var (
	sourceName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
	fromStdin  = regexp.MustCompile(`(?is)\bcopy\b[^;]*\bfrom\s+stdin\b`)
	fileName   = regexp.MustCompile(`^[0-9]{5}_[a-z0-9_]+\.sql$`)
	// grant matches a list of privileges and a table, because the text becomes part of a statement.
	grant = regexp.MustCompile(
		`^((?:select|insert|update|delete)(?:, ?(?:select|insert|update|delete))*) ` +
			`on ((?:[a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*)$`)
)

// files returns the files of a source, in order.
func (s Source) files() ([]file, error) {
	var entries []fs.DirEntry
	var err error
	if s.Files != nil {
		entries, err = fs.ReadDir(s.Files, ".") // sorted by name, and therefore by number
	}
	if err != nil {
		return nil, fmt.Errorf("read the migrations %s: %w", s.Name, err)
	}
	var all []file
	last, rights := file{version: grantsVersion}, ""
	for _, e := range entries {
		if path.Ext(e.Name()) != ".sql" {
			continue
		}
		number, _, _ := strings.Cut(e.Name(), "_")
		version, _ := strconv.Atoi(number)
		sql, err := fs.ReadFile(s.Files, e.Name())
		if e.Name() == grantsFile && err == nil {
			rights = string(sql)
			continue
		}
		f := file{source: s.Name, version: version, name: e.Name(), sql: string(sql)}
		switch {
		case !fileName.MatchString(f.name):
			return nil, fmt.Errorf("the migration %s: a name has the form 00001_what_it_makes.sql", f)
		case version == grantsVersion:
			return nil, fmt.Errorf("the migration %s: numbers begin with 00001", f)
		case version == last.version:
			return nil, fmt.Errorf("the migrations %s and %s have the same number", last, f)
		case err != nil:
			return nil, fmt.Errorf("read the migration %s: %w", f, err)
		case fromStdin.Match(sql):
			return nil, fmt.Errorf("the migration %s has COPY FROM STDIN, which only psql can run: use INSERT", f)
		}
		all, last = append(all, f), f
	}
	if s.Files == nil || len(all) == 0 && len(s.Grants) > 0 {
		return nil, fmt.Errorf("the migrations %s have no files: add the SQL files that make the tables, and leave grants "+
			"on other tables "+
			"to the domain or the program that makes those", s.Name)
	}
	grants, err := s.grants(all)
	if grants += rights; grants != "" { // a file may recreate a table, so each file applies them again
		grants = fmt.Sprintf("-- up to %s\n%s", last.name, grants)
		all = append(all, file{source: s.Name, version: grantsVersion, name: "grants", sql: grants})
	}
	return all, err
}

// grantsVersion is the version under which the grants of a source are recorded. They are applied when they or the
// source's files change.
const grantsVersion = 0

// grantsFile is the file of a source with the rights that Grants cannot express.
const grantsFile = "grants.sql"

// grants returns the SQL of a source's grants on the tables of its files.
func (s Source) grants(files []file) (string, error) {
	var sql strings.Builder
	for _, g := range s.Grants {
		parts := grant.FindStringSubmatch(g)
		if parts == nil {
			return "", fmt.Errorf(`the grant %q of %s must have the form "select, insert, update, delete on table"`, g, s.Name)
		}
		table := withSchema(parts[2], files)
		fmt.Fprintf(&sql, "select gem.grant_to('gem_worker', '%s on %s'), gem.open_to('gem_worker', '%s', "+
			"'gem_worker_works', 'to %%I using (true) with check (true)');\n",
			parts[1], table, table)
		if strings.Contains(parts[1], "insert") {
			fmt.Fprintf(&sql, "select gem.grant_sequences_of('%s', 'gem_worker');\n", table)
		}
	}
	return sql.String(), nil
}

// withSchema returns the table of a grant with the schema in which a file creates it, if the file names one: the search
// path may lead to someone else's table of the same name.
func withSchema(table string, files []file) string {
	for _, f := range files {
		for _, o := range f.objects() {
			if full := o.Schema + "." + o.Name; o.Kind == "table" && o.Name == table && grant.MatchString("select on "+full) {
				return full
			}
		}
	}
	return table
}

// allFunctions returns the step that applies all functions, triggers, views and rights.
func allFunctions() (file, error) {
	var sql strings.Builder
	for _, name := range functionFiles {
		one, err := fs.ReadFile(embedded, "functions/"+name)
		if err != nil {
			return file{}, err
		}
		sql.Write(one)
		sql.WriteByte('\n')
	}
	return file{source: functions, version: functionsNumber, name: "functions", sql: sql.String()}, nil
}

// Sources returns the tables of the domains that a program lists, and their grants.
func Sources(domains ...any) []Source {
	var all []Source
	for _, d := range binding.Domains(domains...) {
		if d.Tables != nil || len(d.Grants) > 0 {
			all = append(all, Source{Name: d.Name(), Files: d.Tables, Grants: d.Grants})
		}
	}
	return all
}
