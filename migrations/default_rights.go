package migrations

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

// withoutDefaults records the existing objects, and creates the function gem.undo_default_rights.
//
//go:embed default_rights.sql
var withoutDefaults string

// undoDefaults revokes the rights that default privileges gave others on the objects created since its last run.
const undoDefaults = "select gem.undo_default_rights();"

var (
	creates = regexp.MustCompile(`(?i)^(?:create|do|select|with|call)\b`) // DO may create objects, too
	gives   = regexp.MustCompile(`(?i)^(?:grant|do|select|with|call)\b`)
)

// closed returns the file's SQL with undoDefaults before each statement that may grant rights on objects of earlier
// statements, and at the end. After such a grant, default and granted rights look the same.
func (f file) closed() string {
	var b strings.Builder
	created, from := false, 0
	undo := undoDefaults
	if !f.own() {
		undo = keepSchema + undo
	}
	for _, s := range statements(f.sql) {
		if created && gives.MatchString(s.text) {
			b.WriteString("\n" + undo)
			created = false
		}
		b.WriteString(f.sql[from:s.end])
		created, from = created || creates.MatchString(s.text), s.end
	}
	return b.String() + "\n;\n" + undo + "\n"
}

// everything means each new object in the schema of the program's tables.
const everything = "*"

// names returns the names of the objects that the file creates, including those in blocks and functions, in the form of
// gem.undo_default_rights: notes, public.notes, or gem_os.* for a schema.
func (f file) names() []string {
	var all []string
	for _, m := range anyCreate.FindAllStringSubmatch(f.sql, -1) {
		name := fold(m[2])
		switch {
		case strings.EqualFold(m[1], "schema"):
			name += ".*"
		case m[3] != "":
			name += "." + fold(m[3])
		}
		all = append(all, name)
	}
	if !f.own() {
		all = append(all, everything) // no pattern finds all ways in which a program may create tables
	}
	slices.Sort(all)
	return slices.Compact(all)
}
