package worker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

// openFor returns the questions that a signed-in user may answer.
func openFor(t *testing.T, env *handlertest.Env, subject string) []client.Question {
	t.Helper()
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	claims := `{"role": "authenticated", "sub": "` + subject + `"}`
	if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true)", claims); err != nil {
		t.Fatal(err)
	}
	all, err := client.OpenQuestions(t.Context(), tx, 100)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAQuestionShowsThoseWhoMayDecideWhatIsAsked(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, `{"name": "dear", "tools": ["lab.write"], "action": "ask",
		"ask": {"of": ["finance"], "question": "Write {text} for {/key}, {{once}}?", "within": "24h"}}`))
	financed(t, env)
	env.StartWorker()
	input := `{"text": "dear?\n\nIt was approved.\u202e", "key": "` + strings.Repeat("k", 10_000) + `"}`
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: input, CreatedBy: "ada", Session: "s"})
	question := questionOf(t, env, id)
	for _, who := range []string{"ada", "bob"} { // the caller who made the call, and one without the role
		if open := openFor(t, env, who); len(open) > 0 {
			t.Errorf("%s sees %+v", who, open)
		}
	}
	open := openFor(t, env, "carol")
	if len(open) != 1 {
		t.Fatalf("got %+v", open)
	}
	q := open[0]
	var arguments, written any
	if err := json.Unmarshal(q.Arguments, &arguments); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(input), &written); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(written, arguments); diff != "" {
		t.Error(diff)
	}
	if want := `Write "dear? It was approved." for ` + strings.Repeat("k", 99) + "…, {once}?"; q.Text != want {
		t.Errorf("got  %q\nwant %q", q.Text, want)
	}
	if q.ID != question || q.About != "lab.write" || q.AskedBy != "ada" || q.CallID != id || q.Root != id ||
		q.AskedFor != client.AskerRule || q.Since.IsZero() || q.Until.Sub(q.Since) > 24*time.Hour ||
		q.Until.Sub(q.Since) < 23*time.Hour {
		t.Errorf("got %+v", q)
	}
	sound(t, env)
}

// An approval of a handler, or one that a frontend inserts, may have no text.
func TestAnApprovalWithoutATextSaysWhatItIsAbout(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	financed(t, env)
	env.StartWorker()
	tree := startTreeCall(env, "approve a lab.send role:finance; wait a")
	inserted := env.Insert(handlertest.Call{Tool: "wait.approval", CreatedBy: "bob", SignedIn: true,
		Input: `{"tool": "pay.refund", "input": {"booking": "b9\n", "amount": 250}, "by": ["role:finance"],
			"digest": "` + strings.Repeat("0", 64) + `"}`})
	var open []client.Question
	env.Until("both questions", func() bool {
		open = openFor(t, env, "carol")
		return len(open) == 2
	})
	got := map[client.Asker][]string{}
	for _, q := range open {
		got[q.AskedFor] = []string{q.CallID, q.Root, q.AskedBy, q.About, q.Text}
	}
	want := map[client.Asker][]string{
		client.AskerHandler: {tree, tree, "ada", "lab.send", `lab.send: gate "", key k, text a, then "".`},
		client.AskerUser:    {"", inserted, "bob", "pay.refund", "pay.refund: amount 250, booking b9."},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if about, err := client.OpenQuestionsAbout(t.Context(), env.DB, tree, 10); err != nil || len(about) > 0 {
		t.Errorf("an approval is shown to who may not decide: %+v %v", about, err)
	}
}

func TestTheReasonOfADecisionIsOnTheReceiptOfTheCall(t *testing.T) {
	t.Parallel()
	for _, approved := range []bool{true, false} {
		env := startRuled(t, ruledBy(t, asks))
		financed(t, env)
		env.StartWorker()
		id := env.Insert(inSession("s", "lab.write", "dear"))
		question := questionOf(t, env, id)
		const reason = "the guest is right"
		decision := map[string]any{"approved": approved, "reason": reason}
		if err := answerAs(t, env, "carol", question, decision, ""); err != nil {
			t.Fatal(err)
		}
		r := env.Await(id)
		var effects receipts.Effects
		if err := json.Unmarshal(r.Effects, &effects); err != nil || effects.Rules == nil {
			t.Fatalf("%s %v", r.Effects, err)
		}
		switch given := effects.Rules.Approvals; {
		case approved:
			if len(given) != 1 || given[0].Reason != reason || given[0].By != "carol" || given[0].ID != question {
				t.Errorf("got %s", r.Effects)
			}
		case len(given) != 0 || effects.Rules.Verdicts[0].Seen.Reason != reason ||
			effects.Rules.Verdicts[0].Seen.By != "carol" ||
			!strings.Contains(handlertest.ErrorOf(t, r).Message, "carol denied it: the guest is right."):
			t.Errorf("got %s, %s", r.Result, r.Effects)
		}
		sound(t, env)
	}
}

// A call that a person denied does not repeat the success of another call with its key.
func TestADenialCountsBeforeTheKey(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "dear", "tools": ["lab.nothing"], "action": "ask", "ask": {"of": ["finance"]}}`))
	financed(t, env)
	env.StartWorker()
	call := handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"}), CreatedBy: "ada"}
	first, second := env.Insert(call), env.Insert(call)
	for _, of := range []struct {
		id       string
		approved bool
		want     string
	}{{first, true, "succeeded"}, {second, false, "approval_denied"}} {
		if err := answerAs(t, env, "carol", questionOf(t, env, of.id),
			map[string]any{"approved": of.approved, "reason": "once"}, ""); err != nil {
			t.Fatal(err)
		}
		if r := env.Await(of.id); codeOf(r) != of.want ||
			of.approved == strings.Contains(string(r.Result), "carol denied it: once.") {
			t.Errorf("got %s, repeating %q", r.Result, r.ReplayOf)
		}
	}
	if r := env.Run(call); r.ReplayOf == "" { // nobody denied this one
		t.Errorf("got %s", r.Result)
	}
	sound(t, env)
}
