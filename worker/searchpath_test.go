package worker_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// A worker may run as the owner. Handlers keep the search path of its login, so GEM's own statements must not depend on
// it: someone who may create functions in one of its schemas would run code as the owner.
func TestAWorkersStatementsUseNothingOfTheSearchPath(t *testing.T) {
	t.Parallel()
	lab := NewLab()
	tools := []tool{
		{name: "tree.run", calls: []string{"lab.*", "tree.run"}}, {name: "lab.send", mode: "safe-retry"}, {name: "lab.write"},
		{name: "lab.nothing", mode: "keyed", keyField: "key"},
	}
	database := testdb.New(t)
	testdb.AddStranger(t, database)
	env := handlertest.Start(t, handlertest.Options{
		Registry: asking(labRegistry("1.0.0", tools...)), Domains: []any{lab, Tree{lab}}, Database: database,
		Worker: ruledBy(t, strings.Replace(fiveASession, "5", "50", 1)), NoWorker: true,
	})
	const rows = "create table lab_rows (id bigint generated always as identity primary key, text text)"
	if _, err := env.DB.Exec(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(lab.gate("never")) })
	env.StartWorker()

	for _, call := range []handlertest.Call{
		{Tool: "lab.send", Input: task(Task{Text: "a plain call"}), Session: "s"},
		inSession("s", "lab.write", "a transaction under a rule"),
		{Tool: "lab.send", Input: task(Task{Text: "a second attempt", Then: "transient once"}), Session: "s"},
		{Tool: "lab.nothing", Input: task(Task{Text: "a key", Key: "k"}), Session: "s"},
		inSession("s", "tree.run", "step a once; start b lab.send; start c lab.write; wait c; wait b; sleep d 1"),
		inSession("s", "tree.run", "down 2"),
	} {
		if r := env.Run(call); r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", call.Input, r.Result)
		}
	}
	again := handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "a key", Key: "k"}), Session: "s"}
	if r := env.Run(again); r.ReplayOf == "" {
		t.Errorf("the key was not found: %s", r.Result)
	}
	wrong := handlertest.Call{Tool: "lab.nothing", Input: `{"text": 1}`}
	if e := handlertest.ErrorOf(t, env.Run(wrong)); e.Code != receipts.ValidationError {
		t.Errorf("got %+v", e)
	}

	// Programs call the functions of package client, too, with any search path.
	id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "ask who; wait who"})})
	question := env.Question(id).ID
	for _, call := range []string{id, question} {
		_, err1 := client.Explain(t.Context(), env.DB, call)
		_, err2 := client.GetVisible(t.Context(), env.DB, call)
		_, err3 := client.Children(t.Context(), env.DB, call, 10)
		_, err4 := client.Journal(t.Context(), env.DB, call)
		_, err5 := client.AskedFor(t.Context(), env.DB, call, 10)
		_, err6 := client.OpenQuestionsAbout(t.Context(), env.DB, call, 10)
		_, err7 := client.IdempotencyMode(t.Context(), env.DB, "lab.nothing")
		_, err8 := client.PreviewRepeat(t.Context(), env.DB, call)
		_, err9 := client.Resume(t.Context(), env.DB, id)
		if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
			t.Error(err)
		}
	}
	cancelled := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "sleep a 600000"}), Session: "s"})
	env.UntilItWaits(cancelled, "time")
	if _, err := client.Cancel(t.Context(), env.DB, cancelled); err != nil {
		t.Error(err)
	}
	env.Await(cancelled)
	env.Answer(question, "Ada")
	if r := env.Await(id); !strings.HasPrefix(textOf(t, r), "Ada by ") {
		t.Errorf("got %s", r.Result)
	}
}
