// Package pgerror describes errors of Postgres to operators, without values of rows or inputs.
package pgerror

import (
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Refused replaces a message that may contain values without quotation marks.
const Refused = "Postgres refused a statement"

// plainClasses are the SQLSTATE classes whose messages contain values only in quotation marks. Messages of classes 22
// and 54 also contain them as numbers and after a colon. P0 has the errors that authors raise.
var plainClasses = []string{"22", "23", "25", "2D", "40", "53", "54", "55", "57", "P0"}

const insufficientPrivilege = "42501" // names objects that exist

var (
	// quoted matches up to the last quotation mark of any language, since a value may contain quotation marks itself.
	quoted = regexp.MustCompile(`(?s)["„“«»].*["”“«»]|["„“«»].*`)
	number = regexp.MustCompile(`(^|[\s:=])[-+]?(?:0x[0-9A-Fa-f]|\d)[\w.:+-]*`)
	// afterColon matches a value without quotation marks.
	afterColon = regexp.MustCompile(`(?s): [^"].*`)
	// place matches a line of an error's context that names code: a function and what it was doing.
	place = regexp.MustCompile(`^(?:[\p{L} ]+ )?PL/pgSQL[\p{L} -]* ` +
		`(?:inline_code_block|(?:[\w.$]|"[\w.$ ]+")+\((?:[\w ,.\[\]$]|"[\w.$ ]+")*\))([\p{L}\d/ ,-]*)$` +
		`|^SQL function "[\w.$]+" (?:statement \d+|during \w+)$`)
	// statement matches the beginning of a statement, which ends on the line before a place.
	statement = regexp.MustCompile(`^(?:SQL statement|SQL expression|PL/pgSQL assignment|PL/pgSQL expression) "`)
	// dynamic matches what PL/pgSQL does with a statement that may be built from values.
	dynamic = regexp.MustCompile(`EXECUTE|RETURN QUERY|OPEN`)
	// parameters matches the beginning of a statement's values, which a server may be configured to add, or of rows that
	// it copies.
	parameters = regexp.MustCompile(`^(?:un)?named portal|^portal "|^extended query|\$\d+ = |^COPY `)
)

// Message returns the message of an error without values. It keeps the names of columns and constraints that Postgres
// marks as names. It returns [Refused] for messages that may contain values without quotation marks.
func Message(e *pgconn.PgError) string {
	class := e.Code[:min(2, len(e.Code))]
	switch {
	case isCode(e):
		return e.Message
	case class == "22" || class == "54":
		text := number.ReplaceAllString(unquoted(e, e.Message), "${1}…")
		if e.Code == "2201B" { // it describes an error in a regular expression
			return text
		}
		return afterColon.ReplaceAllString(text, ": …")
	case isPlain(e):
		return unquoted(e, e.Message)
	}
	return Refused
}

// Hint returns the hint of an error without values, or "".
func Hint(e *pgconn.PgError) string {
	switch {
	case isCode(e):
		return e.Hint
	case isPlain(e):
		return unquoted(e, e.Hint)
	}
	return ""
}

// Where returns the lines of an error's context that name code, the innermost first, and the statements in it that no
// function built.
func Where(e *pgconn.PgError) (lines []string) {
	text := e.Where
	if e.InternalQuery != "" { // a statement that Postgres could not parse or plan
		text = `SQL statement "` + e.InternalQuery + "\"\n" + text
	}
	said, inside := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		found := place.FindStringSubmatch(line)
		switch {
		case found != nil:
			if strings.HasSuffix(said, `"`) && !dynamic.MatchString(found[1]) {
				lines = append(lines, said)
			}
			lines, said, inside = append(lines, line), "", false
		case parameters.MatchString(line):
			return lines // a value may contain line breaks
		case statement.MatchString(line):
			said, inside = line, true
		case inside:
			said += "\n" + line
		}
	}
	return lines
}

// isPlain reports whether Message removes all values from the message of an error. PL/pgSQL itself marks errors that an
// author raises, whatever their SQLSTATE.
func isPlain(e *pgconn.PgError) bool {
	return slices.Contains(plainClasses, e.Code[:min(2, len(e.Code))]) || e.Code == insufficientPrivilege ||
		e.Routine == "exec_stmt_raise"
}

// isCode reports whether Postgres rejected the text of a statement inside a function. Then all names in the message are
// the author's.
func isCode(e *pgconn.PgError) bool {
	first, _, _ := strings.Cut(e.Where, "\n")
	found := place.FindStringSubmatch(first)
	return strings.HasPrefix(e.Code, "42") && e.InternalPosition > 0 && found != nil && !dynamic.MatchString(found[1])
}

// unquoted replaces text in quotation marks, unless it is a name.
func unquoted(e *pgconn.PgError, text string) string {
	var hide, show []string
	for i, name := range []string{e.ConstraintName, e.ColumnName, e.TableName, e.DataTypeName} {
		if mark := string(rune('\uE000' + i)); name != "" && !strings.Contains(text, mark) {
			hide, show = append(hide, `"`+name+`"`, mark), append(show, mark, `"`+name+`"`)
		}
	}
	text = strings.NewReplacer(hide...).Replace(text)
	return strings.NewReplacer(show...).Replace(quoted.ReplaceAllString(text, `"…"`))
}
