package migrations

import (
	_ "embed"
	"regexp"
	"strings"
)

// withoutDefaults creates the function gem.undo_default_rights, after it has noted what there is.
//
//go:embed default_rights.sql
var withoutDefaults string

// undoDefaults takes away what default privileges gave others on what was created since it ran last.
const undoDefaults = "select gem.undo_default_rights();"

var (
	creates = regexp.MustCompile(`(?i)^(?:create|do|select|with|call)\b`) // what follows DO may create as well
	gives   = regexp.MustCompile(`(?i)^(?:grant|do|select|with|call)\b`)
)

// closed is the file's SQL with undoDefaults before each statement that may grant on what the statements before it created, and at the end:
// default privileges and a grant look alike later.
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
