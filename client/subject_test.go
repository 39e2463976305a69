package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const chosen = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"

// asMCP returns a pool of a login role of gem_mcp, and one of the owner of the same database.
func asMCP(t *testing.T) (db, owner *pgxpool.Pool) {
	t.Helper()
	url, owner := mcpURL(t)
	return testdb.Pool(t, url), owner
}

func mcpURL(t *testing.T) (mcp string, owner *pgxpool.Pool) {
	t.Helper()
	address := testdb.New(t)
	owner = testdb.Pool(t, address)
	role := "gem_test_" + strings.ToLower(t.Name())
	role = role[:min(len(role), 60)]
	testdb.Exec(t, owner, "create role "+role+" login password 'mcp' in role gem_mcp")
	t.Cleanup(func() {
		if _, err := owner.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "mcp")
	return u.String(), owner
}

// as enqueues a call as a user.
func as(ctx context.Context, db *pgxpool.Pool, sub string, c client.NewCall) (id string, err error) {
	err = client.As(ctx, db, client.Subject{ID: sub, Role: "gem_frontend"}, func(db client.DB) error {
		id, err = client.Enqueue(ctx, db, c)
		return err
	})
	return id, err
}

func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

func TestAsASubjectOneHasItsRights(t *testing.T) {
	t.Parallel()
	db, owner := asMCP(t)
	others := enqueue(t, owner, client.NewCall{Tool: "shop.order", CreatedBy: "grace"})
	ada := client.Subject{ID: "ada's", Role: "gem_frontend",
		Claims: json.RawMessage(`{"sub": "grace", "role": "service_role", "team": "o'hare\\"}`)}
	var own string
	err := client.As(t.Context(), db, ada, func(db client.DB) error {
		var seen int
		var sub, role, team, user string
		err := db.QueryRow(t.Context(), `select (select count(*) from core_tool_calls), c ->> 'sub', c ->> 'role',
			c ->> 'team', current_user
			from (select current_setting('request.jwt.claims')::jsonb as c) claims`).Scan(&seen, &sub, &role, &team, &user)
		if err != nil || seen != 0 || sub != "ada's" || role != "gem_frontend" || team != `o'hare\` ||
			user != "gem_frontend" {
			t.Errorf("it sees %d calls as %s, %s, %s, %s, %v", seen, sub, role, team, user, err)
		}
		own, err = client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := client.Get(t.Context(), owner, own); err != nil || c.CreatedBy != "ada's" {
		t.Errorf("the call is %+v, %v", c, err)
	}
	err = client.As(t.Context(), db, ada, func(db client.DB) error {
		_, err := client.Cancel(t.Context(), db, others)
		return err
	})
	if none := (*client.NotFoundError)(nil); !errors.As(err, &none) {
		t.Errorf("another's call was cancelled: %v", err)
	}
	for range 3 { // on the same connection
		var user, claims string
		if err := db.QueryRow(t.Context(), "select current_user, coalesce(current_setting('request.jwt.claims', true), '')").
			Scan(&user, &claims); err != nil ||
			user == "gem_frontend" || claims != "" {
			t.Errorf("afterwards the connection is %s's, with %q, %v", user, claims, err)
		}
	}
}

func TestEachStatementOfASubjectIsATransactionOfItsOwn(t *testing.T) {
	t.Parallel()
	url, owner := mcpURL(t)
	db := testdb.Pool(t, url)
	// What is inserted with a priority of -7 fails when it is committed.
	testdb.Exec(t, owner, `create function late() returns trigger language plpgsql as $$
		begin raise 'too late'; end $$;
		create constraint trigger late after insert on core_tool_calls initially deferred
			for each row when (new.priority = -7) execute function late()`)
	ada := client.Subject{ID: "ada", Role: "gem_frontend", Claims: json.RawMessage(`{"team": "o'hare"}`)}
	others := enqueue(t, owner, client.NewCall{Tool: "shop.order", CreatedBy: "grace"})
	wrong := errors.New("wrong")
	err := client.AsEach(t.Context(), db, ada, func(db client.DB) error {
		backend := func() (pid int) {
			if err := db.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
				t.Error(err)
			}
			return pid
		}
		first := backend()
		if id, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", ID: chosen}); err != nil ||
			id != chosen {
			t.Errorf("got %s, %v", id, err)
		}
		rows, err := db.Query(t.Context(), `select id::text, current_user ||
			(current_setting('request.jwt.claims')::jsonb ->> 'team') from core_tool_calls`)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Who string }])
		if err != nil || len(seen) != 1 || seen[0].ID != chosen || seen[0].Who != "gem_frontendo'hare" {
			t.Errorf("it sees %v, %v", seen, err)
		}
		if err := db.QueryRow(t.Context(), "select 1 where false").Scan(new(int)); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("no row: %v", err)
		}
		late := func(when string, err error) {
			if err == nil || !strings.Contains(err.Error(), "too late") {
				t.Errorf("%s: %v", when, err)
			}
		}
		_, err = client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", Priority: -7})
		late("a row that is read", err)
		const insert = "insert into public.core_tool_calls (tool_name, priority) values ('shop.order', -7)"
		_, err = db.Exec(t.Context(), insert)
		late("a statement", err)
		rows, err = db.Query(t.Context(), insert+" returning id")
		if err == nil {
			_, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		late("rows", err)
		if _, err := client.Cancel(t.Context(), db, others); !errors.As(err, new(*client.NotFoundError)) {
			t.Errorf("another's call was cancelled: %v", err)
		}
		if tag, err := db.Exec(t.Context(), "select from core_tool_calls"); err != nil || tag.RowsAffected() != 1 {
			t.Errorf("got %s, %v", tag, err)
		}
		if _, err := db.Exec(t.Context(), " "); err == nil {
			t.Error("an empty statement was taken")
		}
		if backend() != first {
			t.Error("an error cost the connection")
		}
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if _, err := client.Get(t.Context(), owner, chosen); err != nil {
		t.Errorf("the first statement was not committed: %v", err)
	}
	var user, claims string
	if err := db.QueryRow(t.Context(), "select current_user, coalesce(current_setting('request.jwt.claims', true), '')").
		Scan(&user, &claims); err != nil || user == "gem_frontend" || claims != "" {
		t.Errorf("afterwards the connection is %s's, with %q, %v", user, claims, err)
	}
	for what, s := range map[string]client.Subject{
		"another role": {ID: "ada", Role: "gem_worker"},
		"no role":      {ID: "ada", Role: `gem_frontend"; reset role; select '`},
	} {
		if err := client.AsEach(t.Context(), db, s, func(db client.DB) error {
			_, err := db.Exec(t.Context(), "select from core_tool_calls")
			return err
		}); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestWhatASubjectCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	db, _ := asMCP(t)
	for what, s := range map[string]client.Subject{
		"nobody":         {Role: "gem_frontend"},
		"another role":   {ID: "ada", Role: "gem_worker"},
		"no role at all": {ID: "ada", Role: `gem_frontend"; reset role; select '`},
		"wrong claims":   {ID: "ada", Role: "gem_frontend", Claims: json.RawMessage(`[1]`)},
	} {
		if err := client.As(t.Context(), db, s, func(client.DB) error {
			t.Errorf("%s: it ran", what)
			return nil
		}); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	wrong := errors.New("wrong")
	err := client.As(t.Context(), db, client.Subject{ID: "ada", Role: "gem_frontend"}, func(db client.DB) error {
		if _, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", ID: chosen}); err != nil {
			t.Error(err)
		}
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if id, err := as(t.Context(), db, "grace", client.NewCall{Tool: "shop.order", ID: chosen}); err != nil ||
		id != chosen {
		t.Errorf("the call of a transaction that was rolled back stayed: %v", err)
	}
}

func TestTheSameIDIsTheSameCall(t *testing.T) {
	t.Parallel()
	db, owner := asMCP(t)
	order := client.NewCall{Tool: "shop.order", Input: map[string]any{"n": 1.0}, IdempotencyKey: "k", ID: chosen,
		SessionID: "s", Priority: -1,
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Awaited: true}
	if id, err := as(t.Context(), db, "ada", order); err != nil || id != chosen {
		t.Fatalf("got %s, %v", id, err)
	}
	var row string
	if err := owner.QueryRow(t.Context(), "select concat_ws(' ', created_by, session_id, priority, traceparent, "+
		"awaited) from core_tool_calls").Scan(&row); err != nil ||
		row != "ada s -1 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 t" {
		t.Errorf("the row has %s, %v", row, err)
	}
	// Limits that reject a new call do not reject an existing one.
	testdb.Exec(t, owner, "update gem.limits set max_open_calls = 1, max_input_bytes = 2, min_priority = 0")
	testdb.Exec(t, owner, "insert into gem.tools (name, frontends, entry) values ('shop.order', false, '{}')")
	testdb.Exec(t, owner, "select cancel_tool_call($1)", chosen)
	if id, err := as(t.Context(), db, "ada", order); err != nil || id != chosen {
		t.Errorf("asked again: %s, %v", id, err)
	}
	if _, err := as(t.Context(), db, "ada", client.NewCall{Tool: "shop.order"}); code(err) != "42501" {
		t.Errorf("a new call of a closed tool: %v", err)
	}
	testdb.Exec(t, owner, "update gem.limits set max_open_calls = 1000, max_input_bytes = 1000, min_priority = -10")
	testdb.Exec(t, owner, "delete from gem.tools")

	without := func(change func(*client.NewCall)) client.NewCall { c := order; change(&c); return c }
	told := map[string]bool{}
	for what, c := range map[string]struct {
		sub  string
		call client.NewCall
	}{
		"another subject": {"grace", order},
		"another tool":    {"ada", without(func(c *client.NewCall) { c.Tool = "shop.pay" })},
		"another input":   {"ada", without(func(c *client.NewCall) { c.Input = map[string]any{"n": 2} })},
		"no key":          {"ada", without(func(c *client.NewCall) { c.IdempotencyKey = "" })},
	} {
		_, err := as(t.Context(), db, c.sub, c.call)
		if code(err) != "23505" {
			t.Errorf("%s: %v", what, err)
		}
		told[strings.TrimPrefix(fmt.Sprint(err), "insert a call to "+c.call.Tool)] = true
	}
	// With the rights of the owner, who sees all rows.
	err := client.As(t.Context(), owner, client.Subject{ID: "grace"},
		func(db client.DB) error { _, err := client.Enqueue(t.Context(), db, order); return err })
	told[strings.TrimPrefix(fmt.Sprint(err), "insert a call to shop.order")] = true
	if len(told) != 1 {
		t.Errorf("the refusals differ: %v", told)
	}
	if _, err := client.Enqueue(t.Context(), owner,
		client.NewCall{Tool: "shop.order", ID: chosen, CreatedBy: "ada"}); err == nil {
		t.Error("a call with an id was made for another")
	}
}

func TestAHundredInsertsOfOneIDMakeOneCall(t *testing.T) {
	t.Parallel()
	db, owner := asMCP(t)
	testdb.Exec(t, owner, "update gem.limits set max_open_calls = 1")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			id, err := as(t.Context(), db, "ada", client.NewCall{Tool: "shop.order", Input: map[string]any{"n": 1}, ID: chosen})
			if err != nil || id != chosen {
				t.Errorf("got %s, %v", id, err)
			}
		})
	}
	all.Wait()
	var calls, events int
	if err := owner.QueryRow(t.Context(), "select (select count(*) from core_tool_calls), (select count(*) from "+
		"core_tool_events)").Scan(&calls, &events); err != nil ||
		calls != 1 || events != 1 {
		t.Errorf("%d calls with %d events, %v", calls, events, err)
	}
}

// Above 64 the flag is dropped, and the call is still made.
func TestFewCallsOfACallerAreAwaitedAtOnce(t *testing.T) {
	t.Parallel()
	db, owner := asMCP(t)
	for range 70 {
		if _, err := as(t.Context(), db, "ada", client.NewCall{Tool: "shop.order", Awaited: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := as(t.Context(), db, "grace", client.NewCall{Tool: "shop.order", Awaited: true}); err != nil {
		t.Fatal(err)
	}
	count := func(want string) {
		t.Helper()
		var got string
		err := owner.QueryRow(t.Context(), `select string_agg(created_by || ' ' || calls || ' ' || awaited, ', '
			order by created_by)
			from (select created_by, count(*) as calls, count(awaited) as awaited from core_tool_calls group by 1) c`).Scan(&got)
		if err != nil || got != want {
			t.Errorf("got %s, want %s, %v", got, want, err)
		}
	}
	count("ada 70 64, grace 1 1")
	testdb.Exec(t, owner,
		"select cancel_tool_call(id) from (select id from core_tool_calls where awaited and created_by = "+
			"'ada' limit 1) c")
	for range 2 {
		if _, err := as(t.Context(), db, "ada", client.NewCall{Tool: "shop.order", Awaited: true}); err != nil {
			t.Fatal(err)
		}
	}
	count("ada 72 65, grace 1 1")
}
