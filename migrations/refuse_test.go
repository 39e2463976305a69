package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// refusal is the error that gem.refuse raises.
func refusal(t *testing.T, db *pgxpool.Pool, arguments string) *pgconn.PgError {
	t.Helper()
	var refused *pgconn.PgError
	if _, err := db.Exec(t.Context(), "select gem.refuse("+arguments+")"); !errors.As(err, &refused) {
		t.Fatalf("%s: %v", arguments, err)
	}
	return refused
}

func TestARefusalQuotesAndCutsTheWordsOfACaller(t *testing.T) {
	t.Parallel()
	long, db := strings.Repeat("x", 90_000), supabase(t)
	for _, c := range []struct{ arguments, message, hint string }{
		{"'PT404', 'there is none'", "there is none", ""},
		{"'PT404', 'there is no call %s', 'It was %s.', 'a-1'", "there is no call a-1", "It was a-1."},
		{"'PT404', '%s is %s', null, 'a.b', 'two words'", `a.b is "two words"`, ""},
		{"'PT404', '%s is %s', null, '', null", `"" is null`, ""},
		{"'PT404', '%s', '%s', E'a\r\nSet-Cookie: b=c\r\n\r\n<html>'", `"a??Set-Cookie: b=c????<html>"`,
			`"a??Set-Cookie: b=c????<html>"`},
		{"'PT404', '%s', null, E'\\x01\\x1b\\x7fü\u202e\"%s\\\\'", `"?????'%s\"`, ""},
		{"'PT404', 'only an operator''s é', 'And é.'", "only an operator's ?", "And ?."},
		{"'PT404', '%s is %s, and may be %s', '%2$s', '/a', '" + long + "', '7'",
			`/a is "` + strings.Repeat("x", 247) + `...", and may be 7`, `"` + strings.Repeat("x", 247) + `..."`},
		{"'PT404', '%s', null, variadic array_fill('" + long[:300] + "'::text, array[40])", `"xxxxx..."`, ""},
	} {
		got := refusal(t, db, c.arguments)
		if got.Code != "PT404" || got.Message != c.message || got.Hint != c.hint {
			t.Errorf("%.100s:\n got %s: %s (%s)\nwant PT404: %s (%s)", c.arguments, got.Code, got.Message, got.Hint, c.message,
				c.hint)
		}
	}
	if got := refusal(t, db, "'check_violation/part_empty', 'text is empty'"); got.Code != "23514" ||
		got.ConstraintName != "part_empty" {
		t.Errorf("got %s of %s", got.Code, got.ConstraintName)
	}
}
