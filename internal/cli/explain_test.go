package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// scene creates the states for gem explain, by moving calls like a worker.
type scene struct {
	*testing.T
	db *pgxpool.Pool
}

// insert makes a call to leads.create.
func (s scene) insert() string {
	s.Helper()
	return testdb.Value[string](s.T, s.db, `insert into core_tool_calls (tool_name, input)
		values ('leads.create', '{"phone": "1"}') returning id::text`)
}

// worker registers a worker with that many slots.
func (s scene) worker(id string, slots int) {
	s.Helper()
	testdb.Exec(s.T, s.db, `select gem.record_registry('7', repeat('0', 64),
		'{"tools": [{"name": "leads.create", "timeout_ms": 15000}]}')`)
	testdb.Exec(s.T, s.db, "select gem.start_worker($1, $2, 'test', '7', '1 hour')", id, slots)
}

// silence makes a worker look dead, as if it had been killed ten minutes ago.
func (s scene) silence(id string) {
	s.Helper()
	testdb.Exec(s.T, s.db, "update core_workers set heartbeat_at = now() - interval '10 minutes', alive_until = now() - "+
		"interval '9 minutes' where worker_id = $1", id)
}

func (s scene) claim(worker string) {
	s.Helper()
	if claimed := testdb.Value[int](s.T, s.db, "select count(*)::int from gem.claim($1, 1, true)", worker); claimed != 1 {
		s.Fatalf("%s claimed %d calls, want 1", worker, claimed)
	}
}

// ended is a call that ended in its first attempt.
func (s scene) ended(status, result string) string {
	s.Helper()
	if testdb.Value[int](s.T, s.db, "select count(*)::int from core_workers where worker_id = 'w-1'") == 0 {
		s.worker("w-1", 4)
	}
	id := s.insert()
	s.claim("w-1")
	s.finish(id, "w-1", status, result)
	return id
}

func (s scene) finish(id, worker, status, result string) {
	s.Helper()
	testdb.Exec(s.T, s.db, "select gem.finish($1, 1, $2, $3, $4, '{}', '7')", id, worker, status, result)
}

// answered is a call whose service answered with a status, or did not answer if it is 0.
func (s scene) answered(status int, code, message string) string {
	s.Helper()
	s.worker("w-1", 4)
	id := s.insert()
	s.claim("w-1")
	testdb.Exec(s.T, s.db, `select gem.finish($1, 1, 'w-1', 'failed',
		jsonb_build_object('error', jsonb_build_object('error_code', $2::text, 'message', $3::text)),
		jsonb_build_object('external_calls', jsonb_build_array(jsonb_build_object('service', 'leads', 'endpoint',
			'https://leads.example/x', 'status_code', $4::int))), '7')`,
		id, code, message, status)
	return id
}

// failed is a call that ended with an error.
func (s scene) failed(code, message, details string) string {
	s.Helper()
	return s.ended("failed", `{"error": {"error_code": "`+code+`", "message": "`+message+`", "details": `+details+`}}`)
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set  func(s scene) (id string)
		want []string
		not  string
	}{
		"for later": {func(s scene) string {
			return testdb.Value[string](s.T, s.db, "insert into core_tool_calls (tool_name, run_at) values ('x.y', now() + '10 "+
				"days') returning id::text")
		}, []string{"It is scheduled to run no earlier than", "in 10 d", "run_at"}, ""},
		"no worker ever": {func(s scene) string { return s.insert() },
			[]string{"It is queued, and no worker is running", "no worker has ever connected", "gem worker"}, ""},
		"no worker any more": {func(s scene) string {
			s.worker("w-1", 1)
			testdb.Exec(s.T, s.db, "update core_workers set stopped_at = now() - interval '5 hours'")
			return s.insert()
		}, []string{"no worker is running", "the last one, w-1, was seen 5 h"}, ""},
		"next in line": {func(s scene) string {
			s.worker("w-1", 2)
			return s.insert()
		}, []string{"next in line", "0 of the 2 slots of 1 worker are busy", "A worker will claim it soon"}, ""},
		"behind others": {func(s scene) string {
			s.worker("w-1", 1)
			s.worker("w-2", 1)
			s.insert()
			s.insert()
			s.claim("w-1")
			s.claim("w-2")
			s.insert()
			id := s.insert()
			testdb.Exec(s.T, s.db, "insert into core_tool_calls (tool_name, priority) values ('x.y', 5), ('x.y', -5)")
			return id
		}, []string{"queued behind 2 other calls", "2 of the 2 slots of 2 workers are busy", "WORKER_CONCURRENCY"}, ""},
		"behind very many": {func(s scene) string {
			s.worker("w-1", 1)
			testdb.Exec(s.T, s.db, "insert into core_tool_calls (tool_name) select 'x.y' from generate_series(1, 1200)")
			return s.insert()
		}, []string{"queued behind more than 1000 other calls"}, ""},
		"retried": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.retry($1, 1, 'w-1',
				'{"error_code": "execution_error", "message": "the service answered 503"}', 3, '10 minutes')`, id)
			return id
		}, []string{"Attempt 1 ended with a transient error: the service answered 503.",
			"The next attempt is scheduled: it starts in", "min"}, ""},
		"lost": {func(s scene) string {
			s.worker("w-1", 1)
			s.worker("w-dead", 1)
			id := s.insert()
			s.claim("w-dead")
			s.silence("w-dead")
			testdb.Exec(s.T, s.db, "select gem.recover('w-1', null)")
			return id
		}, []string{"Attempt 1 lost its worker, w-dead", "next in line"}, ""},
		"lost twice": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			for _, dead := range []string{"w-dead-1", "w-dead-2"} {
				s.worker(dead, 1)
				s.claim(dead)
				s.silence(dead)
				testdb.Exec(s.T, s.db, "select gem.recover('w-1', null)")
			}
			return id
		}, []string{"Attempt 2 lost its worker, w-dead-2", "It has lost 2 workers", "no other such call"}, ""},
		"handed over": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.release($1, 1, 'w-1')", id)
			testdb.Exec(s.T, s.db, "select gem.stop_worker('w-1')")
			return id
		}, []string{"The worker of attempt 1 stopped and handed it over. It is queued, and no worker is running"}, ""},
		"left to another program": {func(s scene) string {
			s.worker("w-1", 1)
			testdb.Exec(s.T, s.db, "select gem.start_worker('w-2', 1, 'test', '8', '1 hour', '{tool leads.create}')")
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.leave_to($1, 1, 'w-1', 'tool leads.create')", id)
			return id
		}, []string{"The worker of attempt 1 does not have leads.create, and left the call to one that does. It is queued " +
			"next in line"}, ""},
		"left to another program, which stopped": {func(s scene) string {
			s.worker("w-1", 1)
			testdb.Exec(s.T, s.db, "select gem.start_worker('w-2', 1, 'test', '8', '1 hour', '{tool leads.create}')")
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.leave_to($1, 1, 'w-1', 'tool leads.create')", id)
			testdb.Exec(s.T, s.db, "select gem.stop_worker('w-2')")
			return id
		}, []string{"It is queued for a worker whose registry has leads.create, and none is alive.", "gem cancel"}, ""},
		"running": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			return id
		}, []string{"It has been running on w-1 since", "in attempt 1", "its timeout is 15 s."}, "last seen"},
		"running for too long": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "update core_tool_calls set claimed_at = now() - interval '5 minutes' where id = $1", id)
			return id
		}, []string{"its timeout is 15 s. That time is over", "The worker's log says why"}, ""},
		"a clock that went back": {func(s scene) string {
			s.worker("w-1", 1)
			testdb.Exec(s.T, s.db, "update core_workers set heartbeat_at = now() + interval '10 days'")
			testdb.Exec(s.T, s.db, "select gem.heartbeat('w-1', '1 hour', '{}', '{}', false)")
			return testdb.Value[string](s.T, s.db, "insert into core_tool_calls (tool_name, run_at) values ('x.y', now() + '20 "+
				"days') returning id::text")
		}, []string{"It is scheduled for", "Postgres's clock was set back by 10 d, and has not caught up."}, ""},
		"running on a silent worker": {func(s scene) string {
			s.worker("w-1", 1)
			s.worker("w-2", 1)
			id := s.insert()
			s.claim("w-1")
			s.silence("w-1")
			return id
		}, []string{"that worker was last seen 10 min", "another one takes the call over"}, ""},
		"running on the last worker, which is silent": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			s.silence("w-1")
			return id
		}, []string{"that worker was last seen 10 min", "no other is running", "gem worker"}, ""},
		"running, to be cancelled": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select cancel_tool_call($1)", id)
			return id
		}, []string{"It has been running on w-1", "asked to cancel it"}, ""},
		"running on a worker that nobody knows": {func(s scene) string {
			s.worker("w-9", 1)
			id := s.insert()
			s.claim("w-9")
			testdb.Exec(s.T, s.db, "delete from core_workers")
			return id
		}, []string{"running on w-9", "the database does not know that worker"}, "timeout"},
		"waiting": {func(s scene) string {
			s.worker("w-1", 2)
			holder, id := s.insert(), s.insert()
			s.claim("w-1")
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'leads.create:phone=1')", holder)
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'leads.create:phone=1')", id)
			return id
		}, []string{"It waits for call ", "holds the same key, leads.create:phone=1,", "running on w-1 since"}, ""},
		"waiting for a call of its handler": {func(s scene) string {
			s.worker("w-1", 4)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.wait($1, 1, 'w-1',
				'[{"id": "00000000-0000-7000-8000-000000000001", "name": "a", "tool": "leads.update", "input": {}}]',
				'call', '{a}', 1, '{"a": 3630000}', null)`, id)
			return id
		}, []string{"waits for calls that it made. These have not ended: leads.update 00000000-0000-7000-8000-000000000001 " +
			"(queued).", "If they take too long, it is woken at", "in 1 h"}, ""},
		"waiting while its handler sleeps": {func(s scene) string {
			s.worker("w-1", 4)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.wait($1, 1, 'w-1', '[]', 'time', '{nap}', 1, '{\"nap\": 3630000}', null)", id)
			return id
		}, []string{"Its handler sleeps. It continues at"}, ""},
		"waiting to clean up": {func(s scene) string {
			s.worker("w-1", 4)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.operator_cancel(array[$1::uuid], 'ada', 'a drill')", id)
			testdb.Exec(s.T, s.db, "select gem.wait($1, 1, 'w-1', '[]', 'time', '{nap}', 1, '{\"nap\": 600000}', null, true)",
				id)
			return id
		}, []string{"Its handler sleeps.", "Its cancellation was requested at ", " by ada",
			"(a drill). Its handler may clean up until ", "To end it without that: gem cancel "}, ""},
		"waiting for a key that a sleeping handler holds": {func(s scene) string {
			s.worker("w-1", 4)
			holder := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", holder)
			testdb.Exec(s.T, s.db, "select gem.wait($1, 1, 'w-1', '[]', 'time', '{nap}', 1, '{\"nap\": 3630000}', null)", holder)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", id)
			return id
		}, []string{"It waits for call ", "which holds the same key, K, and is waiting."}, ""},
		"succeeded": {func(s scene) string { return s.ended("succeeded", `{"lead_id": "L-1"}`) },
			[]string{"It succeeded in", "in attempt 1 on w-1", "lead_id L-1"}, ""},
		"succeeded by repeating": {func(s scene) string {
			s.worker("w-1", 4)
			first, id := s.insert(), s.insert()
			s.claim("w-1")
			s.claim("w-1")
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", first)
			s.finish(first, "w-1", "succeeded", `{"lead_id": "L-1"}`)
			testdb.Exec(s.T, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", id)
			testdb.Exec(s.T, s.db, `select gem.finish($1, 1, 'w-1', 'succeeded', '{"lead_id": "L-1"}', '{}', '7',
				(select id from core_tool_receipts))`, id)
			return id
		}, []string{"by repeating receipt ", "with the same key, K", "lead_id L-1"}, ""},
		"unknown tool": {func(s scene) string { return s.failed("unknown_tool", "no", "null") },
			[]string{"version 7) has no tool leads.create", "gem registry list"}, ""},
		"an unknown tool like another": {func(s scene) string {
			return s.failed("unknown_tool", `The registry 7 has no tool leads.creat: did you mean leads.create? More.`, "null")
		}, []string{"has no tool leads.create: did you mean leads.create? Compare"}, ""},
		"a fault in SQL": {func(s scene) string {
			return s.failed("execution_error", "It failed unexpectedly.", `{"sqlstate": "22012", "reference": "r"}`)
		}, []string{"It failed unexpectedly. That is a fault in the tool's code, not in the input."},
			"If the input is wrong"},
		"waiting for the answer to a question of its handler": {func(s scene) string {
			testdb.Exec(s.T, s.db, "select gem.start_worker('w-1', 9, 'test', '7', '1 hour', '{steps}')")
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.wait($1, 1, 'w-1',
				'[{"id": "00000000-0000-7000-8000-000000000001", "name": "a", "tool": "wait.answer",
				"input": {"text": "Which color?"}}]', 'call', '{a}', 1, '{}', null)`, id)
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.wait('00000000-0000-7000-8000-000000000001', 1, 'w-1', '[]', 'answer', '{#answer}', 1,
				'{}', null)`)
			return id
		}, []string{"It waits for an answer: gem answer 00000000-0000-7000-8000-000000000001 VALUE. ",
			"It asks “Which color?”"}, "calls that it made"},
		"invalid input": {func(s scene) string {
			return s.failed("validation_error", "no",
				`[{"path": "/phone", "keyword": "required", "message": "phone is required"}, {"path": "", "message": "too large"}]`)
		}, []string{"/phone: phone is required; too large.", "make a new call"}, ""},
		"timeout": {func(s scene) string { return s.failed("timeout", "leads.create took longer than its 15s.", "null") },
			[]string{"took longer than its 15s.", "timeout_ms"}, ""},
		"panic": {func(s scene) string { return s.failed("panic", "Leads.Create panicked: boom", "null") },
			[]string{"panicked: boom.", "fault in the handler", "call_id"}, ""},
		"output": {func(s scene) string {
			return s.failed("output_invalid", "The output does not fit its schema.",
				`[{"path": "/lead_id", "message": "must be a string"}]`)
		}, []string{"does not fit its schema (/lead_id: must be a string).", "output_schema"}, ""},
		"unknown outcome": {func(s scene) string {
			return s.failed("outcome_unknown", "Whether it took effect is not known.", "null")
		},
			[]string{"is not known. The known effects are on the receipt."}, ""},
		"worker lost": {func(s scene) string { return s.failed("worker_lost", "The call lost its worker 3 times", "null") },
			[]string{"3 times.", "memory"}, ""},
		"execution error": {func(s scene) string { return s.failed("execution_error", "There is no row 1 in leads", "null") },
			[]string{"leads.create returned an error: There is no row 1 in leads."}, ""},
		"a wrong secret": {func(s scene) string { return s.answered(401, "execution_error", "leads answered 401: no") },
			[]string{"leads answered 401: no.", "Most likely its secret differs from the one that the worker signs with",
				"secret_env"}, "If the input is wrong"},
		"a wrong secret, told with a code": {func(s scene) string {
			return s.answered(401, "bad_signature", "It is not signed")
		},
			[]string{"its own code bad_signature: It is not signed.", "secret_env"}, ""},
		"forbidden": {func(s scene) string { return s.answered(403, "execution_error", "leads answered 403: no") },
			[]string{"secret_env"}, ""},
		"forbidden, with a code of the tool": {func(s scene) string {
			return s.answered(403, "not_yours", "It belongs to bob")
		},
			[]string{"its own code not_yours: It belongs to bob."}, "secret"},
		"a redirect": {func(s scene) string {
			return s.answered(308, "execution_error",
				"leads answered 308: (an empty body)")
		},
			[]string{"GEM follows no redirect", "write the final address into domains.json"}, ""},
		"a certificate": {func(s scene) string {
			return s.answered(0, "execution_error", "leads could not be connected, and nothing was sent: tls: failed to "+
				"verify certificate: x509: certificate has expired")
		}, []string{"The connection is not trusted: the certificate has expired", "SSL_CERT_FILE"}, "firewall"},
		"an unknown host": {func(s scene) string {
			return s.answered(0, "execution_error", "the host of leads, leads.exmaple, could not be resolved")
		},
			[]string{"cannot resolve the host's name", "domains.json"}, "If the input is wrong"},
		"nobody listens": {func(s scene) string {
			return s.answered(0, "execution_error", "leads could not be connected, and nothing was sent: dial tcp "+
				"127.0.0.1:9: connect: connection refused")
		}, []string{"Nothing listens at that address"}, ""},
		"out of reach": {func(s scene) string {
			return s.answered(0, "execution_error", "leads could not be connected within the call's time, and nothing was sent")
		}, []string{"cannot reach the host", "firewall"}, ""},
		"retried since nobody listens": {func(s scene) string {
			s.worker("w-1", 1)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.retry($1, 1, 'w-1',
				'{"error_code": "execution_error", "message": "dial tcp 127.0.0.1:9: connect: connection refused"}', 3,
					'10 minutes')`, id)
			return id
		}, []string{"connection refused.", "Nothing listens at that address", "The next attempt is scheduled: it starts in"},
			""},
		"cancelled": {func(s scene) string {
			id := s.insert()
			testdb.Exec(s.T, s.db, "select cancel_tool_call($1)", id)
			return id
		}, []string{"Cancelled by postgres. The call was cancelled before it ran. Make a new call"}, ""},
		"a code of the handler's own": {func(s scene) string { return s.failed("no_credit", "The account is empty", "null") },
			[]string{"its own code no_credit: The account is empty."}, ""},
		"the tool's advice": {func(s scene) string { return s.failed("sold_out", "There are none", `{"advice": "later"}`) },
			[]string{"its own code sold_out: There are none. The tool advises to repeat the call later."}, ""},
		"the tool's advice on an error": {func(s scene) string {
			return s.failed("execution_error", "No such lamp", `{"advice": "change_input"}`)
		},
			[]string{"No such lamp. The tool advises to make a new call with another input."}, "If the input is wrong"},
		"advice against it": {func(s scene) string { return s.failed("closed", "It is closed", `{"advice": "never"}`) },
			[]string{"not to repeat the call"}, ""},
		"no advice at all": {func(s scene) string { return s.failed("closed", "It is closed", `["advice"]`) },
			[]string{"It is closed."}, "advises"},
		"variables are missing": {func(s scene) string {
			return s.ended("not_configured",
				`{"status": "not_configured", "reason": "SMS is not set up", "required_env": ["A", "B"], "next_steps": ["Set them."]}`)
		}, []string{"its setup is missing: SMS is not set up.", "Set A, B for the worker"}, ""},
		"a handler is missing": {func(s scene) string {
			return s.ended("not_configured",
				`{"status": "not_configured", "reason": "no handler", "required_env": [], "next_steps": ["Write it", "Deploy it."]}`)
		}, []string{"no handler. Next steps: Write it. Deploy it."}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			id := test.set(scene{t, testdb.Pool(t, url)})
			got := gemWith(t, []string{"DATABASE_URL=" + url}, "explain", id)
			got.wantCode(t, 0)
			wants(t, got.stdout, test.want...)
			if test.not != "" && strings.Contains(got.stdout, test.not) {
				t.Errorf("%q is in:\n%s", test.not, got.stdout)
			}
			if strings.Count(got.stdout, "\n") != 1 || strings.Contains(got.stdout, "  ") {
				t.Errorf("it is not one plain line: %q", got.stdout)
			}
		})
	}
}

// The error of a function in SQL follows the sentence, a line of it on a line, and cannot move the cursor of a
// terminal.
func TestExplainShowsWhereAFunctionFailed(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	s.worker("w-1", 4)
	ended, retried := s.insert(), s.insert()
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.finish($1, 1, 'w-1', 'failed',
		'{"error": {"error_code": "execution_error", "message": "leads.create failed unexpectedly"}}', '{}', '7',
		p_context => $2)`, ended, "division by zero\nPL/pgSQL function \x1b[31mtools.leads_create(jsonb) line 3 at "+
		"assignment")
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.retry($1, 1, 'w-1',
		'{"error_code": "execution_error", "message": "busy", "context": "deadlock detected"}', 3, '10 minutes')`, retried)
	for id, want := range map[string]string{
		ended: "\n\nThe error, for operators:\n  division by zero\n  PL/pgSQL function  [31mtools.leads_create(jsonb) " +
			"line 3 at assignment\n",
		retried: "\n\nThe error, for operators:\n  deadlock detected\n",
	} {
		if got := gemWith(t, []string{"DATABASE_URL=" + url}, "explain", id); !strings.HasSuffix(got.stdout, want) {
			t.Errorf("got %q, want %q at the end", got.stdout, want)
		}
	}
}
