package handlers_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
)

// The model, the phone and the mail that Quotes works with.
type (
	model struct{}
	phone struct{ rang []string }
	Comms struct{ sent *[]string }
)

func (model) Write(_ context.Context, request string) (string, error) {
	return "2,400 for " + request, nil
}

func (p *phone) Ring(_ context.Context, number string) error {
	p.rang = append(p.rang, number)
	return nil
}

func (c Comms) SendEmail(_ context.Context, call *handlers.Call, in Mail) (MailSent, error) {
	*c.sent = append(*c.sent, in.To+": "+in.Body)
	call.Sent("email", in.To, call.ID)
	return MailSent{}, nil
}

// Suppliers is what Offers works with.
type Suppliers struct{}

func (Suppliers) Price(_ context.Context, _ *handlers.Call, in Item) (Price, error) {
	return Price{len(in.Item)}, nil
}

// exampleRegistry has the tools of the examples.
func exampleRegistry(t *testing.T) []byte {
	t.Helper()
	type object = map[string]any
	entry := func(name string, calls []string, required ...string) object {
		properties := object{}
		for _, field := range required {
			properties[field] = object{"type": "string"}
		}
		return object{"name": name, "input_schema": object{"type": "object", "required": required, "properties": properties},
			"output_schema": object{"type": "object"},
			"permissions":   []string{}, "idempotency": object{"mode": "none"}, "timeout_ms": 60000,
			"receipt_fields": []string{},
			"calls":          calls}
	}
	encoded, err := json.Marshal(object{"version": "1.0.0", "include": []string{"wait.event"},
		"tools": []object{entry("quotes.send", []string{"comms.send_email"}, "to", "request"),
			entry("comms.send_email", []string{}, "to", "subject", "body"),
			entry("offers.make", []string{"suppliers.*"}, "item"),
			entry("offers.compare", []string{}, "item"), entry("suppliers.price", []string{}, "item")}})
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// The example of docs/durable.md, which takes more than a week, and workers that come and go.
func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		approved, replied bool
		want              string
		rang              int
	}{
		"approved, no reply": {true, false, `"reminded": true`, 1},
		"approved, a reply":  {true, true, `"replied": true`, 0},
		"denied":             {false, false, `"error_code": "not_allowed"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring, sent := &phone{}, &[]string{}
			env := handlertest.Start(t, handlertest.Options{Registry: exampleRegistry(t),
				Domains: []any{Quotes{model{}, ring}, Comms{sent}}, NoWorker: true})
			if _, err := env.DB.Exec(t.Context(), "create table quotes (id bigint generated always as identity, text text, "+
				"call_id uuid); insert into gem.roles values (session_user, 'sales')"); err != nil {
				t.Fatal(err)
			}
			w := env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "quotes.send", Input: `{"to": "bob", "request": "a roof"}`,
				CreatedBy: "ada"})
			approval := env.Question(id)
			if approval.Tool != "wait.approval" || len(*sent) > 0 {
				t.Fatalf("%+v, and %v was sent", approval, *sent)
			}
			w.Stop()
			env.Answer(approval.ID, map[string]any{"approved": c.approved})
			env.StartWorker()
			if c.approved {
				env.Until("the week to begin", func() bool {
					call, err := client.Get(t.Context(), env.DB, id)
					return err == nil && call.WaitsFor == "time"
				})
				env.Pass(7 * 24 * time.Hour)
				env.Answer(env.Question(id).ID, c.replied)
			}
			r := env.Await(id)
			if !strings.Contains(string(r.Result), c.want) || len(ring.rang) != c.rang ||
				len(*sent) != map[bool]int{true: 1}[c.approved] {
				t.Errorf("%s; it rang %v, and sent %v", r.Result, ring.rang, *sent)
			}
		})
	}
}

// The other examples of docs/durable.md: calls at the same time, an answer to the call itself, and code that has
// changed.
func TestTheOtherExamplesRun(t *testing.T) {
	t.Parallel()
	const later = 15 * 24 * time.Hour
	for name, c := range map[string]struct {
		tool string
		meet func(env *handlertest.Env, id string)
		want string
	}{
		"paid": {"offers.make", func(env *handlertest.Env, id string) { env.Answer(id, Payment{2400}, "paid") },
			`"cents": 2400`},
		"declined": {"offers.make", func(env *handlertest.Env, id string) { env.Answer(env.Question(id).ID, "too dear") },
			`"cents": 0`},
		"nobody pays": {"offers.make", func(env *handlertest.Env, id string) {
			env.UntilItWaits(id, "answer") // its deadline counts from then
			env.Pass(later)
		}, `"error_code": "timeout"`},
		"the new code": {"offers.compare", func(*handlertest.Env, string) {}, `"prices": [1, 2]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: exampleRegistry(t), Domains: []any{Offers{}, Suppliers{}}})
			id := env.Insert(handlertest.Call{Tool: c.tool, Input: `{"item": "a roof"}`})
			c.meet(env, id)
			if r := env.Await(id); !strings.Contains(string(r.Result), c.want) {
				t.Errorf("%s, want %s", r.Result, c.want)
			}
		})
	}
}
