package extract_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const kib = 1 << 10

func TestADocumentIsAddedInParts(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: []any{extract.Domain(handlers.Domain{})},
		Registry: gem.BuiltInRegistry})
	add := func(by, input string) *receipts.Receipt {
		t.Helper()
		return env.Run(handlertest.Call{Tool: "extract.add_document", Input: input, CreatedBy: by})
	}
	first := add("ada", `{"title": "Lease", "text": "Zoë "}`)
	part := handlertest.Output[extract.Part](t, first)
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte("Zoë "))); part.Seq != 1 || part.Length != 5 || part.SHA256 != want {
		t.Errorf("got %+v, want the hash %s", part, want)
	}
	if got := handlertest.Effects(t, first); got != "insert extract_documents, insert extract_document_parts" {
		t.Errorf("effects: %s", got)
	}
	in := func(rest string) string { return fmt.Sprintf(`{"document_id": %q, %s}`, part.DocumentID, rest) }
	if second := handlertest.Output[extract.Part](t, add("ada", in(`"text": "rents"`))); second.Seq != 2 ||
		second.DocumentID != part.DocumentID {
		t.Errorf("got %+v", second)
	}
	again := add("ada", in(`"seq": 2, "text": "rents"`))
	if second := handlertest.Output[extract.Part](t, again); second.Seq != 2 || second.Length != 5 ||
		handlertest.Effects(t, again) != "read 1 extract_document_parts" {
		t.Errorf("the same again: %+v, %s", second, handlertest.Effects(t, again))
	}

	for what, c := range map[string]struct{ by, input, code, says string }{
		"another's": {"grace", in(`"text": "x"`), "not_found", "There is no document " + part.DocumentID},
		"nobody's":  {"", in(`"text": "x"`), "not_found", ""},
		"one that is not": {"ada", `{"document_id": "00000000-0000-4000-8000-000000000000", "text": "x"}`, "not_found",
			""},
		"no id": {"ada", `{"document_id": "lease", "text": "x"}`, "validation_error", ""},
		"another second": {"ada", in(`"seq": 2, "text": "sells"`), "part_out_of_order",
			"The next part of the document " + part.DocumentID + " is 3, and not 2."},
		"a gap":              {"ada", in(`"seq": 4, "text": "x"`), "part_out_of_order", "Parts are added in order"},
		"a new one's second": {"ada", `{"seq": 2, "text": "x"}`, "part_out_of_order", " is 1, and not 2."},
		"nothing":            {"ada", in(`"text": ""`), "validation_error", ""},
		"too long":           {"ada", in(`"text": "` + strings.Repeat("x", 512*kib+1) + `"`), "validation_error", ""},
		"too many bytes": {"ada", in(`"text": "` + strings.Repeat("ë", 256*kib) + `x"`), "part_too_large",
			"Text takes 524289 bytes in UTF-8, and a part may take 524288. Send the text in several parts."},
	} {
		if failed := handlertest.ErrorOf(t, add(c.by, c.input)); string(failed.Code) != c.code ||
			!strings.Contains(failed.Message, c.says) {
			t.Errorf("%s: %s: %s", what, failed.Code, failed.Message)
		}
	}
	var n int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from extract_documents").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d documents of 1 that was added, %v", n, err)
	}
}

func TestADocumentHasEightMebibytes(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: []any{extract.Domain(handlers.Domain{})},
		Registry: gem.BuiltInRegistry})
	var id string
	if err := env.DB.QueryRow(t.Context(), "insert into extract_documents default values returning id::text").
		Scan(&id); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, env.DB, "insert into extract_document_parts (document_id, text) select $1::uuid, repeat('x', 524288) "+
		"from generate_series(1, 16)", id)
	failed := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "extract.add_document",
		Input: fmt.Sprintf(`{"document_id": %q, "text": "x"}`, id)}))
	if want := "The document would take 8388609 bytes in UTF-8, and may take 8388608. Put the rest into another " +
		"document."; string(failed.Code) != "document_too_large" || failed.Message != want {
		t.Errorf("%s: %s", failed.Code, failed.Message)
	}
	if got := testdb.Value[int](t, env.DB, "select total from extract_document_parts where seq = 16"); got != 8<<20 {
		t.Errorf("16 parts have %d bytes", got)
	}
}

func TestPartsThatComeTogetherAreNumberedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: []any{extract.Domain(handlers.Domain{})},
		Registry: gem.BuiltInRegistry})
	id, _ := handlertest.Do[extract.Part](env, "extract.add_document", `{"text": "a"}`)
	calls := make([]string, 20)
	for i := range calls {
		calls[i] = env.Insert(handlertest.Call{Tool: "extract.add_document",
			Input: fmt.Sprintf(`{"document_id": %q, "text": "ë"}`, id.DocumentID)})
	}
	for _, call := range calls {
		handlertest.Output[extract.Part](t, env.Await(call))
	}
	if got := testdb.Value[string](t, env.DB,
		"select count(*) || ' ' || max(seq) || ' ' || max(total) || ' ' || sum(bytes) "+
			"from extract_document_parts"); got != "21 21 41 41" {
		t.Errorf("got %s", got)
	}
}

// supabase is a migrated database with the roles of Supabase's API, and with what older projects grant them by default.
func supabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `do $$ begin
			create role anon nologin; create role authenticated nologin; create role service_role nologin;
			exception when duplicate_object or unique_violation then null; end $$`)
	for _, sql := range []string{"grant usage on schema public to anon, authenticated, service_role",
		"alter default privileges in schema public grant all on tables to anon, authenticated, service_role",
		"alter default privileges in schema public grant all on functions to anon, authenticated, service_role"} {
		testdb.Exec(t, db, sql)
	}
	if err := migrations.Up(t.Context(), url, migrations.Sources(extract.Domain(handlers.Domain{}))...); err != nil {
		t.Fatal(err)
	}
	return db
}

// as runs a statement in a transaction as a role of the API, with the token of a user, or as another role without a
// token.
func as(t *testing.T, db *pgxpool.Pool, role, sub, sql string, args ...any) (rows int64, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		claims, _ := json.Marshal(map[string]string{"role": role, "sub": sub})
		if strings.HasPrefix(role, "gem_") {
			claims = nil
		}
		if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true), set_config('role', $2, true)",
			string(claims), role); err != nil {
			return err
		}
		tag, err := tx.Exec(t.Context(), sql, args...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

// The ids of two documents.
const adas, graces = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"

func TestASignedInUserAddsAndReadsItsOwnDocuments(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	for _, c := range []struct {
		role, sub, sql string
		rows           int64
	}{
		{"authenticated", "ada", "insert into extract_documents (id, title) values ('" + adas + "', 'Lease') returning *", 1},
		{"authenticated", "ada", "insert into extract_document_parts (document_id, seq, text) values ('" + adas +
			"', 1, 'a'), ('" + adas + "', null, 'b') returning *", 2},
		{"service_role", "", "insert into extract_documents (id, created_by) values ('" + graces + "', 'grace')", 1},
		{"service_role", "", "insert into extract_document_parts (document_id, text) values ('" + graces + "', 'c')", 1},
		{"authenticated", "grace", "insert into extract_document_parts (document_id, text) values ('" + graces + "', 'd')",
			1},
		{"gem_worker", "", "insert into extract_documents (created_by) values ('ada')", 1},
		{"authenticated", "ada", "select * from extract_documents where created_by = 'ada'", 2},
		{"authenticated", "ada", "select * from extract_documents", 2},
		{"authenticated", "ada", "select * from extract_document_parts", 2},
		{"authenticated", "mallory", "select * from extract_document_parts", 0},
		{"service_role", "", "select * from extract_document_parts", 4},
		{"gem_worker", "", "select * from extract_document_parts", 4},
	} {
		if rows, err := as(t, db, c.role, c.sub, c.sql); err != nil || rows != c.rows {
			t.Errorf("%s %s: %s: %d rows, want %d, %v", c.role, c.sub, c.sql, rows, c.rows, err)
		}
	}
	for what, sql := range map[string]string{
		"another's part": "insert into extract_document_parts (document_id, text) values ('" + adas + "', 'x')",
		"an owner":       "insert into extract_documents (created_by) values ('ada')",
		"a call":         "insert into extract_documents (call_id) values (gen_random_uuid())",
		"a hash": "insert into extract_document_parts (document_id, text, sha256) values ('" + adas +
			"', 'x', 'y')",
		"a changed title": "update extract_documents set title = 'x'",
		"a changed part":  "update extract_document_parts set text = 'x'",
		"an upsert": "insert into extract_documents (id) values ('" + adas +
			"') on conflict (id) do update set title = 'x'",
		"a deleted part":         "delete from extract_document_parts",
		"an emptied table":       "truncate extract_documents cascade",
		"the documents' pruning": "select gem_extract.prune(now(), 1)",
	} {
		for _, role := range []string{"anon", "authenticated", "service_role", "gem_worker"} {
			if role == "service_role" && (what == "an owner" || what == "another's part") || role == "gem_worker" &&
				strings.HasPrefix(sql, "insert") && what != "an upsert" {
				continue // they act for anyone
			}
			if _, err := as(t, db, role, "mallory", sql); err == nil {
				t.Errorf("%s: %s was not refused", role, what)
			}
		}
	}
	for _, sql := range []string{"insert into extract_documents default values", "select * from extract_documents",
		"select * from extract_document_parts"} {
		if _, err := as(t, db, "anon", "", sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("anon: %s: %v", sql, err)
		}
	}
	if _, err := as(t, db, "authenticated", "mallory",
		"insert into extract_document_parts (document_id, text) values ('"+adas+"', 'x')"); err == nil ||
		!strings.Contains(err.Error(), "there is no document "+adas+" of yours") {
		t.Errorf("another's part: %v", err)
	}
}

func TestADocumentStaysAsItWasAddedForTheOwnerToo(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, migrations.Sources(extract.Domain(handlers.Domain{}))...))
	testdb.Exec(t, db, "insert into extract_documents (id) values ($1)", adas)
	testdb.Exec(t, db, "insert into extract_document_parts (document_id, text) values ($1, 'x')", adas)
	for _, sql := range []string{"update extract_documents set title = 'x'",
		"update extract_document_parts set text = 'y'", "delete from extract_documents",
		"delete from extract_document_parts", "truncate extract_document_parts", "truncate extract_documents cascade"} {
		if _, err := db.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "a document stays as it was "+
			"added: see gem prune") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestAnInsertIsRefusedInASentence(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into extract_documents (id, created_by) values ($1, 'ada')", adas)
	const part = "insert into extract_document_parts (document_id, seq, text) values ('" + adas + "', "
	for sql, want := range map[string]string{
		part + "null, '')":                         "text is empty",
		part + "null, null)":                       "text is empty",
		part + "2, 'x')":                           "the next part of the document " + adas + " is 1, and not 2",
		part + "null, repeat('ë', 262144) || 'x')": "text takes 524289 bytes in UTF-8, and a part may take 524288",
		"insert into extract_document_parts (document_id, text) select '" + adas + "', repeat('x', 524288) from " +
			"generate_series(1, 17)": "the document would take 8912896 bytes in UTF-8, and may take 8388608",
		"insert into extract_documents (title) values (repeat('x', 201))": "title may have at most 200 characters, and " +
			"created_by 255",
	} {
		_, err := as(t, db, "authenticated", "ada", sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Message != want {
			t.Errorf("%s: %v", sql, err)
		}
	}
	testdb.Exec(t, db, "update gem.limits set max_calls_per_hour = 2, max_bytes_per_hour = 5")
	for _, c := range []struct{ sql, want string }{
		{"insert into extract_documents (title) values ('second')", ""},
		{"insert into extract_documents (title) values ('third')", "too many documents or parts in an hour: you may add 2"},
		{part + "1, '1234')", ""},
		{part + "2, '56')", "too much text in an hour: you may add 5 bytes"},
		{part + "2, '5')", ""},
		{part + "3, '')", "text is empty"},
		{part + "3, '6')", "too many documents or parts in an hour: you may add 2"},
	} {
		_, err := as(t, db, "authenticated", "ada", c.sql)
		var pgErr *pgconn.PgError
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &pgErr) || pgErr.Message != c.want) {
			t.Errorf("%s: %v", c.sql, err)
		}
	}
	for _, role := range []string{"service_role", "gem_worker"} { // which have no such limits
		if _, err := as(t, db, role, "", "insert into extract_documents (created_by) values ('ada')"); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}
