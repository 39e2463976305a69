package migrations

import (
	_ "embed"
	"regexp"
	"strings"
)

// withoutDefaults records the existing objects, and creates the function gem.undo_default_rights.
//
//go:embed default_rights.sql
var withoutDefaults string

// undoDefaults revokes the rights that default privileges gave others on the objects created since its last run.
const undoDefaults = "select gem.undo_default_rights();"

var (
	creates = regexp.MustCompile(`(?i)^(?:create|do|select|with|call)\b`) // what follows DO may create as well
	gives   = regexp.MustCompile(`(?i)^(?:grant|do|select|with|call)\b`)
)

// closed returns the file's SQL with undoDefaults before each statement that may grant rights on objects that earlier statements created, and at
// the end: afterwards, a right by default and a granted one look the same.
func (f file) closed() string {
	var b strings.Builder
	created, from := false, 0
	for _, s := range statements(f.sql) {
		if created && gives.MatchString(s.text) {
			b.WriteString("\n" + undoDefaults)
			created = false
		}
		b.WriteString(f.sql[from:s.end])
		created, from = created || creates.MatchString(s.text), s.end
	}
	return b.String() + "\n;\n" + undoDefaults + "\n"
}
