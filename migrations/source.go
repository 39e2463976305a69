package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers"
)

// Source is a set of SQL files with one owner, such as a domain or a program, that are applied once each.
type Source struct {
	// Name is what the files are recorded under: lower-case letters, digits and _. The names core and functions are GEM's.
	Name string
	// Files holds NNNNN_name.sql at its top: plain SQL, each run as one transaction, in the order of their numbers. A file
	// that was applied is never changed; the next change is the next file. Other files are passed over.
	Files fs.FS
	// Grants are what handlers may do with the tables, as in "select, insert, update on notes". The role gem_worker gets
	// them, and a policy that lets it see all rows, whenever anything of this source is applied.
	Grants []string
}

// The names of GEM's own sources.
const (
	core      = "core"
	functions = "functions"
)

// functionsNumber rises with every change of the files in functions/; a test compares it with their hash.
const functionsNumber = 1

// functionFiles are applied in this order: the rights and the states first, since the others use them.
var functionFiles = []string{"roles.sql", "earlier.sql", "states.sql", "guards.sql", "workers.sql", "frontends.sql", "prune.sql", "watch.sql"}

//go:embed tables/*.sql functions/*.sql
var embedded embed.FS

// file is a step of a migration: one transaction.
type file struct {
	source  string
	version int
	name    string
	sql     string
}

func (f file) sha256() string {
	sum := sha256.Sum256([]byte(f.sql))
	return hex.EncodeToString(sum[:])
}

func (f file) String() string { return f.source + "/" + f.name }

// plan is all that a database needs, in order: GEM's tables, its functions, then the other sources.
func plan(sources []Source) ([]file, error) {
	tables, err := fs.Sub(embedded, "tables")
	if err != nil {
		return nil, err
	}
	all, err := Source{Name: core, Files: tables}.files()
	if err != nil {
		return nil, err
	}
	whole, err := allFunctions()
	if err != nil {
		return nil, err
	}
	all = append(all, whole)
	named := map[string]bool{core: true, functions: true}
	for _, s := range sources {
		if !sourceName.MatchString(s.Name) || named[s.Name] {
			return nil, fmt.Errorf("the name %q of a set of migrations is taken, or is not made of a to z, 0 to 9 and _", s.Name)
		}
		named[s.Name] = true
		of, err := s.files()
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

var (
	sourceName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
	fromStdin  = regexp.MustCompile(`(?is)\bcopy\b[^;]*\bfrom\s+stdin\b`)
	fileName   = regexp.MustCompile(`^([0-9]{5})_[a-z0-9_]+\.sql$`)
	// grant is a list of privileges and a table: the text goes into a statement.
	grant = regexp.MustCompile(`^((?:select|insert|update|delete)(?:, ?(?:select|insert|update|delete))*) on ((?:[a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*)$`)
)

// files are the files of a source, in order.
func (s Source) files() ([]file, error) {
	if s.Files == nil {
		return nil, fmt.Errorf("the migrations %s have no files", s.Name)
	}
	grants, err := s.grants()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(s.Files, ".") // sorted by name, and so by number
	if err != nil {
		return nil, fmt.Errorf("read the migrations %s: %w", s.Name, err)
	}
	var all []file
	for _, e := range entries {
		if path.Ext(e.Name()) != ".sql" {
			continue
		}
		number := fileName.FindStringSubmatch(e.Name())
		if number == nil {
			return nil, fmt.Errorf("the migration %s/%s: a name has the form 00001_what_it_makes.sql", s.Name, e.Name())
		}
		version, err := strconv.Atoi(number[1])
		if err != nil || version == grantsVersion {
			return nil, fmt.Errorf("the migration %s/%s: numbers begin with 00001", s.Name, e.Name())
		}
		if len(all) > 0 && all[len(all)-1].version == version {
			return nil, fmt.Errorf("the migrations %[1]s/%[2]s and %[1]s/%[3]s have the same number", s.Name, all[len(all)-1].name, e.Name())
		}
		sql, err := fs.ReadFile(s.Files, e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the migration %s/%s: %w", s.Name, e.Name(), err)
		}
		if fromStdin.Match(sql) {
			return nil, fmt.Errorf("the migration %s/%s has COPY FROM STDIN, which only psql can run: use INSERT", s.Name, e.Name())
		}
		all = append(all, file{source: s.Name, version: version, name: e.Name(), sql: string(sql)})
	}
	if grants != "" && len(all) > 0 { // a file may make a table anew: with each they are applied again
		grants = fmt.Sprintf("-- up to %s\n%s", all[len(all)-1].name, grants)
		all = append(all, file{source: s.Name, version: grantsVersion, name: "grants", sql: grants})
	}
	return all, nil
}

// grantsVersion is the version under which the grants of a source are recorded. They are applied when they or its files change.
const grantsVersion = 0

// grants is the SQL of a source's grants.
func (s Source) grants() (string, error) {
	var sql strings.Builder
	for _, g := range s.Grants {
		parts := grant.FindStringSubmatch(g)
		if parts == nil {
			return "", fmt.Errorf(`the grant %q of %s must have the form "select, insert, update, delete on table"`, g, s.Name)
		}
		fmt.Fprintf(&sql, "select gem.grant_to('gem_worker', '%s on %s'), gem.open_to('gem_worker', '%s', 'gem_worker_works', 'to %%I using (true) with check (true)');\n",
			parts[1], parts[2], parts[2])
	}
	return sql.String(), nil
}

// allFunctions is the step that applies all functions, triggers, views and rights.
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

// Sources returns the tables of the domains that a program lists.
func Sources(domains ...any) []Source {
	var all []Source
	for _, d := range handlers.Domains(domains...) {
		if d.Tables != nil {
			all = append(all, Source{Name: d.Name(), Files: d.Tables, Grants: d.Grants})
		}
	}
	return all
}
