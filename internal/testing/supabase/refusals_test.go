package supabase_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/supabase"
)

// hostile is a text that starts a second response if it becomes part of a status line.
const hostile = "x\r\nSet-Cookie: session=stolen\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: " +
	"7\r\n\r\n<html>\r\n\x1b]0;owned\x07\u202e\u00fc\""

// hostileSub is such a text for the subject of a token, where PostgREST accepts a colon only in a URI.
var hostileSub = strings.ReplaceAll(hostile, ":", "=")

// quoted returns a text as a JSON string.
func quoted(text string) string {
	encoded, _ := json.Marshal(text)
	return string(encoded)
}

// watched replaces gem.refuse with a function that adds the place of its call as the detail, so that a test knows which
// refusals it has met. The refusal itself is unchanged.
const watched = `
	alter function gem.refuse(text, text, text, text[]) rename to refuse_as_before;
	create function gem.refuse(p_code text, p_message text, p_hint text default null,
		variadic p_words text[] default '{}') returns void language plpgsql as $$
	declare place text; code text; hint text;
	begin
		get diagnostics place = pg_context;
		perform gem.refuse_as_before(p_code, p_message, p_hint, variadic p_words);
	exception when others then
		get stacked diagnostics code = returned_sqlstate, hint = pg_exception_hint;
		raise exception using errcode = code, message = sqlerrm, hint = hint, detail = place;
	end $$`

var place = regexp.MustCompile(`PL/pgSQL function ([a-z_.]+)\([^)]*\) line (\d+) at PERFORM`)

// metBy returns the refusal that a response contains, as function and line, or "".
func metBy(body string) string {
	var e struct{ Details string }
	_ = json.Unmarshal([]byte(body), &e)
	if m := place.FindStringSubmatch(e.Details); m != nil {
		return m[1] + ":" + m[2]
	}
	return ""
}

// notForFrontends has the refusals that no request to PostgREST can meet, with the reason. The keys are parts of their
// statements, or their functions.
var notForFrontends = map[string]string{
	"has ended a step":         "a request is one statement",
	"'GM0":                     "workers alone call the function: it moves calls",
	"'GM102'":                  "workers alone call the function: it runs a tool in SQL",
	"gem.note_effect:":         "tools in SQL call it",
	"gem.noted_effects:":       "tools in SQL call it",
	"gem.wrote:":               "tools in SQL call it",
	"gem.read:":                "tools in SQL call it",
	"gem.run_tool:":            "workers alone call it",
	"gem.step:":                "workers alone call it",
	"gem.check_restoring:":     "workers alone call what calls it",
	"gem.check_claim_code:":    "workers alone call what calls it",
	"gem.check_call_change:":   "frontends may not update calls",
	"gem.check_receipt:":       "frontends may not write receipts",
	"gem.refuse_change:":       "frontends may not change or delete anything",
	"the operator''s name may": "operators name themselves, and a user's subject is bounded before",
	"gem.operator_cancel:":     "operators call it, in Postgres itself",
	"gem.operator_again:":      "operators call it, in Postgres itself",
	"gem.llm_correct:":         "operators call it, in Postgres itself",
	"gem.cron_times:":          "operators call it, in Postgres itself",
	"gem.settle_schedule:":     "it takes a call that stays locked, or more instants than a request has time for",
	"'signed-in users cannot have schedules: ": "gem migrate has made the role, with its rights",
	"gem.backfill_schedule:":                   "operators call it, in Postgres itself",
	"gem.parked:":                              "gem mcp calls it, in Postgres itself",
	"gem.ended:":                               "gem mcp calls it, in Postgres itself",
	"may answer only as itself":                "logins other than frontends call it, in Postgres itself",
}

// limited sends requests under other limits.
func (d desk) limited(limits, caller string, send func()) {
	d.t.Helper()
	d.Exec("update gem.limits set " + limits)
	send()
	d.Exec("delete from gem.limits; insert into gem.limits default values; delete from gem.answers where subject = '" +
		caller + "'")
}

// A response has exactly the lines that PostgREST intends, whatever names a caller chose.
func TestNoRefusalLetsACallersWordsIntoAnotherResponse(t *testing.T) {
	t.Parallel()
	d := newDesk(t, supabase.Options{})
	d.Exec(watched)
	wire := d.Wire()
	met := map[string]string{}
	user := func(sub string) string {
		return d.Sign(supabase.Claims{"role": "authenticated", "sub": sub, "email": hostile,
			"exp": time.Now().Add(time.Hour).Unix()})
	}
	known := regexp.MustCompile(
		`^(Date|Server|Content-Type|Content-Length|Content-Range|Transfer-Encoding|WWW-Authenticate|Proxy-Status|Content-Location|Location|Allow|Preference-Applied): [ -~]{0,350}$`)
	send := func(what string, r supabase.Request) supabase.WireAnswer {
		t.Helper()
		r.Path, r.Body = ids.Replace(r.Path), ids.Replace(r.Body)
		a := wire.Send(r)
		if len(a.StatusLine) > 350 || !regexp.MustCompile(`^HTTP/1\.1 [2-5]\d\d [ -~]*$`).MatchString(a.StatusLine) {
			t.Errorf("%s: the status line is %.400q", what, a.StatusLine)
		}
		for _, line := range a.Headers {
			if !known.MatchString(line) {
				t.Errorf("%s: the response has the line %.200q", what, line)
			}
		}
		if left := wire.Left(); left != "" {
			t.Errorf("%s: behind the response is %.200q", what, left)
		}
		next := wire.Send(supabase.Request{Method: "GET",
			Path: ids.Replace("/core_tool_calls?select=tool_name&id=eq.GRACES_CALL"), Token: user("grace")})
		if next.StatusLine != "HTTP/1.1 200 OK" || next.Body != `[{"tool_name":"os.create_note"}]` {
			t.Fatalf("%s: the next response on the connection is %.200q %.200q", what, next.StatusLine, next.Body)
		}
		return a
	}
	// refused sends a request that must be refused, and records the refusal.
	refused := func(what string, r supabase.Request, says string) {
		t.Helper()
		a := send(what, r)
		var e struct{ Message, Hint string }
		if err := json.Unmarshal([]byte(a.Body), &e); err != nil || !strings.Contains(e.Message, says) || says == "" {
			t.Errorf("%s: %s %.300s does not say %s", what, a.StatusLine, a.Body, says)
		}
		printable := regexp.MustCompile(`^[ -~]{0,300}$`)
		by := metBy(a.Body)
		if by != "" {
			met[by] = what
			if !printable.MatchString(e.Message) || !printable.MatchString(e.Hint) {
				t.Errorf("%s: %.400q (%.400q)", what, e.Message, e.Hint)
			}
		}
	}
	post := func(sub, path, body string) supabase.Request {
		return supabase.Request{Method: "POST", Path: path, Token: user(sub), Body: body}
	}
	insert := func(what, sub, fields, says string) {
		t.Helper()
		refused(what, post(sub, "/core_tool_calls", `{"tool_name": "a.b", `+fields+`}`), says)
	}
	answer := func(what, id, value, says string) {
		t.Helper()
		refused(what, post(hostileSub, "/rpc/answer_tool_call", `{"call_id": "`+id+`", "answer": `+value+`}`), says)
	}
	long := strings.Repeat("x", 300_000)

	// Inserts.
	insert("a number", "ada", `"input": {"a": 1e500}`, "a number beyond 1.7976931348623157e308")
	insert("a large input", "ada", `"input": {"a": `+quoted(hostile+long)+`}`, "may take 262144")
	insert("a status", "ada", `"status": `+quoted(hostile), `status is "x??Set-Cookie`)
	refused("a tool's name", post("ada", "/core_tool_calls", `{"tool_name": `+quoted(hostile+hostile+hostile)+`}`),
		"of 1 to 200 characters")
	insert("an input that is a text", "ada", `"input": `+quoted(hostile), "input must be a JSON object but is a string")
	insert("a key", "ada", `"idempotency_key": `+quoted(hostile+long), "at most 255 characters")
	insert("a session", "ada", `"session_id": `+quoted(hostile+long), "at most 255 characters")
	insert("a priority", "ada", `"priority": 1001`, "from -1000 to 1000")
	insert("a priority of others", "ada", `"priority": 1`, "from -10 to 0")
	insert("a time", "ada", `"run_at": "2999-01-01"`, "366 days ahead")
	insert("a trace", "ada", `"traceparent": `+quoted(hostile), "traceparent must be")
	insert("a subject", hostileSub+hostileSub+hostileSub, `"input": {}`, "created_by may have")
	insert("an id of a key", "ada", `"id": "0b8f6e1c-3a52-8c1e-9f63-2d7a1b9c4e55"`, "is a UUID of version 8")
	insert("a parent", "ada", `"parent_call_id": "NO_CALL"`, "parent_call_id names no call of yours")
	chain := `{"tool_name": "a.b", "id": "00000000-0000-7000-8000-000000000200", "parent_call_id": null}`
	for i := range 9 {
		chain += fmt.Sprintf(`, {"tool_name": "a.b", "id": "00000000-0000-7000-8000-0000000002%02d", `+
			`"parent_call_id": "00000000-0000-7000-8000-0000000002%02d"}`, i+1, i)
	}
	refused("a chain of parents", post("ada", "/core_tool_calls", "["+chain+"]"),
		"call 00000000-0000-7000-8000-000000000208 has 8 or more calls above it")
	// Schedules.
	schedule := func(what, token, fields, says string) {
		t.Helper()
		var body map[string]any
		if err := json.Unmarshal([]byte(`{"name": "s", "cron": "@daily", "tool_name": "a.b"}`), &body); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(`{`+fields+`}`), &body); err != nil {
			t.Fatal(what, err)
		}
		encoded, _ := json.Marshal(body)
		refused(what, supabase.Request{Method: "POST", Path: "/rpc/schedule_tool_call", Token: token, Body: string(encoded)},
			says)
	}
	schedule("a schedule", user("ada"), ``, "signed-in users may not have schedules here")
	d.limited("max_schedules = 1", "ada", func() {
		for what, c := range map[string][2]string{
			"a schedule's name":      {`"name": ` + quoted(hostile), `the name "x??Set-Cookie`},
			"a schedule's tool":      {`"tool_name": ""`, "the registry has no tool"},
			"a schedule's input":     {`"input": [1]`, "the input must be a JSON object"},
			"options":                {`"options": [1]`, "the options must be a JSON object"},
			"an option":              {`"options": {` + quoted(hostile) + `: 1}`, `do not have the option "x??Set-Cookie`},
			"a value of an option":   {`"options": {"missed_within": ` + quoted(hostile) + `}`, "the options cannot be read"},
			"missed":                 {`"options": {"missed": ` + quoted(hostile) + `}`, `missed is "x??Set-Cookie`},
			"overlap":                {`"options": {"overlap": ` + quoted(hostile) + `}`, `overlap is "x??Set-Cookie`},
			"missed_within":          {`"options": {"missed_within": "32 days"}`, "from 0 to 31 days"},
			"jitter":                 {`"options": {"jitter": "2 hours"}`, "from 0 to 1 hour"},
			"a schedule's priority":  {`"options": {"priority": 2000}`, "from -1000 to 1000"},
			"a schedule's session":   {`"options": {"session_id": ` + quoted(hostile+long) + `}`, "at most 255 characters"},
			"a begin":                {`"options": {"starts_at": "2999-01-01"}`, "from 1970 to 8 years ahead"},
			"an end":                 {`"options": {"ends_at": "2000-01-01"}`, "would never run"},
			"a day that never comes": {`"cron": "0 0 30 2 *"`, "no instant in eight years"},
			"no expression":          {`"cron": null`, "needs a cron expression"},
			"a long expression":      {`"cron": "` + strings.Repeat("1,", 100) + `1 * * * *"`, "at most 200 characters"},
			"an endless end":         {`"options": {"ends_at": "infinity"}`, "from 1970 to 9999"},
			"an expression":          {`"cron": ` + quoted(hostile), `the cron expression "x??`},
			"a field of one":         {`"cron": "x\r\ny:z * * * *"`, "cannot be read"},
			"a step of one":          {`"cron": "5/2 * * * *"`, "has a step without a range"},
			"times that are near":    {`"cron": "* * * * *"`, "times that are 00:01:00 apart"},
			"a time zone":            {`"zone": ` + quoted(hostile), `the time zone "x??Set-Cookie`},
			"another's schedule":     {`"created_by": ` + quoted(hostile), "another user than you"},
		} {
			schedule(what, user("ada"), c[0], c[1])
		}
		schedule("a visitor's schedule", d.Sign(supabase.Claims{"role": "authenticated", "sub": "x", "is_anonymous": true}), ``,
			"no anonymous visitors")
		schedule("nobody's schedule", d.Sign(supabase.Claims{"role": "authenticated"}), ``, "the token has no subject")
		schedule("a schedule of a subject", user(hostileSub+hostileSub+hostileSub), ``, "created_by may have at most 255")
		schedule("a server's for a subject", d.Server(), `"created_by": `+quoted(long), "has 1 to 255 characters")
		d.Exec("select gem.save_schedule('theirs', '@daily', 'a.b', p_of => 'ada')")
		refused("an operator's schedule", post("ada", "/rpc/pause_tool_schedule", `{"name": "theirs"}`),
			"an operator made the schedule theirs")
		schedule("one schedule more", user("ada"), ``, "you may have 1")
		d.Exec("select gem.remove_schedule('theirs', 'ada'); select gem.save_schedule('s', '@daily', 'a.b', p_of => 'ada', " +
			"p_signed_in => true); select gem.pause_schedule('s', 'ada', 'boss')")
		refused("a long reason", post("ada", "/rpc/pause_tool_schedule", `{"name": "s", "reason": `+quoted(hostile+long)+`}`),
			"may have at most 1000")
		refused("a schedule that an operator paused", post("ada", "/rpc/resume_tool_schedule", `{"name": "s"}`),
			"an operator paused the schedule s")
		refused("to remove what an operator paused", post("ada", "/rpc/remove_tool_schedule", `{"name": "s"}`),
			"an operator paused the schedule s")
		d.Exec("select gem.pause_schedules_of('ada', 'boss')")
		schedule("a schedule next to paused ones", user("ada"), ``, "an operator has paused your schedules")
		refused("no schedule", post("ada", "/rpc/remove_tool_schedule", `{"name": `+quoted(hostile)+`}`), "does not exist")
	})
	d.Exec(`select gem.record_registry('1', repeat('a', 64), '{"version": "1", "tools": [{"name": ` +
		strings.ReplaceAll(quoted(hostile), "'", "''") + `,
			"permissions": ["send:email"], "input_schema": true, "output_schema": {}, "idempotency": {"mode": "none"},
				"timeout_ms": 1}]}');
		select gem.start_worker('one', 1, '', '1', '1 hour')`)
	refused("a closed tool", post("ada", "/core_tool_calls", `{"tool_name": `+quoted(hostile)+`}`),
		`"x??Set-Cookie: session=stolen??Access`)
	refused("the id of another's call", post("ada", "/rpc/enqueue_tool_call", `{"tool_name": "a.b", "id": "GRACES_CALL"}`),
		"another call with the id")
	refused("a parent to enqueue", post("ada", "/rpc/enqueue_tool_call",
		`{"tool_name": "a.b", "parent_call_id": "NO_CALL"}`), "no call of yours")
	d.limited("max_open_calls = 1", "ada", func() {
		refused("more calls than may be open", post("ada", "/core_tool_calls",
			`[{"tool_name": "a.b"}, {"tool_name": "a.b"}]`), "too many open calls")
		insert("one call more than may be open", "ada", `"input": {}`, "too many open calls")
	})
	d.limited("max_run_ahead = '1 hour'", "ada", func() {
		insert("a time ahead", "ada", `"run_at": "`+time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339)+`"`,
			"at most 01:00:00 ahead")
	})
	d.limited("max_calls_per_hour = 1", "ada", func() {
		insert("calls in an hour", "ada", `"input": {}`, "too many calls in an hour")
	})
	d.limited("max_bytes_per_hour = 1", "ada", func() {
		insert("bytes in an hour", "ada", `"input": {}`, "too much input in an hour")
	})

	refused("the name of a field", post("ada", "/core_tool_calls",
		`{"tool_name": "wait.answer", "input": {"schema": {"type": "object", "properties": {"a": {}, `+
			quoted(hostile)+`: {"type": "string"}}}}}`), `schema has the field "x??Set-Cookie`)
	refused("a long name of a field", post("ada", "/core_tool_calls",
		`{"tool_name": "wait.event", "input": {"schema": {"properties": {`+quoted(long[:101])+`: {}}}}}`),
		"a field name has 1 to 100 characters")
	var fields strings.Builder
	for i := range 51 {
		fmt.Fprintf(&fields, `, "f%d": {}`, i)
	}
	refused("many fields", post("ada", "/core_tool_calls",
		`{"tool_name": "wait.answer", "input": {"schema": {"properties": {`+fields.String()[2:]+`}}}}`),
		"schema has 51 fields, and may have at most 50")
	refused("many people", post("ada", "/core_tool_calls",
		`{"tool_name": "wait.answer", "input": {"by": [`+strings.Repeat(`"owner",`, 20)+`"owner"]}}`),
		"by has 21 entries, and may have at most 20")
	d.Exec("insert into gem.role_settings values ('boss', now(), 'postgres')")
	question := `{"tool_name": "wait.answer", "input": {"text": ` + quoted(hostile) + `, "by": ["role:boss", ` +
		quoted("role:"+hostile) + `]}}`
	refused("a closed role", post("ada", "/core_tool_calls", question), "the role boss is closed")
	d.Exec("delete from gem.role_settings")
	d.limited("max_open_questions = 0", "ada", func() {
		refused("more questions than may be open", post("ada", "/core_tool_calls", question), "too many open questions")
	})

	refused("a thousand and one questions", post("ada", "/rpc/find_open_questions",
		`{"call_ids": [`+strings.Repeat(`"00000000-0000-7000-8000-000000000001",`, 1000)+
			`"00000000-0000-7000-8000-000000000001"]}`),
		"takes at most 1000 calls, and got 1001")

	// Receipts and cancellation.
	refused("a receipt", post("ada", "/rpc/get_receipt", `{"call_id": "GRACES_CALL"}`), "you may not see it")
	refused("an end", post("ada", "/rpc/cancel_tool_call", `{"id": "GRACES_CALL"}`), "you may not cancel it")

	// Answers, to a question that its caller wrote.
	id := func(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-0000000001%02d", n) }
	ask := func(n int, tool, input string) string {
		t.Helper()
		a := send("a question", supabase.Request{Method: "POST", Path: "/core_tool_calls", Token: d.Server(),
			Body: `{"id": "` + id(n) + `", "tool_name": "` + tool + `", "created_by": ` + quoted(hostileSub) + `, "input": ` +
				input + `}`})
		if a.StatusLine != "HTTP/1.1 201 Created" {
			t.Errorf("the question %s is refused: %s %s", input, a.StatusLine, a.Body)
		}
		return id(n)
	}
	text := ask(1, "wait.answer", `{"text": "?", "schema": {"type": "string", "minLength": 2, "maxLength": 300}}`)
	answer("another's question", "GRACES_CALL", "1", "that you can answer")
	answer("a number to answer", text, `{"a": 1e500}`, "a number beyond 1.7976931348623157e308")
	answer("a large answer", text, quoted(long), "may take 65536")
	answer("a deep answer", text, strings.Repeat("[", 101)+strings.Repeat("]", 101), "100 levels")
	refused("the name of an answer", post(hostileSub, "/rpc/answer_tool_call",
		`{"call_id": "`+text+`", "answer": 1, "name": `+quoted("#"+hostile)+`}`), "name must have")
	refused("another name", post(hostileSub, "/rpc/answer_tool_call",
		`{"call_id": "`+text+`", "answer": 1, "name": `+quoted(hostile)+`}`), "takes one answer")
	d.Exec(`insert into core_tool_calls (id, tool_name, input, created_by, run_at) values ('` + id(12) +
		`', 'wait.answer', '{"text": "?"}', '` + strings.ReplaceAll(hostileSub, "'", "''") + `', now() + interval '1 day')`)
	answer("a question before its time", id(12), `"yes"`, "and takes no answer before")
	answer("an object for a text", text, `{`+quoted(hostile)+`: `+quoted(hostile)+`}`, "must be of type string, and is ")
	answer("too short a text", text, `"x"`, "has 1 characters, and must have 2 to 300")
	answer("text for a number", ask(2, "wait.answer", `{"schema": {"type": "number"}}`), quoted(hostile),
		`is the text "x??Set-Cookie`)
	answer("a schema that is none", ask(11, "wait.answer",
		`{"schema": {"type": "number", "minimum": `+quoted(hostile)+`}}`), "4", "cannot be used")
	answer("a small number", ask(3, "wait.answer", `{"schema": {"type": "number", "minimum": 5, "maximum": 6}}`), "4",
		"is 4, and must be at least 5")
	answer("a large number", id(3), "7", "is 7, and must be at most 6")
	answer("one of many", ask(4, "wait.answer", `{"schema": {"type": "string", "enum": [`+
		strings.Repeat(quoted(hostile)+", ", 90)+`"y"]}}`), quoted(hostile+hostile), `must be one of "x?`)
	d.Exec(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, status, priority, level, attempt, created_at, updated_at, run_at,
			events, created_by, signed_in, steps, retries, losses, kills, answer_by,
			answer_others)
		select '` + id(5) + `', tool_name, ` + "'" + `{"schema": {"type": "object", "required": [` + quoted(hostile) +
		`], "properties": {` + quoted(hostile) + `: {"type": "string"}}}}` + "'" + `,
			status, priority, level, attempt, created_at, updated_at, run_at, events, created_by, signed_in, steps,
			retries, losses, kills, answer_by, answer_others from core_tool_calls where id = '` + text + `'`)
	answer("a field that is missing", id(5), `{}`, `the answer needs the field "x??Set-Cookie: session=stolen`)
	answer("a field too many", id(5), `{`+quoted(hostile)+`: "y", "z": 1}`, `has a field z, and takes only "x??Set-Cookie`)
	answer("a field of another type", id(5), `{`+quoted(hostile)+`: 1}`, `"/x??Set-Cookie: session=stolen`)
	if a := send("an answer", post(hostileSub, "/rpc/answer_tool_call",
		`{"call_id": "`+text+`", "answer": "yes"}`)); a.Body != `"answered"` {
		t.Errorf("an answer that fits: %s %s", a.StatusLine, a.Body)
	}
	answer("another answer", text, `"no"`, `already has another answer, by "x??Set-Cookie= session`)
	ask(10, "wait.answer", `{"text": "?"}`)
	d.Exec(`set session_replication_role = replica;
		update core_tool_calls set tool_name = 'wait.approval', answer_by = array['user:' || created_by] where id = '` + id(10) + `';
		insert into core_tool_events (call_id, seq, at, event, attempt, data) select id, 2, now(), 'answered', 0,
			jsonb_build_object('name', '#answer', 'value', '{"approved": true}'::jsonb, 'by', created_by) from core_tool_calls
				where id = '` + id(10) + `'`)
	answer("another decision", id(10), `{"approved": false}`, `was already approved by "x??Set-Cookie= session`)
	d.Exec(`select cancel_tool_call('` + id(2) +
		`'); update core_tool_calls set cancel_requested_at = now() where id = '` + id(3) + `'`)
	answer("a question that has ended", id(2), "1", "has ended as failed")
	answer("a question that is being cancelled", id(3), "5", "is being cancelled")
	answer("a late answer", ask(6, "wait.answer", `{"until": "2020-01-01T00:00:00Z"}`), `"x"`, "the time for this answer")
	ask(7, hostileTool, `{}`)
	d.Exec(`insert into core_tool_events (call_id, seq, at, event, attempt, data)
		select '` + id(7) +
		`', n + 1, now(), 'answered', 0, jsonb_build_object('name', '#n' || n) from generate_series(1, 100) n`)
	answer("the 101st answer", id(7), "1", "has 100 answers")
	d.limited("max_calls_per_hour = 1", "ada", func() {
		answer("answers in an hour", ask(8, "wait.answer", `{"text": "?"}`), `"x"`, "too many answers in an hour")
	})
	ask(9, "wait.answer", `{"text": "?"}`)
	d.Exec(`set session_replication_role = replica; update core_tool_calls set parent_step = '##rules', parent_call_id = '` + text + `' where id = '` + id(9) + `'`)
	refused("the end of a question of rules", post(hostileSub, "/rpc/cancel_tool_call", `{"id": "`+id(9)+`"}`),
		"is a rule's question about call")

	// Documents.
	document := func(fields string) supabase.Request {
		return post("ada", "/extract_document_parts", `{"document_id": "ADAS_CALL", `+fields+`}`)
	}
	refused("a title", post("ada", "/extract_documents", `{"title": `+quoted(strings.Repeat(hostile, 4))+`}`),
		"title may have")
	refused("a part of no document", document(`"text": `+quoted(hostile)), "there is no document")
	send("a document", post("ada", "/extract_documents", `{"id": "ADAS_CALL", "title": `+quoted(hostile)+`}`))
	refused("a part out of order", document(`"seq": 9, "text": "x"`), "the next part")
	refused("an empty part", document(`"text": ""`), "text is empty")
	refused("a large part", document(`"text": `+quoted(strings.Repeat(hostile, 5_000))), "a part may take")
	d.Exec(ids.Replace(`set session_replication_role = replica;
		insert into extract_document_parts (document_id, seq, text, bytes, total, sha256, created_by, created_at)
			values ('ADAS_CALL', 1, 'x', 1, 8388608, 'x', 'ada', now())`))
	refused("a large document", document(`"text": "x"`), "the document would take")
	d.limited("max_calls_per_hour = 1", "ada", func() {
		refused("documents in an hour", post("ada", "/extract_documents", `{"title": "x"}`), "too many documents or parts")
	})
	d.Exec("update extract_document_parts set total = 1")
	d.limited("max_bytes_per_hour = 1", "ada", func() {
		refused("text in an hour", document(`"text": "x"`), "too much text in an hour")
	})

	// Errors of Postgres and of PostgREST that contain a caller's text.
	escaped := "%0d%0aSet-Cookie:%20session=stolen%0d%0a%0d%0a"
	for what, r := range map[string]supabase.Request{
		"an id":               post("ada", "/core_tool_calls", `{"tool_name": "a.b", "id": `+quoted(hostile)+`}`),
		"an id to answer":     post("ada", "/rpc/answer_tool_call", `{"call_id": `+quoted(hostile)+`, "answer": 1}`),
		"a time that is none": post("ada", "/core_tool_calls", `{"tool_name": "a.b", "run_at": `+quoted(hostile)+`}`),
		"a priority that is none": post("ada", "/core_tool_calls",
			`{"tool_name": "a.b", "priority": `+quoted(hostile)+`}`),
		"an id twice": post("ada", "/core_tool_calls",
			`[{"id": "NEW_CALL", "tool_name": "a.b"}, {"id": "NEW_CALL", "tool_name": "a.b"}]`),
		"a column":    post("ada", "/core_tool_calls", `{"tool_name": "a.b", `+quoted(hostile)+`: 1}`),
		"an argument": post("ada", "/rpc/get_receipt", `{`+quoted(hostile)+`: 1}`),
		"a role": {Method: "GET", Path: "/core_tool_calls",
			Token: d.Sign(supabase.Claims{"role": hostile, "sub": hostileSub})},
		"a role that is an object": {Method: "GET", Path: "/core_tool_calls",
			Token: d.Sign(supabase.Claims{"role": map[string]string{hostile: hostile}})},
		"a time of a token": {Method: "GET", Path: "/core_tool_calls",
			Token: d.Sign(supabase.Claims{"role": "authenticated", "exp": hostile})},
		"an audience": {Method: "GET", Path: "/core_tool_calls?limit=1&select=id",
			Token: d.Sign(supabase.Claims{"role": "authenticated", "aud": hostileSub, "sub": hostileSub})},
		"a subject that is a number": {Method: "POST", Path: "/core_tool_calls", Body: `{"tool_name": "a.b"}`,
			Token: d.Sign(supabase.Claims{"role": "authenticated", "sub": map[string]string{hostile: hostile}})},
		"a token":                 {Method: "GET", Path: "/core_tool_calls", Token: `x", error="` + long[:3000]},
		"a table":                 {Method: "GET", Path: "/" + escaped, Token: user("ada")},
		"a function":              {Method: "POST", Path: "/rpc/" + escaped, Body: "{}", Token: user("ada")},
		"a column to select":      {Method: "GET", Path: "/core_tool_calls?select=" + escaped, Token: user("ada")},
		"a value to compare with": {Method: "GET", Path: "/core_tool_calls?id=eq." + escaped, Token: user("ada")},
		"an operator":             {Method: "GET", Path: "/core_tool_calls?id=" + escaped, Token: user("ada")},
		"a row that is sent back": {Method: "POST", Path: "/core_tool_calls?select=id",
			Body: `{"tool_name": ` + quoted(hostile[:40]) + `}`, Token: user(hostileSub),
			Header: map[string]string{"Prefer": "return=headers-only"}},
		"a schema": {Method: "GET", Path: "/core_tool_calls", Token: user("ada"),
			Header: map[string]string{"Accept-Profile": `x", y: "z`}},
		"a type": {Method: "GET", Path: "/core_tool_calls", Token: user("ada"),
			Header: map[string]string{"Accept": "x/" + long[:3000]}},
	} {
		send(what, r)
	}

	// Steps that a service keeps.
	d.Exec(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, attempt, claimed_by, claimed_at, run_at, created_at, updated_at)
			values (gen_random_uuid(), 'a.kept', 'running', 1, 'w', now(), now(), now(), now())`)
	token := d.Value("select gem.exchange_token(id, 1, 'w') from core_tool_calls where tool_name = 'a.kept'")
	keep := func(step, result string) supabase.Request {
		return supabase.Request{Method: "POST", Path: "/rpc/keep_tool_step", Body: `{"step": ` + step + result + `}`,
			Token: d.Sign(supabase.Claims{"role": "service_role"})}
	}
	of := func(before, name, more string) string {
		return fmt.Sprintf(`{"token": %q, "before": %s, "name": %s%s}`, token, before, quoted(name), more)
	}
	refused("a token", keep(`{"token": `+quoted(hostile)+`, "before": 0, "name": `+quoted(hostile)+`}`,
		`, "result": 1`), "the token of the step is not valid")
	refused("a count of steps", keep(of("7", hostile, ""), `, "result": 1`), "the journal has 0 steps")
	refused("a large result", keep(of("0", "x", ""), `, "result": "`+strings.Repeat("x", 1<<20)+`"`),
		"more than 1 MiB")
	refused("effects", keep(of("0", "x", `, "effects": {`+quoted(hostile)+`: []}`), `, "result": 1`),
		"not those of a receipt")
	refused("a long name", keep(of("0", long[:1000], ""), `, "result": 1`), "more than 200 characters")
	refused("a kind", keep(of("0", "x", `, "kind": `+quoted(hostile)), `, "result": 1`), "the kind of the step must be")
	if forms := d.Value(`select count(*) from pg_proc, regexp_matches(prosrc, 'return array\[', 'g')
		where oid = 'gem.misfit'::regproc`); forms != "7" {
		t.Errorf("gem.misfit has %s templates, and this test covers 7: cover the others too", forms)
	}
	// The test has met each refusal of the SQL, except refusals that no frontend meets.
	used := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(d.Value(refusalsOfTheSQL)), "\n") {
		at, statement, _ := strings.Cut(line, "\t")
		why := ""
		for part := range notForFrontends {
			if strings.Contains(at, part) || strings.Contains(statement, part) {
				why, used[part] = part, true
			}
		}
		switch _, was := met[at]; {
		case !was && why == "":
			t.Errorf("no request of this test meets the refusal %s: %s", at, statement)
		case was && why != "":
			t.Errorf("a frontend meets the refusal %s, which notForFrontends lists as %q: %s", at, why, statement)
		}
		delete(met, at)
	}
	for part := range notForFrontends {
		if !used[part] {
			t.Errorf("notForFrontends has %q, but no refusal matches it", part)
		}
	}
	if len(met) > 0 {
		t.Errorf("these places are not among the refusals of the SQL: %v", slices.Collect(maps.Keys(met)))
	}
}

// hostileTool is a tool name that a caller may use.
const hostileTool = "lab.any"

// refusalsOfTheSQL lists each call to gem.refuse in the functions of the database, with its line and its text.
const refusalsOfTheSQL = `
	select string_agg(format('%s:%s%s%s', f.name, l.line, E'\t',
		regexp_replace(f.lines[l.line] || coalesce(f.lines[l.line + 1], ''), '\s+', ' ', 'g')), E'\n' order by f.name, l.line)
	from (select n.nspname || '.' || p.proname as name, string_to_array(p.prosrc, E'\n') as lines
		from pg_proc p join pg_namespace n on n.oid = p.pronamespace
		where n.nspname in ('public', 'gem', 'gem_extract', 'tools') and p.proname not in ('refuse', 'refuse_as_before')) f,
	generate_subscripts(f.lines, 1) l (line) where f.lines[l.line] ~ 'gem\.refuse\('`

// directly has the statements that raise errors without gem.refuse: the one in gem.refuse itself, and those in
// functions with the rights of their callers, who may not use the schema gem. The arguments of these are of type uuid.
var directly = []string{
	"refuse: raise exception using errcode = split_part(p_code, '/', 1), constraint = split_part(p_code, '/', 2),",
	"get_receipt: raise exception using errcode = 'PT404', message = format('call %s does not exist,",
	"enqueue_tool_call: raise foreign_key_violation using message = format('parent_call_id is %s,",
	"enqueue_tool_call: raise unique_violation using message = format('there is another call with the id %s', id),",
	"save_schedule: raise exception using errcode = 'GEM00'", // which the function itself catches
}

func TestAllErrorsOfTheDatabaseAreRaisedByOneFunction(t *testing.T) {
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{}), t}
	for line := range strings.Lines(d.Value(`
		select string_agg(p.proname || ': ' || regexp_replace(l[1], '\s+', ' ', 'g'), E'\n')
		from pg_proc p join pg_namespace n on n.oid = p.pronamespace,
			regexp_matches(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'), '\mraise\M[^;]*', 'gi') l
		where n.nspname not in ('pg_catalog', 'information_schema') and l[1] !~* '^raise( (notice|warning)\M|$)'`)) {
		statement := strings.TrimSpace(line)
		if !slices.ContainsFunc(directly, func(one string) bool { return strings.HasPrefix(statement, one) }) {
			t.Errorf("gem.refuse must raise this error: %s", statement)
		}
	}
}
