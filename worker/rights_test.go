package worker_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
)

// The call came in before any registry was known, so only the worker can refuse it.
func TestACallOfASignedInUserToAClosedToolEndsBeforeItsHandler(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil,
		tool{name: "lab.send", permissions: []string{"send:email"}},
		tool{name: "lab.write", permissions: []string{"write:db"}})
	call := func(tool, text string, signedIn bool) string {
		return env.Insert(handlertest.Call{Tool: tool, Input: task(Task{Text: text}), CreatedBy: "ada", SignedIn: signedIn})
	}
	closed, wrong := call("lab.send", "a user's mail", true),
		env.Insert(handlertest.Call{Tool: "lab.send", Input: `{"no": 1}`, CreatedBy: "ada", SignedIn: true})
	open, server := call("lab.write", "a user's row", true), call("lab.send", "a server's mail", false)
	env.StartWorker()

	for _, id := range []string{closed, wrong} {
		refused := handlertest.ErrorOf(t, env.Await(id))
		if refused.Code != receipts.NotAllowed || !strings.Contains(refused.Message,
			"lab.send is closed to signed-in users: it needs the permission send:email") ||
			!strings.Contains(refused.Message, `"frontends": true`) {
			t.Errorf("got %+v", refused)
		}
	}
	for _, id := range []string{open, server} {
		if r := env.Await(id); r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", r.ToolName, r.Result)
		}
	}
	if sent := lab.sentSoFar(); len(sent) != 1 || sent[0] != "a server's mail" {
		t.Errorf("sent %q", sent)
	}

	// From now on the insert refuses.
	err := pgx.BeginFunc(t.Context(), env.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `set local request.jwt.claims = '{"role": "authenticated", "sub": "ada"}'; insert
			into core_tool_calls (tool_name) values ('lab.send')`)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "lab.send is closed to signed-in users") {
		t.Errorf("the insert: %v", err)
	}
}

// A model or a document chose it, perhaps on behalf of the user.
func TestACallThatTheHandlerDidNotChooseMustBeOpenToTheUser(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil, tool{name: "tree.run", calls: []string{"lab.*"}},
		tool{name: "lab.star", permissions: []string{"send:sms"}})
	env.StartWorker()
	for _, c := range []struct {
		script, said string
		signedIn     bool
	}{
		{"chosen a lab.star; wait a", "not_allowed", true},
		{"chosen a lab.unknown; wait a", "not_allowed", true}, // another worker's registry may close it
		{"start a lab.star; wait a", "a", true},
		{"chosen a lab.star; wait a", "x", false},
	} {
		got := env.Run(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: c.script}), CreatedBy: "ada",
			SignedIn: c.signedIn})
		if !strings.Contains(string(got.Result), c.said) {
			t.Errorf("%s, signed in %v: %s", c.script, c.signedIn, got.Result)
		}
	}
	sound(t, env)
}
