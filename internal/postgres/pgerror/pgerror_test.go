package pgerror_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgerror"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// In most cases below, the message, the context or the hint of Postgres contains the value. Operators must never read
// it.
func TestOperatorsReadNoValues(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.NewEmpty(t))
	const setup = `
		create schema app;
		create table app.people (
			mail text constraint mail_once unique, age integer constraint grown check (age > 17), n integer not null);
		create type app.shape as enum ('round');
		insert into app.people values ('hunter2', 18, 1);
		create function app.runs(v text) returns void language plpgsql as 'begin execute v; end';
		create function app.loops(v text) returns void language plpgsql as
			'declare r record; begin for r in execute v loop null; end loop; end';
		create function app.opens(v text) returns void language plpgsql as
			'declare c refcursor; begin open c for execute v; end';
		create function app.asks(v text) returns setof integer language plpgsql as 'begin return query execute v; end';
		create function app.says(v text) returns void language plpgsql as $$
			begin raise exception 'The state "%" is unknown', v using errcode = '42704', hint = 'Not "' || v || '"'; end $$;
		create function app.adds(v text) returns void language plpgsql as
			$$ begin insert into app.people values (v, 18, 1); end $$;
		create function app.errs(v text) returns void language plpgsql as $$ begin perform nobody from app.people; end $$`
	if _, err := db.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	at := func(message, function, doing string) string {
		return message + "\nPL/pgSQL function app." + function + "(text) line 1 at " + doing
	}
	const value = "hunter2"
	for sql, want := range map[string]string{ // the message, then the hint and the lines of the context
		"select ($1 || ' & &')::tsquery":           pgerror.Refused,
		"select $1::regclass":                      pgerror.Refused,
		"select ($1 || '.b.c.d.e')::regclass":      pgerror.Refused,
		"select ($1 || '(integer)')::regprocedure": pgerror.Refused,
		"select $1::regtype":                       pgerror.Refused,
		"select $1::regrole":                       pgerror.Refused,
		"select current_setting($1)":               pgerror.Refused,

		"select $1::app.shape":                    `invalid input value for enum app.shape: "…"`,
		"select $1::date":                         `invalid input syntax for type date: "…"`,
		"select $1::integer":                      `invalid input syntax for type integer: "…"`,
		`select ($1 || '"x')::integer`:            `invalid input syntax for type integer: "…"`,
		"select $1::jsonb":                        "invalid input syntax for type json",
		"select $1::text[]":                       "",
		"select encode('', $1)":                   `unrecognized encoding: "…"`,
		"select set_config('work_mem', $1, true)": `invalid value for parameter "…"`,
		"select to_date($1, 'YYYY')":              `invalid value "…"`,
		"select pg_catalog.normalize('a', $1)":    "invalid normalization form: …",

		"select convert_from(decode('ff', 'hex'), 'UTF8') where $1 <> ''": `invalid byte sequence for encoding "…": …`,
		"select get_byte('a', 77) where $1 <> ''":                         "index … out of valid range, ",
		"select ''::text where $1 ~ '('": "invalid regular expression: parentheses () not " +
			"balanced",
		"select chr(77777777) where $1 <> ''": "requested character too large for encoding: …",

		"insert into app.people values ($1, 18, 1)":      `duplicate key value violates unique constraint "mail_once"`,
		"insert into app.people values ($1 || 1, 17, 1)": `new row for relation "people" violates check constraint "grown"`,
		"insert into app.people values ($1 || 1, 18)": `null value in column "n" of relation "people" violates not-null ` +
			"constraint",

		"select app.adds($1)": at(`duplicate key value violates unique constraint "mail_once"`+"\n"+
			`SQL statement "insert into app.people values (v, 18, 1)"`, "adds", "SQL statement"),
		"select app.errs($1)": at(`column "nobody" does not exist`+"\n"+`SQL statement "SELECT nobody from app.people"`,
			"errs", "PERFORM"),
		"select app.says($1)": strings.Replace(at("The state \"…\" is unknown\nNot \"…\"", "says", "RAISE"), "line 1",
			"line 2", 1),

		"select app.runs('select ''' || $1)":                         at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs('select ' || $1)":                           at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs($1 || ' 1')":                                at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs('select from ' || $1)":                      at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs('select from app.people p where p.' || $1)": at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs('select ' || $1 || '(1)')":                  at(pgerror.Refused, "runs", "EXECUTE"),
		"select app.runs('select 1 / 0 -- ' || $1)":                  at("division by zero", "runs", "EXECUTE"),
		"select app.runs(E'select 1 / 0,\n''' || $1 || '''')":        at("division by zero", "runs", "EXECUTE"),
		"select app.loops('select ' || $1)": at(pgerror.Refused, "loops",
			"FOR over EXECUTE statement"),
		"select app.opens('select ' || $1)": at(pgerror.Refused, "opens", "OPEN"),
		"select app.asks('select ' || $1)":  at(pgerror.Refused, "asks", "RETURN QUERY"),
	} {
		_, err := db.Exec(t.Context(), sql, value)
		var e *pgconn.PgError
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v", sql, err)
			continue
		}
		lines := []string{pgerror.Message(e)}
		if hint := pgerror.Hint(e); hint != "" {
			lines = append(lines, hint)
		}
		got := strings.Join(append(lines, pgerror.Where(e)...), "\n")
		if !strings.HasPrefix(got, want) || strings.Contains(got, value) || strings.Contains(got, "77") {
			t.Errorf("%s:\n got %q\nwant %q\n of %s", sql, got, want, fmt.Sprint(e, " ", e.Hint, " ", e.Where))
		}
	}
}
