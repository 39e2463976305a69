package worker

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/jackc/pgx/v5/pgconn"
)

// refusedMessage is all that the reader of a receipt learns from an error of Postgres, with its SQLSTATE.
const refusedMessage = "Postgres refused a statement"

// refusedBy returns the error of Postgres in err, or nil.
func refusedBy(err error) *pgconn.PgError {
	var pgErr *pgconn.PgError
	errors.As(err, &pgErr)
	return pgErr
}

// refusal is the failure for an error of Postgres. Postgres's texts may have names of tables, values of rows and code, so only
// operators read them: in the journal and the log, by the reference.
func refusal(err error, reference string) *handlers.Failure {
	e := refusedBy(err)
	lines := []string{strings.ReplaceAll(err.Error(), e.Message, withoutValues(e))}
	for _, part := range []struct{ name, text string }{
		{"constraint", e.ConstraintName}, {"table", e.TableName}, {"column", e.ColumnName}, {"hint", e.Hint},
	} {
		if part.text != "" {
			lines = append(lines, part.name+": "+part.text)
		}
	}
	for line := range strings.Lines(e.Where) {
		if line = strings.TrimSpace(line); line != "" && !portal.MatchString(line) {
			lines = append(lines, line)
		}
	}
	said := ""
	if errors.Is(err, lanes.ErrBroken) { // these are the worker's words
		said, _, _ = strings.Cut(err.Error(), e.Error())
	}
	return &handlers.Failure{
		Message: fmt.Sprintf("%s%s. Its operators can look up the cause by the reference %s.", said, refusedMessage, reference),
		Details: map[string]string{"sqlstate": e.Code, "reference": reference},
		Context: value.Shorten(strings.Join(lines, "\n"), 4000),
	}
}

// isHidden reports whether an error is Postgres's and its handler returned no failure for it.
func isHidden(err error) bool {
	var failed *handlers.Failure
	return refusedBy(err) != nil && !errors.As(err, &failed)
}

// public is err, or the refusal that replaces it.
func public(err error, reference string) error {
	if isHidden(err) {
		return refusal(err, reference)
	}
	return err
}

var (
	// portal is a line with the parameters of a statement, which a server may be configured to add.
	portal = regexp.MustCompile(`^(?:un)?named portal|^portal "|^extended query`)
	quoted = regexp.MustCompile(`"[^"]*"`)
)

// withoutValues returns the message of an error without the value that a data exception quotes. The detail of an error may have values
// of rows, and is left out.
func withoutValues(e *pgconn.PgError) string {
	if strings.HasPrefix(e.Code, "22") {
		return quoted.ReplaceAllString(e.Message, `"…"`)
	}
	return e.Message
}
