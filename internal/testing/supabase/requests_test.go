package supabase_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// call returns the body of an insert with further fields.
func call(more string) string {
	return strings.Replace(`{"tool_name": "a.b", }`, ", }", strings.TrimSuffix(", "+more, ", ")+"}", 1)
}

func TestRequestsThatNoClientSends(t *testing.T) {
	testdb.Long(t, "TestNoRefusalLetsACallersWordsIntoAnotherResponse")
	t.Parallel()
	d := newDesk(t, supabase.Options{})
	const calls = "/core_tool_calls"
	type header = map[string]string
	for _, c := range []struct {
		what    string
		request supabase.Request
		outcome string // the answer to a signed-in user
		says    string // a part of its message or hint
	}{
		{"another schema", supabase.Request{Path: "/limits", Header: header{"Accept-Profile": "gem"}}, "406 PGRST106", ""},
		{"an insert into another schema", supabase.Request{Method: "POST", Path: "/priorities", Body: `{"priority": 9}`,
			Header: header{"Content-Profile": "gem"}}, "406 PGRST106", ""},
		{"a function of another schema", supabase.Request{Method: "POST", Path: "/rpc/wake_workers", Body: `{}`,
			Header: header{"Content-Profile": "gem"}}, "406 PGRST106", ""},
		{"every call changed", supabase.Request{Method: "PATCH", Path: calls, Body: `{"status": "succeeded"}`}, "403 42501",
			""},
		{"every call deleted", supabase.Request{Method: "DELETE", Path: calls}, "403 42501", ""},
		{"every receipt deleted", supabase.Request{Method: "DELETE", Path: "/core_tool_receipts"}, "403 42501", ""},
		{"a call put in place of another", supabase.Request{Method: "PUT", Path: calls + "?id=eq.ADAS_CALL",
			Body: `{"id": "ADAS_CALL", "tool_name": "c.d"}`}, "403 42501", ""},
		{"an upsert", supabase.Request{Method: "POST", Path: calls, Body: call(`"id": "ADAS_CALL"`),
			Header: header{"Prefer": "resolution=merge-duplicates"}}, "403 42501", ""},
		{"columns that the body does not have", supabase.Request{Method: "POST", Path: calls + "?columns=tool_name,attempt",
			Body: call(``)}, "403 42501", ""},
		{"defaults for columns that are not hers", supabase.Request{Method: "POST",
			Path: calls + "?columns=tool_name,claimed_by", Body: call(``), Header: header{"Prefer": "missing=default"}},
			"403 42501", ""},
		{"a table in CSV", supabase.Request{Method: "POST", Path: calls, Body: "tool_name,attempt\na.b,3\n",
			Header: header{"Content-Type": "text/csv"}}, "403 42501", ""},
		{"a plan", supabase.Request{Path: calls, Header: header{"Accept": "application/vnd.pgrst.plan+json"}}, "415 PGRST107",
			""},
		{"an insert by a link", supabase.Request{Path: "/rpc/enqueue_tool_call?tool_name=a.b"}, "405 25006", ""},
		{"a cancel by a link", supabase.Request{Path: "/rpc/cancel_tool_call?id=ADAS_CALL"}, "405 25006", ""},
		{"arguments as one object", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call", Body: call(``),
			Header: header{"Prefer": "params=single-object"}}, "404 PGRST202", ""},

		{"no JSON", supabase.Request{Method: "POST", Path: calls, Body: `{"tool_name"`}, "400 PGRST102", ""},
		{"lists in a list", supabase.Request{Method: "POST", Path: calls, Body: `[[{"tool_name": "a.b"}]]`}, "400 PGRST102",
			""},
		{"rows with different keys and no columns", supabase.Request{Method: "POST", Path: calls,
			Body: `[{"tool_name": "a.b"}, {"tool_name": "a.b", "priority": 1}]`}, "400 PGRST102", "All object keys must match"},
		{"an unknown column", supabase.Request{Method: "POST", Path: calls, Body: call(`"owner": "me"`)}, "400 PGRST204",
			"owner"},
		{"no tool", supabase.Request{Method: "POST", Path: calls, Body: `{"input": {}}`}, "400 23514",
			"tool_name must be the name of a tool"},
		{"a tool without a name", supabase.Request{Method: "POST", Path: calls, Body: `{"tool_name": ""}`}, "400 23514",
			"tool_name must be the name of a tool"},
		{"a long name", supabase.Request{Method: "POST", Path: calls,
			Body: `{"tool_name": "` + strings.Repeat("x", 201) + `"}`}, "400 23514", "1 to 200 characters"},
		{"an input that is a text", supabase.Request{Method: "POST", Path: calls, Body: call(`"input": "{}"`)}, "400 23514",
			"not a string that contains JSON"},
		{"an input that is a list", supabase.Request{Method: "POST", Path: calls, Body: call(`"input": []`)}, "400 23514",
			"input must be a JSON object but is an array"},
		{"a NUL in the input", supabase.Request{Method: "POST", Path: calls, Body: call(`"input": {"a": "\u0000"}`)},
			"400 22P05", ""},
		{"a NUL in the name", supabase.Request{Method: "POST", Path: calls, Body: `{"tool_name": "a\u0000b"}`}, "400 22P05",
			""},
		{"half a character", supabase.Request{Method: "POST", Path: calls, Body: call(`"input": {"a": "\ud800"}`)},
			"400 PGRST102", ""},
		{"a number too large", supabase.Request{Method: "POST", Path: calls, Body: call(`"input": {"a": 1e200000}`)},
			"400 22003", ""},
		{"an id that is none", supabase.Request{Method: "POST", Path: calls, Body: call(`"id": "mine"`)}, "400 22P02", ""},
		{"a priority that is a word", supabase.Request{Method: "POST", Path: calls, Body: call(`"priority": "high"`)},
			"400 22P02", ""},
		{"a priority too high", supabase.Request{Method: "POST", Path: calls, Body: call(`"priority": 1001`)}, "400 23514",
			"must be from -1000 to 1000"},
		{"a time that is none", supabase.Request{Method: "POST", Path: calls, Body: call(`"run_at": "soon"`)}, "400 22007",
			""},
		{"a time too far ahead", supabase.Request{Method: "POST", Path: calls, Body: call(`"run_at": "2999-01-01"`)},
			"400 23514", "at most 366 days ahead"},
		{"a time without end", supabase.Request{Method: "POST", Path: calls, Body: call(`"run_at": "infinity"`)}, "400 23514",
			"at most 366 days ahead"},
		{"a long key", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"idempotency_key": "` + strings.Repeat("x", 256) + `"`)}, "400 23514", "at most 255 characters"},
		{"a long session", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"session_id": "` + strings.Repeat("x", 256) + `"`)}, "400 23514", "at most 255 characters"},
		{"a trace that is none", supabase.Request{Method: "POST", Path: calls, Body: call(`"traceparent": "00-1"`)},
			"400 23514", "traceparent must be"},
		{"an input of 300 KB", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"input": {"a": "` + strings.Repeat("x", 300_000) + `"}`)}, "400 23514", "may take 262144"},
		{"an input of many small values", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"input": {"a": [` + strings.Repeat("0, ", 100_000) + `0]}`)}, "400 23514", "may take 262144"},
		{"numbers that are short to say and long to write",
			supabase.Request{Method: "POST", Path: calls, Body: call(`"input": {"a": [` + strings.Repeat("1e131071, ", 8_000) +
				`0]}`)}, "400 23514", "a number beyond 1.7976931348623157e308"},
		{"an input of 8 MB", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"input": {"a": "` + strings.Repeat("x", 8_000_000) + `"}`)}, "400 23514", "input takes"},
		{"an input of 100,000 levels", supabase.Request{Method: "POST", Path: calls,
			Body: call(`"input": {"a": ` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`)}, "413 54001", ""},
		{"an id twice", supabase.Request{Method: "POST", Path: calls,
			Body: `[{"id": "NEW_CALL", "tool_name": "a.b"}, {"id": "NEW_CALL", "tool_name": "a.b"}]`}, "409 23505", ""},
		{"one bad row in a list", supabase.Request{Method: "POST", Path: calls,
			Body: `[{"tool_name": "a.b"}, {"tool_name": ""}]`}, "400 23514", "tool_name"},

		{"no arguments", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call", Body: `{}`}, "404 PGRST202", ""},
		{"no tool to enqueue", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call", Body: `{"tool_name": null}`},
			"400 23514", "tool_name must be the name of a tool"},
		{"a wrong input to enqueue", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call",
			Body: call(`"input": "x"`)}, "400 23514", "input must be a JSON object"},
		{"a wrong id to enqueue", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call", Body: call(`"id": "x"`)},
			"400 22P02", ""},
		{"another key under an id", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call",
			Body: `{"tool_name": "os.create_note", "id": "ADAS_ENDED", "idempotency_key": "other"}`}, "409 23505",
			"A new call needs a new id"},
		{"another input under an id", supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call",
			Body: `{"tool_name": "os.create_note", "id": "ADAS_CALL"}`}, "409 23505", "A new call needs a new id"},
		{"a receipt of nothing", supabase.Request{Method: "POST", Path: "/rpc/get_receipt", Body: `{}`}, "404 PGRST202", ""},
		{"a receipt of a word", supabase.Request{Method: "POST", Path: "/rpc/get_receipt", Body: `{"call_id": "x"}`},
			"400 22P02", ""},
		{"a receipt of null", supabase.Request{Method: "POST", Path: "/rpc/get_receipt", Body: `{"call_id": null}`},
			"404 PT404", ""},
		{"an end of null", supabase.Request{Method: "POST", Path: "/rpc/cancel_tool_call", Body: `{"id": null}`}, "404 PT404",
			""},
	} {
		r := c.request
		r.Path, r.Body = ids.Replace(r.Path), ids.Replace(r.Body)
		if r.Method == "" {
			r.Method = "GET"
		}
		d.unchanged("a visitor: "+c.what, func() {
			if a := d.Send(r); a.Status < 400 {
				t.Errorf("a visitor: %s: %s", c.what, a.Outcome())
			}
		})
		r.Token = d.User("ada")
		d.unchanged(c.what, func() {
			a := d.Send(r)
			if a.Outcome() != c.outcome || !strings.Contains(a.Message+" "+a.Hint, c.says) {
				t.Errorf("%s: got %s: %s (%s), want %s: %s", c.what, a.Outcome(), a.Message, a.Hint, c.outcome, c.says)
			}
		})
	}
}

func TestRequestsOfOtherClientsThatAreFine(t *testing.T) {
	testdb.Long(t, "TestTheLifeOfACallAsItsFrontendSeesIt")
	t.Parallel()
	d := newDesk(t, supabase.Options{})
	type header = map[string]string
	const trace, sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00"
	for _, c := range []struct {
		what, path, body string
		header           header
		want             string
	}{
		{"what the columns leave out is ignored", "?columns=tool_name&select=tool_name,created_by,attempt",
			call(`"created_by": "grace", "attempt": 7`),
			header{}, `[{"tool_name":"a.b","created_by":"ada","attempt":0}]`},
		{"nulls", "?select=input,priority,status", call(
			`"id": null, "input": null, "priority": null, "status": null, "run_at": null, "idempotency_key": null`),
			header{}, `[{"input":{},"priority":0,"status":"queued"}]`},
		{"defaults", "?columns=tool_name,id,input,priority,status&select=input,priority,status",
			`[{"tool_name": "a.b"}, {"tool_name": "a.b", "priority": -4}]`,
			header{"Prefer": "missing=default, return=representation"},
			`[{"input":{},"priority":0,"status":"queued"}, {"input":{},"priority":-4,"status":"queued"}]`},
		{"nothing at all", "?select=id", `[]`, header{}, `[]`},
		{"CSV", "?select=tool_name,priority", "tool_name,priority\na.b,-2\n", header{"Content-Type": "text/csv"},
			`[{"tool_name":"a.b","priority":-2}]`},
		{"the trace of the request", "?select=traceparent", call(``), header{"traceparent": trace},
			`[{"traceparent":"` + trace + `"}]`},
		{"the trace of the call goes first", "?select=traceparent", call(`"traceparent": "` + sampled + `"`),
			header{"traceparent": trace}, `[{"traceparent":"` + sampled + `"}]`},
		{"a trace that is none in the request", "?select=traceparent", call(``), header{"traceparent": "x"},
			`[{"traceparent":null}]`},
		{"no rollback on demand", "?select=status", call(`"id": "NEW_CALL"`),
			header{"Prefer": "tx=rollback, return=representation"}, `[{"status":"queued"}]`},
	} {
		if c.header["Prefer"] == "" {
			c.header["Prefer"] = "return=representation"
		}
		a := d.Send(supabase.Request{Method: "POST", Path: "/core_tool_calls" + c.path, Body: ids.Replace(c.body),
			Header: c.header, Token: d.User("ada")})
		if got := strings.ReplaceAll(string(a.Data), ", \n ", ", "); a.Status != 201 || got != c.want {
			t.Errorf("%s: got %s %s %s, want %s", c.what, a.Outcome(), a.Message, got, c.want)
		}
	}
	if n := d.Value("select count(*) from core_tool_calls where created_by = 'ada'"); n != "11" {
		t.Errorf("ada has %s calls, want 11", n)
	}
}

// PostgREST describes the API to any client, but only what the client may use.
func TestAVisitorIsToldOfNothing(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	for _, c := range []struct {
		who, token string
		sees       bool
	}{{"ada", p.User("ada"), true}, {"a visitor", "", false}} {
		a := p.Send(supabase.Request{Method: "GET", Path: "/", Token: c.token})
		var api struct{ Paths map[string]any }
		if err := json.Unmarshal(a.Data, &api); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/core_tool_calls", "/core_tool_receipts", "/core_tool_events",
			"/rpc/enqueue_tool_call", "/rpc/get_receipt", "/rpc/cancel_tool_call"} {
			if _, sees := api.Paths[path]; sees != c.sees {
				t.Errorf("%s is told of %s: %v", c.who, path, sees)
			}
		}
		for _, path := range []string{"/core_workers", "/core_registry_versions", "/notes"} {
			if _, sees := api.Paths[path]; sees {
				t.Errorf("%s is told of %s", c.who, path)
			}
		}
	}
}

func TestTokensThatTheProjectDidNotSign(t *testing.T) {
	testdb.Long(t, "TestATokenWithoutAnOwnerOwnsNothing")
	t.Parallel()
	d := newDesk(t, supabase.Options{OlderProject: true})
	type claims = supabase.Claims
	hs256 := claims{"alg": "HS256", "typ": "JWT"}
	hers, other := claims{"role": "authenticated", "sub": "ada"}, strings.Repeat("guessed-", 4)
	header, signature := strings.Split(d.User("ada"), ".")[0], strings.Split(d.User("ada"), ".")[2]
	changed := header + "." + strings.Split(supabase.Token(hs256, claims{"role": "service_role"}, other), ".")[1] + "." +
		signature
	hour := time.Now().Add(time.Hour).Unix()

	for _, c := range []struct{ what, token, outcome string }{
		{"no token at all", "not-a-token", "401 PGRST301"},
		{"a token of nothing", "..", "401 PGRST301"},
		{"another secret", supabase.Token(hs256, hers, other), "401 PGRST301"},
		{"another secret, as the server", supabase.Token(hs256, claims{"role": "service_role"}, other), "401 PGRST301"},
		{"no signature", supabase.Token(claims{"alg": "none"}, claims{"role": "service_role"}, ""), "401 PGRST301"},
		{"a signature cut off", strings.TrimSuffix(d.User("ada"), signature), "401 PGRST301"},
		{"an algorithm of key pairs", supabase.Token(claims{"alg": "RS256", "typ": "JWT"}, hers, other), "401 PGRST301"},
		{"changed claims", changed, "401 PGRST301"},
		{"expired", d.Sign(claims{"role": "authenticated", "sub": "ada", "exp": time.Now().Add(-time.Hour).Unix()}),
			"401 PGRST301"},
		{"not yet valid", d.Sign(claims{"role": "authenticated", "sub": "ada", "nbf": hour}), "401 PGRST301"},
		// Signed, with a role that does not belong to the API.
		{"the role postgres", d.Sign(claims{"role": "postgres", "sub": "ada"}), "403 42501"},
		{"the worker's role", d.Sign(claims{"role": "gem_worker", "sub": "ada"}), "403 42501"},
		{"the owner's role", d.Sign(claims{"role": "gem_test_supabase_owner", "sub": "ada"}), "403 42501"},
		{"a role that is not there", d.Sign(claims{"role": "nobody", "sub": "ada"}), "400 22023"},
		{"a role that is SQL", d.Sign(claims{"role": `anon"; set role "postgres`, "sub": "ada"}), "400 22023"},
		// Signed, as a visitor.
		{"no role", d.Sign(claims{"sub": "ada"}), "401 42501"},
		{"a visitor with her id", d.Sign(claims{"role": "anon", "sub": "ada"}), "401 42501"},
	} {
		for _, r := range []supabase.Request{
			{Method: "GET", Path: "/core_tool_calls"},
			{Method: "POST", Path: "/core_tool_calls", Body: call(``)},
			{Method: "POST", Path: "/rpc/enqueue_tool_call", Body: call(``)},
			{Method: "POST", Path: "/rpc/cancel_tool_call", Body: ids.Replace(`{"id": "ADAS_CALL"}`)},
			{Method: "POST", Path: "/rpc/get_receipt", Body: ids.Replace(`{"call_id": "ADAS_ENDED"}`)},
		} {
			r.Token = c.token
			d.unchanged(c.what, func() {
				if a := d.Send(r); a.Outcome() != c.outcome {
					t.Errorf("%s: %s %s: got %s (%s), want %s", c.what, r.Method, r.Path, a.Outcome(), a.Message, c.outcome)
				}
			})
		}
	}
}

// Tokens of unknown people, signed by the project.
func TestATokenWithoutAnOwnerOwnsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t, supabase.Options{OlderProject: true})
	type claims = supabase.Claims
	for _, c := range []struct {
		what   string
		claims claims
		insert string
	}{
		{"no sub", claims{"role": "authenticated"}, "403 42501"},
		{"a null sub", claims{"role": "authenticated", "sub": nil}, "403 42501"},
		{"an empty sub", claims{"role": "authenticated", "sub": ""}, "403 42501"},
		{"a sub of 256 characters", claims{"role": "authenticated", "sub": strings.Repeat("x", 256)}, "400 23514"},
	} {
		token := d.Sign(c.claims)
		if a := d.Send(supabase.Request{Method: "GET", Path: "/core_tool_calls?select=id", Token: token}); string(
			a.Data) != "[]" {
			t.Errorf("%s reads %s %s", c.what, a.Outcome(), a.Data)
		}
		for _, r := range []struct{ path, body, outcome string }{
			{"/core_tool_calls", call(``), c.insert},
			{"/rpc/enqueue_tool_call", call(``), c.insert},
			{"/core_tool_calls", call(`"created_by": "grace"`), "403 42501"},
			{"/rpc/cancel_tool_call", `{"id": "NOBODYS_CALL"}`, "404 PT404"},
			{"/rpc/cancel_tool_call", `{"id": "ADAS_CALL"}`, "404 PT404"},
			{"/rpc/get_receipt", `{"call_id": "ADAS_ENDED"}`, "404 PT404"},
		} {
			d.unchanged(fmt.Sprint(c.what, r), func() {
				if a := d.Send(supabase.Request{Method: "POST", Path: r.path, Body: ids.Replace(r.body),
					Token: token}); a.Outcome() != r.outcome {
					t.Errorf("%s: %s %s: got %s (%s), want %s", c.what, r.path, r.body, a.Outcome(), a.Message, r.outcome)
				}
			})
		}
	}
	// Metadata that a user may write into a token is not a role.
	token := d.Sign(claims{"role": "authenticated", "sub": "mallory", "user_metadata": claims{"role": "service_role"},
		"user_role": "service_role"})
	d.unchanged("a role in the metadata", func() {
		if a := d.Send(supabase.Request{Method: "GET", Path: "/core_tool_calls?select=id", Token: token}); string(
			a.Data) != "[]" {
			t.Errorf("a role in the metadata reads %s %s", a.Outcome(), a.Data)
		}
		if a := d.Send(supabase.Request{Method: "POST", Path: "/core_tool_calls", Body: call(`"created_by": "grace"`),
			Token: token}); a.Outcome() != "403 42501" {
			t.Errorf("a role in the metadata inserts: %s", a.Outcome())
		}
	})
}
