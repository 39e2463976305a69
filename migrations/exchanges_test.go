package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tokened inserts a call, claims it as the worker w, and returns its id and its token.
func tokened(t *testing.T, db *pgxpool.Pool) (id, token string) {
	t.Helper()
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	id = testdb.Value[string](t, db, "select id::text from gem.claim('w', 1, false)")
	return id, testdb.Value[string](t, db, "select gem.exchange_token($1, 1, 'w')", id)
}

func TestAServiceWritesOnlyStepsOfAttemptsWhoseTokensItHas(t *testing.T) {
	t.Parallel()
	u := testdb.New(t)
	owner := testdb.Pool(t, u)
	testdb.Exec(t, owner, "select gem.start_worker('w', 99, '', '1', '1 hour'); create table things (n int); "+
		"grant insert on things to gem_handler")
	t.Cleanup(func() { testdb.Exec(t, owner, "revoke all on things from gem_handler") })
	service := asMember(t, owner, u, "gem_handler")
	step := func(token string, before int) string {
		return fmt.Sprintf(`'{"token": "%s", "before": %d, "name": "book"}'`, token, before)
	}
	keep := func(token string, before int) error {
		return pgx.BeginFunc(t.Context(), service, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "insert into things values (1); select gem.wrote('things', 'insert', 1); "+
				"select public.keep_tool_step("+step(token, before)+", '7')")
			return err
		})
	}
	id, token := tokened(t, owner)
	_, foreign := tokened(t, owner)
	changed := token[:len(token)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(token, "0")]
	old, oldToken := tokened(t, owner)
	testdb.Exec(t, owner, "select gem.release($1, 1, 'w')", old)
	testdb.Exec(t, owner, "select gem.claim('w', 1, false)")
	code := func(token string) string { return token[strings.LastIndex(token, ".")+1:] }
	for what, bad := range map[string]string{"a changed token": changed, "none": "",
		"a huge attempt": id + ".99999999999.y", "another's code": id + ".1." + code(foreign), "a token of an earlier attempt": oldToken,
		"another attempt": id + ".2." + code(token), "no uuid": "x.1.y"} {
		if err := keep(bad, 0); err == nil || !strings.Contains(err.Error(), "PT409") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := keep(token, 1); err == nil || !strings.Contains(err.Error(), "PT409") {
		t.Errorf("another number of steps: %v", err)
	}
	for _, effects := range []string{`[]`, `{"rows": []}`, `{"db_writes": 5}`, `{"db_writes": {"a": []}}`,
		`{"external_calls": ["x"]}`, `{"files_written": [{}]}`} {
		_, err := service.Exec(t.Context(), fmt.Sprintf(`select public.keep_tool_step('{"token": "%s", "before": 0, "name": "a",
			"effects": %s}', '7')`, token, effects))
		if err == nil || !strings.Contains(err.Error(), "PT422") {
			t.Errorf("the effects %s: %v", effects, err)
		}
	}
	if n := testdb.Value[int](t, owner, "select count(*) from things"); n != 0 {
		t.Errorf("%d rows of rejected steps", n)
	}
	if err := keep(token, 0); err != nil {
		t.Error(err)
	}
	if err := keep(token, 0); err == nil {
		t.Error("the same step was kept twice")
	}
	if n := testdb.Value[int](t, owner, "select count(*) from things"); n != 1 {
		t.Errorf("%d rows", n)
	}
	if got := testdb.Value[string](t, owner, "select data::text from core_tool_events where event = 'step'"); got !=
		`{"kind": "tx", "name": "book", "result": 7, "effects": {"db_writes": [{"id": "1", "table": "things", "action": "insert"}]}}` {
		t.Error(got)
	}
	for _, role := range []string{"gem_frontend", "gem_worker", "gem_monitor", "gem_operator", "gem_mcp"} {
		if _, err := owner.Exec(t.Context(), "begin; set local role "+role+"; select public.keep_tool_step("+
			step(foreign, 0)+", '7')"); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", role, err)
		}
	}
	for _, sql := range []string{"select * from core_tool_calls", "select gem.exchange_token('" + id + "', 1, 'w')",
		"select * from gem.secrets", "select gem.step('" + id + "', 1, 'w', 'step', '{\"name\": \"x\"}', 1, false)"} {
		if _, err := service.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
