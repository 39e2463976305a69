package plain

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/postgres/pgerror"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
)

// refusedMessage and the SQLSTATE are the only parts of a Postgres error on a receipt.
const refusedMessage = pgerror.Refused

// FromPostgres returns the error of Postgres in err, or nil.
func FromPostgres(err error) *pgconn.PgError {
	var pgErr *pgconn.PgError
	errors.As(err, &pgErr)
	return pgErr
}

// Refusal returns the failure for an error of Postgres. Postgres's texts may name tables and code, so only operators
// read them: in the journal and the log, by the reference, and without values of rows.
func Refusal(err error, reference string) *handlers.Failure {
	e := FromPostgres(err)
	lines := []string{withoutValues(err, e)}
	for _, part := range []struct{ name, text string }{
		{"constraint", e.ConstraintName}, {"table", e.TableName}, {"column", e.ColumnName}, {"hint", pgerror.Hint(e)},
	} {
		if part.text != "" {
			lines = append(lines, part.name+": "+part.text)
		}
	}
	lines = append(lines, pgerror.Where(e)...)
	said := ""
	if errors.Is(err, lanes.ErrBroken) { // these are the worker's words
		said, _, _ = strings.Cut(err.Error(), e.Error())
	}
	return &handlers.Failure{
		Message: fmt.Sprintf("%s%s. Its operators can look up the cause by the reference %s.", said, refusedMessage,
			reference),
		Details: map[string]string{"sqlstate": e.Code, "reference": reference},
		Context: receipts.Shorten(strings.Join(lines, "\n"), 4000),
	}
}

// withoutValues returns the text of an error without the values in its error of Postgres.
func withoutValues(err error, e *pgconn.PgError) string {
	clean := *e
	clean.Message = pgerror.Message(e)
	hide := []string{e.Error(), clean.Error()}
	if e.Message != "" { // a handler may have included it in its own error
		hide = append(hide, e.Message, clean.Message)
	}
	return strings.NewReplacer(hide...).Replace(err.Error())
}

// isHidden reports whether err is an error of Postgres that the handler did not convert into a failure.
func isHidden(err error) bool {
	var failed *handlers.Failure
	return FromPostgres(err) != nil && !errors.As(err, &failed)
}

// Public returns err, or the refusal that replaces it.
func Public(err error, reference string) error {
	if isHidden(err) {
		return Refusal(err, reference)
	}
	return err
}
