package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// Texts of callers, tools and workers cannot draw on the terminal, or look like a line of the command.
func TestTextOfOthersStaysInItsLineOfATerminal(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	const hostile = "x\r\nFORGED line\n\x1b[2J\x1b]0;owned\x07\u009b2J\u202e\u2028\x7f\ty"
	encoded, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	said := string(encoded)
	s.worker("w-1", 8)
	insert := func() string {
		return testdb.Value[string](t, s.db, `insert into core_tool_calls (tool_name, input, session_id, created_by, idempotency_key)
			values ($1::text, jsonb_build_object('text', $1::text), $1::text, $1::text, $1::text) returning id::text`, hostile)
	}
	end := func(status, result string) string {
		id := insert()
		s.claim("w-1")
		testdb.Exec(t, s.db, `select gem.finish($1, 1, $2, $3, $4::jsonb, '{}', $5)`, id, "w-1", status, result, hostile)
		return id
	}
	ids := []string{
		end("failed", `{"error": {"error_code": `+said+`, "message": `+said+`, "details": {`+said+`: `+said+`}}}`),
		end("failed", `{"error": {"error_code": "execution_error", "message": `+said+`}}`),
		end("succeeded", `{`+said+`: `+said+`}`),
		end("not_configured", `{"status": "not_configured", "reason": `+said+`, "required_env": [`+said+`], "next_steps": [`+
			said+`]}`),
	}
	retried := insert()
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.retry($1, 1, $2, $3::jsonb, 3, '10 minutes')`, retried, "w-1",
		`{"error_code": `+said+`, "message": `+said+`, "context": `+said+`}`)
	running := insert()
	s.claim("w-1")
	question := testdb.Value[string](t, s.db, `insert into core_tool_calls (tool_name, input, created_by)
		values ('wait.answer', jsonb_build_object('text', $1::text, 'by', array['user:' || $1::text, 'owner']), $1::text)
			returning id::text`, hostile)
	waiting := insert()
	testdb.Exec(t, s.db, "insert into gem.roles values ($1, 'boss')", hostile)
	ids = append(ids, retried, running, question, waiting)

	commands := [][]string{{"status"}, {"workers"}, {"list"}, {"list", "--failed"}, {"list", "--state", "queued"},
		{"questions"}, {"roles", "list"}, {"list", "--text", hostile},
		{"list", "--tool", hostile}, {"list", "--state", hostile}, {"list", "--before", hostile}, {"call", hostile, "{}"},
		{"call", hostile, "{" + hostile},
		{"call", "a.b", "{}", "--priority", "5000"}, {"receipt", hostile}, {"answer", question, hostile}}
	for i, id := range ids {
		all := [][]string{{"trace", id}, {"explain", id}, {"trace", id, "--results"}, {"again", id}, {"receipt", id},
			{"answer", id, "1"}, {"approve", id}, {"cancel", id}}
		for j, command := range all {
			// In the short form, each command runs on every third call, so that every call meets some of the commands.
			if testdb.IsLong() || (i+j)%3 == 0 {
				commands = append(commands, command)
			}
		}
	}
	odd := regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f-\u009f\u202e\u2028]")
	for _, command := range commands {
		got := gemWith(t, []string{"DATABASE_URL=" + url}, command...)
		for name, text := range map[string]string{"stdout": got.stdout, "stderr": got.stderr} {
			if found := odd.FindString(text); found != "" && command[0] != "receipt" || strings.Contains(text, "\x1b") {
				t.Errorf("gem %.60q writes %q to its %s:\n%.600q", command, found, name, text)
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "FORGED") {
					t.Errorf("gem %.60q writes a line of others to its %s:\n%.600q", command, name, text)
				}
			}
		}
	}
}
