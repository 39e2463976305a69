package plain_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/worker/internal/plain"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestTheContextOfAnErrorHasNoValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    pgconn.PgError
		want string
	}{
		{pgconn.PgError{Message: `invalid input syntax for type integer: "a"hunter2"b"`},
			`invalid input syntax for type integer: "…"`},
		{pgconn.PgError{Message: "invalid input value for enum shape: \"a\"\nhunter2\n\"b\""},
			`invalid input value for enum shape: "…"`},
		{pgconn.PgError{Message: "ungültige Eingabesyntax für Typ integer: »hunter2«"},
			`ungültige Eingabesyntax für Typ integer: "…"`},
		{pgconn.PgError{Message: `value "5" is out of range`, Where: "PL/pgSQL function f() line 3\nunnamed portal with " +
			"parameters: $1 = 'a\nhunter2', $2 = '\nhunter2'"},
			"value \"…\" is out of range (SQLSTATE 22003)\nPL/pgSQL function f() line 3"},
		{pgconn.PgError{Message: "x", Where: "unbenanntes Portal mit Parametern: $1 = 'a\nhunter2'"}, "x"},
		{pgconn.PgError{Message: "x", Where: "JSON data, line 1: {\"a\": hunter2...\nPL/pgSQL function f() line 3"},
			"x (SQLSTATE 22003)\nPL/pgSQL function f() line 3"},
		{pgconn.PgError{Message: "x", Where: "COPY t, line 1, column n: \"hunter2\""}, "x"},
	} {
		c.e.Code, c.e.Severity = "22003", "ERROR"
		if got := plain.Refusal(&c.e, "id").Context; !strings.HasPrefix(got, "ERROR: "+c.want) ||
			strings.Contains(got, "hunter2") {
			t.Errorf("%s, %s: got %q", c.e.Message, c.e.Where, got)
		}
	}
}
