package cli

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestCallInsertsARowAndPrintsItsID(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	type row struct {
		Tool, Input, Status string
		Session, Key        *string
		Priority            int
		Later               bool
	}
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  row
	}{
		"a tool alone": {"", []string{"os.health_check"}, row{Tool: "os.health_check", Input: "{}"}},
		"input":        {"", []string{"os.list_tasks", `{"limit": 5}`}, row{Tool: "os.list_tasks", Input: `{"limit": 5}`}},
		"input on stdin": {`{"limit": 6}` + "\n", []string{"os.list_tasks", "-"},
			row{Tool: "os.list_tasks", Input: `{"limit": 6}`}},
		"all flags": {"", []string{"os.list_tasks", "{}", "--session", "s-1", "--key", "k-1", "--priority", "-7", "--run-at",
			"10m"},
			row{Tool: "os.list_tasks", Input: "{}", Session: new("s-1"), Key: new("k-1"), Priority: -7, Later: true}},
		"a time": {"", []string{"os.list_tasks", "--run-at", time.Now().Add(time.Hour).Format(time.RFC3339)},
			row{Tool: "os.list_tasks", Input: "{}", Later: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemReading(t, []string{"DATABASE_URL=" + url}, test.stdin, append([]string{"call"}, test.args...)...)
			got.wantCode(t, 0)
			if got.stderr != "" {
				t.Errorf("stderr: got %q, want nothing", got.stderr)
			}
			id, err := callID(strings.TrimSuffix(got.stdout, "\n"))
			if err != nil {
				t.Fatalf("stdout: got %q, want an id alone: %v", got.stdout, err)
			}
			test.want.Status = "queued"
			var r row
			if err := db.QueryRow(t.Context(), `
				select tool_name, input::text, status, session_id, idempotency_key, priority,
					run_at > clock_timestamp() + interval '5 minutes'
				from core_tool_calls where id = $1`, id).Scan(&r.Tool, &r.Input, &r.Status, &r.Session, &r.Key, &r.Priority,
				&r.Later); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, r); diff != "" {
				t.Errorf("the row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallSaysWhereJSONIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		input string
		want  []string
	}{
		"a value is missing": {`{"title":}`, []string{"character 10:", "  {\"title\":}\n           ^"}},
		"the end is missing": {`{"title": "é"`, []string{"unexpected end", "character 14:"}},
		"shell ate quotes":   {`{title: x}`, []string{"character 2:", "  {title: x}\n   ^"}},
		"more than one":      {`{} {}`, []string{"after top-level value", "character 4:"}},
		"on another line":    {"{\n  \"a\": 1,\n  b\n}", []string{"(line 3)", "    b\n    ^"}},
		"nothing":            {" ", []string{"is empty", "such as {}"}},
		"no UTF-8":           {"{\"a\": \"\xff\"}", []string{"not valid UTF-8"}},
		"a long line":        {`{"a": "` + strings.Repeat("x", 1000) + `", b}`, []string{"character 1011:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := inProcess(t.Context(), "call", "os.create_note", test.input)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, test.want...)
			if len(got.stderr) > 400 {
				t.Errorf("the message has %d bytes", len(got.stderr))
			}
		})
	}
}

func TestCallShowsWhatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + newDatabase(t)}
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no object": {[]string{"os.create_note", `[1]`},
			[]string{"input must be a JSON object but is an array", "Send {"}},
		"priority": {[]string{"os.create_note", "--priority", "5000"},
			[]string{"priority is 5000, and must be from -1000 to 1000"}},
		"too far ahead": {[]string{"os.create_note", "--run-at", "2999-01-01T00:00:00Z"}, []string{"366 days"}},
		"a NUL": {[]string{"os.create_note", `{"title": "\u0000"}`},
			[]string{`\u0000 cannot be converted to text`}},
		"a very long key": {[]string{"os.create_note", "--key", strings.Repeat("k", 300)},
			[]string{"idempotency_key may have at most 255 characters"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, env, append([]string{"call"}, test.args...)...)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, test.want...)
			for _, noise := range []string{"SQLSTATE", "postgres://", "ERROR:"} {
				if strings.Contains(got.stderr, noise) {
					t.Errorf("%q is in the message:\n%s", noise, got.stderr)
				}
			}
		})
	}
}

// A script must be able to tell a call that failed (1, in TestCallWaitsForTheReceipt) from one that was not made.
func TestACallThatWasNotMadeHasACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	empty, nowhere := testdb.NewEmpty(t), "postgres://gem@"+closedAddress(t)+"/gem"
	for name, test := range map[string]struct {
		url  string
		args []string
		says string
	}{
		"no server":       {nowhere, nil, "Postgres cannot be reached"},
		"no schema":       {empty, nil, "run `gem migrate`"},
		"no database URL": {"", nil, "DATABASE_URL"},
		"a wrong flag":    {empty, []string{"--run-at", "soon"}, "--run-at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, []string{"DATABASE_URL=" + test.url},
				append([]string{"call", "os.health_check", "--wait"}, test.args...)...)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, test.says)
			if got.stdout != "" {
				t.Errorf("stdout: got %q, want nothing", got.stdout)
			}
		})
	}
}

func TestACallWhoseEndCannotBeAskedForHasACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	p := startGem(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "--wait")
	p.stderr.waitFor(t, "No worker is running")
	testdb.Exec(t, db, "alter table core_tool_receipts rename to elsewhere") // what it reads is gone
	if code := p.wait(t); code != exitUnknown {
		t.Errorf("exit code: got %d, want %d", code, exitUnknown)
	}
	id := testdb.Value[string](t, db, "select id::text from core_tool_calls")
	wants(t, p.stderr.String(), "The call continues; read its receipt later: gem receipt "+id)
}

func TestACallThatAFailoverLosesIsMadeAgainOnce(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	p := startGem(t, []string{"DATABASE_URL=" + url + "&application_name=waits"}, "call", "os.create_note", `{"title": "x"}`,
		"--wait")
	p.stderr.waitFor(t, "No worker is running")
	made := func() (id string) {
		return testdb.Value[string](t, db, "select coalesce((select id || ' ' || tool_name || ' ' || input "+
			"from core_tool_calls), '')")
	}
	first := made()
	lose := func() {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), `set session_replication_role = replica; delete from core_tool_events;
			delete from core_tool_calls;
			insert into gem.epochs (server, at, why) values (clock_timestamp(), clock_timestamp(), 'promotion');
			select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'waits'`); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	p.stderr.waitFor(t, "A failover lost the call: making it again with the same id.")
	testdb.Eventually(t, "it is made again", func() bool { return made() == first })
	lose()
	if code := p.wait(t); code != exitUnknown || made() != "" {
		t.Errorf("the second time: exit code %d, and the call %q", code, made())
	}
}

func TestCommandsWithoutASchemaSayToMigrate(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testdb.NewEmpty(t)}
	const id = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"
	for _, args := range [][]string{{"call", "os.health_check"}, {"receipt", id}, {"trace", id}, {"explain", id},
		{"worker"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, env, args...)
			want := exitFailed
			if args[0] == "call" {
				want = exitUsage
			}
			got.wantCode(t, want)
			wants(t, got.stderr, "run `gem migrate`")
		})
	}
}

func TestCallWaitsForTheReceipt(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	startWorker(t, url)
	for name, test := range map[string]struct {
		args   []string
		code   int
		status receipts.Status
		result string
	}{
		"succeeded": {[]string{"os.create_note", `{"domain": "both", "title": "a", "content": "<b>"}`}, 0,
			receipts.Succeeded, "note_id"},
		"failed":         {[]string{"os.create_task", `{"domain": "both"}`}, 1, receipts.Failed, "validation_error"},
		"unknown tool":   {[]string{"os.make_coffee"}, 1, receipts.Failed, "unknown_tool"},
		"not_configured": {[]string{"quote.generate_pdf", `{"quote_id": "Q-1"}`}, 3, receipts.NotConfigured, "next_steps"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, []string{"DATABASE_URL=" + url},
				append([]string{"call", "--wait", "--timeout", "1m"}, test.args...)...)
			got.wantCode(t, test.code)
			var r receipts.Receipt
			if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
				t.Fatalf("stdout is not a receipt: %v\n%s", err, got.stdout)
			}
			if r.Status != test.status {
				t.Errorf("status: got %s, want %s", r.Status, test.status)
			}
			wants(t, string(r.Result), test.result)
			wants(t, got.stdout, "\n  \"call_id\": \"")
			if got.stderr != "call "+r.CallID+"\n" {
				t.Errorf("stderr: got %q, want the call's id alone, since a worker runs", got.stderr)
			}
			again := gemWith(t, []string{"DATABASE_URL=" + url}, "receipt", r.CallID)
			again.wantCode(t, 0)
			if again.stdout != got.stdout {
				t.Errorf("gem receipt differs from gem call --wait (-call +receipt):\n%s", cmp.Diff(got.stdout, again.stdout))
			}
		})
	}
}

func TestCallThatDoesNotEndInTimeGoesOn(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "--wait", "--timeout", "400ms")
	got.wantCode(t, exitUnknown)
	id := testdb.Value[string](t, testdb.Pool(t, url), "select id::text from core_tool_calls where status = 'queued'")
	wants(t, got.stderr, "has not ended within 400ms", "gem receipt "+id)
	if said := strings.Count(got.stderr, "No worker is running"); said != 1 {
		t.Errorf("that no worker is running was said %d times, want once:\n%s", said, got.stderr)
	}
	if got.stdout != "" {
		t.Errorf("stdout: got %q, want nothing", got.stdout)
	}
}

func TestCallThatIsNoLongerWaitedForGoesOn(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	p := startGem(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "--wait")
	p.stderr.waitFor(t, "No worker is running")
	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != 130 {
		t.Errorf("exit code: got %d, want 130", code)
	}
	id := testdb.Value[string](t, testdb.Pool(t, url), "select id::text from core_tool_calls where status = 'queued'")
	wants(t, p.stderr.String(), "The call continues; read its receipt later: gem receipt "+id)
}

func TestCallWithAKeyThatSucceededIsAHit(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	startWorker(t, url)
	var first, second receipts.Receipt
	for _, r := range []*receipts.Receipt{&first, &second} {
		got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "--wait", "--key", "morning")
		got.wantCode(t, 0)
		if err := json.Unmarshal([]byte(got.stdout), r); err != nil {
			t.Fatal(err)
		}
	}
	if second.ReplayOf != first.ID {
		t.Errorf("replay_of: got %q, want the first receipt, %s", second.ReplayOf, first.ID)
	}
}

func TestAKeyThatCountsForNothingIsRefused(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	startWorker(t, url)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.create_note",
		`{"domain": "both", "title": "a", "content": "b"}`, "--key", "k")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "os.create_note takes no --key", "none")
	if n := testdb.Value[int](t, testdb.Pool(t, url), "select count(*)::int from core_tool_calls"); n != 0 {
		t.Errorf("%d calls were made", n)
	}
}

func TestExplainSaysWhatBecameOfAKey(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db, env := testdb.Pool(t, url), []string{"DATABASE_URL=" + url}
	startWorker(t, url)
	call := func(tool, key, input string) (said string) {
		id := testdb.Value[string](t, db,
			"insert into core_tool_calls (tool_name, idempotency_key, input) values ($1, $2, $3) "+
				"returning id::text", tool, key, input)
		for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where call_id = $1", id) == 0 {
		}
		return gemWith(t, env, "explain", id).stdout
	}
	call("leads.create", "", `{"name": "Ada", "phone": "1", "suburb": "s"}`)
	wants(t, call("leads.create", "", `{"name": "Eve", "phone": "1 ", "suburb": "s"}`), "nothing ran again",
		"The input of that call was different.")
	call("os.list_tasks", "k", `{"limit": 1}`)
	wants(t, call("os.list_tasks", "k", `{"limit": 2}`), "succeeded before, with another input", "another key")
	wants(t, call("os.create_note", "k", `{"domain": "both", "title": "a", "content": "b"}`), "was ignored")
}

func TestReceiptThatIsNotThere(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db, env := testdb.Pool(t, url), []string{"DATABASE_URL=" + url}
	id := testdb.Value[string](t, db,
		"insert into core_tool_calls (tool_name) values ('os.health_check') returning id::text")

	queued := gemWith(t, env, "receipt", strings.ToUpper(id))
	queued.wantCode(t, exitFailed)
	wants(t, queued.stderr, "no receipt yet", "it is queued", "gem explain "+id)

	scene{t, db}.worker("w-1", 1)
	scene{t, db}.claim("w-1")
	receipt := testdb.Value[string](t, db, `select gem.finish($1, 1, 'w-1', 'succeeded', '{}', '{}', '1')::text`, id)
	mistaken := gemWith(t, env, "receipt", receipt)
	mistaken.wantCode(t, exitFailed)
	wants(t, mistaken.stderr, "there is no call "+receipt, "the receipt's call is "+id)

	for _, command := range []string{"receipt", "trace", "explain"} {
		missing := gemWith(t, env, command, "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55")
		missing.wantCode(t, exitFailed)
		wants(t, missing.stderr, "there is no call 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55 in this database")
	}
}
