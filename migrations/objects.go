package migrations

import (
	"regexp"
	"slices"
	"strings"
)

// object is something that a file creates, under a name that someone else may have taken.
type object struct {
	Kind   string // schema, table, view, sequence, index, type, function or role
	Schema string // empty: the first schema of the search path; none for a schema or a role
	Name   string
	// Table is the table of an index.
	Table string
	// Columns are those in a table's CREATE statement, and Types their types.
	Columns, Types []string
}

// key returns the object's name in the ledger. A function has one name, whatever its arguments.
func (o object) key() string {
	if o.Schema == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Schema + "." + o.Name
}

// The roles of functions/create_roles.sql, which all databases of a server share.
var roles = []string{"gem_worker", "gem_monitor", "gem_operator", "gem_frontend", "gem_mcp", "gem_scheduler",
	"gem_handler"}

const (
	identifier = `(?:[a-z_][a-z0-9_$]*|"(?:[^"]|"")+")`
	create     = `create\s+(?:or\s+replace\s+)?(?:unlogged\s+|recursive\s+|foreign\s+|unique\s+|materialized\s+)*` +
		`(schema|table|view|sequence|index|type|domain|function|procedure|aggregate)\s+` +
		`(?:concurrently\s+)?(?:if\s+not\s+exists\s+)?(` + identifier + `)(?:\s*\.\s*(` + identifier + `))?`
)

var (
	createStatement = regexp.MustCompile(`(?is)^` + create + `(.*)$`)
	anyCreate       = regexp.MustCompile(`(?is)\b` + create)
	indexTable      = regexp.MustCompile(`(?is)^\s*on\s+(?:only\s+)?(` + identifier + `)(?:\s*\.\s*(` + identifier + `))?`)
	firstColumn     = regexp.MustCompile(`(?is)^\s*(` + identifier + `)\s`)
	afterType       = regexp.MustCompile(
		`(?i)\b(?:constraint|not|null|check|default|generated|unique|primary|references|collate)\b`)
	tableParts = []string{"constraint", "primary", "unique", "check", "foreign", "exclude", "like"}
)

// objectsOf lists the objects that plain SQL creates, in order, except those in schemas that it also creates. It does
// not see statements inside the body of a function or of DO.
func objectsOf(sql string) []object {
	var all []object
	for _, statement := range statements(sql) {
		m := createStatement.FindStringSubmatch(statement.text)
		if m == nil {
			continue
		}
		o := object{Kind: strings.ToLower(m[1]), Name: fold(m[2])}
		if m[3] != "" {
			o.Schema, o.Name = fold(m[2]), fold(m[3])
		}
		switch o.Kind {
		case "procedure", "aggregate":
			o.Kind = "function"
		case "domain":
			o.Kind = "type"
		case "table":
			o.Columns, o.Types = columnsOf(m[4])
		case "index":
			on := indexTable.FindStringSubmatch(m[4])
			if on == nil {
				continue // an index without a name: its first word is ON
			}
			o.Table = fold(on[1])
			if on[2] != "" {
				o.Schema, o.Table = fold(on[1]), fold(on[2])
			}
		}
		all = append(all, o)
	}
	return slices.DeleteFunc(all, func(o object) bool {
		return o.Schema != "" && slices.ContainsFunc(all,
			func(s object) bool { return s.Kind == "schema" && s.Name == o.Schema })
	})
}

// fold returns the name that Postgres derives from an identifier.
func fold(identifier string) string {
	if strings.HasPrefix(identifier, `"`) {
		return strings.ReplaceAll(strings.Trim(identifier, `"`), `""`, `"`)
	}
	return strings.ToLower(identifier)
}

// columnsOf returns the columns in the parentheses after a table's name, and their types.
func columnsOf(body string) (columns, types []string) {
	depth, from := 0, 0
	add := func(part string) {
		if m := firstColumn.FindStringSubmatch(part); m != nil && !slices.Contains(tableParts, strings.ToLower(m[1])) {
			columns = append(columns, fold(m[1]))
			ofType := part[len(m[0]):]
			if end := afterType.FindStringIndex(ofType); end != nil {
				ofType = ofType[:end[0]]
			}
			types = append(types, strings.ToLower(strings.TrimSpace(ofType)))
		}
	}
	for i, c := range body {
		switch {
		case c == '(':
			if depth++; depth == 1 {
				from = i + 1
			}
		case c == ')':
			if depth--; depth == 0 {
				add(body[from:i])
				return columns, types
			}
		case c == ',' && depth == 1:
			add(body[from:i])
			from = i + 1
		case depth == 0 && c != ' ' && c != '\n' && c != '\t' && c != '\r':
			return nil, nil // such as AS SELECT
		}
	}
	return nil, nil
}

// statement is one statement of a file: its text without comments and with empty string literals, and its end after the
// semicolon.
type statement struct {
	text string
	end  int
}

// statements splits SQL at its semicolons. The last statement is the text after the last semicolon, which may be empty.
func statements(sql string) []statement {
	var all []statement
	var b strings.Builder
	end := func(i int, closing string) int { // the position after the next closing
		if n := strings.Index(sql[i:], closing); n >= 0 {
			return i + n + len(closing)
		}
		return len(sql)
	}
	for i := 0; i < len(sql); {
		rest := sql[i:]
		switch {
		case strings.HasPrefix(rest, "--"):
			i = end(i, "\n")
			b.WriteByte('\n')
		case strings.HasPrefix(rest, "/*"):
			for depth := 0; i < len(sql); {
				opens, closes := strings.HasPrefix(sql[i:], "/*"), strings.HasPrefix(sql[i:], "*/")
				switch {
				case opens:
					depth, i = depth+1, i+2
				case closes:
					depth, i = depth-1, i+2
				default:
					i++
				}
				if closes && depth == 0 {
					break
				}
			}
			b.WriteByte(' ')
		case rest[0] == '\'':
			backslashes := i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E')
			for i++; i < len(sql) && sql[i] != '\''; i++ { // '' counts as two literals in a row, which is harmless here
				if backslashes && sql[i] == '\\' {
					i++
				}
			}
			i++
			b.WriteString("''")
		case rest[0] == '"':
			to := end(i+1, `"`)
			b.WriteString(sql[i:to])
			i = to
		case rest[0] == '$':
			tag := dollarTag.FindString(rest)
			if tag == "" || i > 0 && isWord(sql[i-1]) {
				b.WriteByte('$')
				i++
				continue
			}
			i = end(i+len(tag), tag)
			b.WriteString("''")
		case rest[0] == ';':
			i++
			all = append(all, statement{strings.TrimSpace(b.String()), i})
			b.Reset()
		default:
			b.WriteByte(rest[0])
			i++
		}
	}
	return append(all, statement{strings.TrimSpace(b.String()), len(sql)})
}

var dollarTag = regexp.MustCompile(`^\$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$`)

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
