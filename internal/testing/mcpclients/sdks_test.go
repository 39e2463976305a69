package mcpclients_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestClientsListAndCall(t *testing.T) {
	t.Parallel()
	p := start(t)
	want := p.offered()
	input := map[string]any{"domain": "business", "title": "Roof", "content": "x"}
	stdio, http := p.stdio(), p.http()
	runs := 0
	for client, first := range map[string]server{"client": http, "sdk": stdio, "langchain": stdio, "agents": http} {
		for _, s := range []server{stdio, http} {
			if s.URL != first.URL && !long() {
				continue
			}
			runs++
			name := client + " over stdio"
			if s.URL != "" {
				name = client + " over HTTP"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				came, _ := p.run(t, job{Client: client, Server: s,
					Do: []step{{List: true}, {Call: "os_create_note", Arguments: input}, {Call: "lab_fail"}}})
				slices.Sort(came[0].Names)
				if !slices.Equal(came[0].Names, want) {
					t.Errorf("got %q\nwant %q", came[0].Names, want)
				}
				if !strings.Contains(came[1].Text, "note_id") || came[1].IsError {
					t.Errorf("a call: got %+v", came[1])
				}
				if said := came[2].Text + came[2].Threw; !strings.Contains(said, "The lab is closed.") || client == "langchain" &&
					came[2].Kind != "ToolException" ||
					client != "langchain" && !came[2].IsError {
					t.Errorf("a call that fails: got %+v", came[2])
				}
			})
		}
	}
	t.Cleanup(func() {
		p.count(t, "select count(*) from core_tool_calls where tool_name = 'os.create_note' and created_by = 'ada' and "+
			"status = 'succeeded'", runs)
	})
}

func TestAToolIsCalledByBothOfItsNames(t *testing.T) {
	t.Parallel()
	p := start(t)
	came, _ := p.run(t, job{Client: "client", Server: p.http(), Version: "auto",
		Do: []step{{Call: "os_health_check"}, {Call: "os.health_check"}}})
	for _, c := range came {
		if c.IsError || !strings.Contains(c.Text, "{") {
			t.Errorf("got %+v", c)
		}
	}
	p.count(t, "select count(*) from core_tool_calls where tool_name = 'os.health_check'", 2)
}

func TestALongCallGrowsThenIsPendingThenHasAReceipt(t *testing.T) {
	t.Parallel()
	p := start(t)
	transports := map[string]server{"HTTP": p.http("--wait", "3s")}
	if long() {
		transports["stdio"] = p.stdio("--wait", "3s")
	}
	for name, s := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			came, _ := p.run(t, job{Client: "sdk", Server: s, Do: []step{
				{Call: "lab_steps", Arguments: map[string]any{"seconds": 9}, Progress: true, Key: "one"},
				{Call: "lab_steps", Arguments: map[string]any{"seconds": 9}, Key: "one"},
			}})
			var pending struct {
				Of struct {
					CallID  string `json:"call_id"`
					Message string
				} `json:"gem_pending"`
			}
			if err := json.Unmarshal(came[0].Structured, &pending); err != nil || came[0].IsError ||
				!strings.Contains(pending.Of.Message, "gem_result") {
				t.Fatalf("got %+v, %v; want a call that is pending", came[0], err)
			}
			if told := came[0].Progress; len(told) == 0 || !slices.IsSorted(told) ||
				len(slices.Compact(slices.Clone(told))) != len(told) {
				t.Errorf("progress: got %v, want numbers that grow", told)
			}
			id := pending.Of.CallID
			if again := came[1]; again.Meta["io.github.gemworker/callId"] != id {
				t.Errorf("asked again with its key: got %+v, want call %s", again, id)
			}
			receipt := p.Await(id)
			came, _ = p.run(t, job{Client: "sdk", Server: s,
				Do: []step{{Call: "gem_result", Arguments: map[string]any{"call_id": id, "wait_seconds": 1}}}})
			if !strings.Contains(string(came[0].Structured), receipt.ID) ||
				!strings.Contains(string(came[0].Structured), `"done"`) {
				t.Errorf("gem_result: got %+v", came[0])
			}
		})
	}
}

func TestAKilledServerIsAskedAgain(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("the tests of package mcp have the short form. Set GEM_TEST_LONG=1")
	}
	p := start(t)
	first, kill := p.served()
	do := []step{{Call: "lab_ask", Key: "k"}}
	gone := make(chan outcome)
	go func() {
		came, _ := p.run(t, job{Client: "client", Server: first, Version: "auto", Do: do})
		gone <- came[0]
	}()
	var id string
	p.Until("the call is there", func() bool {
		return p.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where tool_name = 'lab.ask'").Scan(&id) == nil
	})
	kill()
	if lost := <-gone; lost.Threw == "" {
		t.Errorf("got %+v from a server that was killed", lost)
	}
	p.Answer(p.Question(id).ID, 4)
	receipt := p.Await(id)
	for _, s := range []server{p.http(), p.stdio()} {
		came, _ := p.run(t, job{Client: "client", Server: s, Version: "auto", Do: do})
		if string(came[0].Structured) != `{"text":"4"}` || came[0].Meta["io.github.gemworker/receiptId"] != receipt.ID {
			t.Errorf("asked again with its key: got %+v, want receipt %s", came[0], receipt.ID)
		}
	}
	p.count(t, "select count(*) from core_tool_calls where tool_name = 'lab.ask'", 1)
}

func TestAnApprovalIsALink(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("the tests of package mcp have the short form. Set GEM_TEST_LONG=1")
	}
	p := start(t)
	s := p.stdio("--wait", "10s")
	s.Env["GEM_DASHBOARD_URL"] = "https://gem.example"
	for name, version := range map[string]string{"the newest version": "auto", "an earlier one": "legacy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			came, asked := p.run(t, job{Client: "client", Server: s, Version: version, Answer: map[string]bool{"approved": true},
				Links: true,
				Do:    []step{{Call: "lab_approve", Arguments: map[string]any{"by": []string{"user:ada"}}}}})
			if !strings.Contains(came[0].Text, "gem_pending") {
				t.Errorf("got %+v", came[0])
			}
			if len(asked) != 1 || !strings.Contains(string(asked[0]), `"url":"https://gem.example/questions/`) ||
				strings.Contains(string(asked[0]), "requestedSchema") {
				t.Errorf("asked %s, want a link", asked)
			}
		})
	}
	t.Cleanup(func() { p.count(t, "select count(*) from core_tool_events where event = 'answered'", 0) })
}

func TestAUserAnswersInAForm(t *testing.T) {
	t.Parallel()
	p := start(t)
	four, ask := map[string]int{"answer": 4}, []step{{Call: "lab_ask"}}
	jobs := map[string]job{
		"the newest version over HTTP":  {Client: "client", Server: p.http(), Version: "auto", Answer: four, Do: ask},
		"an earlier version over stdio": {Client: "client", Server: p.stdio(), Answer: four, Do: ask},
	}
	if long() {
		jobs["the newest version over stdio"] = job{Client: "client", Server: p.stdio(), Version: "auto", Answer: four,
			Do: ask}
		jobs["the SDK before over stdio"] = job{Client: "sdk", Server: p.stdio(), Answer: four, Do: ask}
	}
	for name, c := range jobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			came, asked := p.run(t, c)
			if string(came[0].Structured) != `{"text":"4"}` {
				t.Errorf("got %+v", came[0])
			}
			if len(asked) != 1 || !strings.Contains(string(asked[0]), "How many?") {
				t.Errorf("asked %s, want once", asked)
			}
		})
	}
	t.Cleanup(func() {
		p.count(t, "select count(*) from core_tool_calls where tool_name = 'lab.ask'", len(jobs))
		p.count(t, "select count(*) from core_tool_events where event = 'answered' and data ->> 'by' = 'ada'", len(jobs))
	})
}

func TestWhoCannotBeAskedHearsWhatIsAsked(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("the tests of package mcp have the short form. Set GEM_TEST_LONG=1")
	}
	p := start(t)
	for name, c := range map[string]job{
		"no form in the newest version": {Client: "client", Server: p.stdio("--wait", "10s"), Version: "auto",
			Do: []step{{Call: "lab_ask"}}},
		"no form over HTTP before it": {Client: "sdk", Server: p.http("--wait", "10s"), Answer: map[string]int{"answer": 4},
			Do: []step{{Call: "lab_ask"}}},
		"an approval is no form": {Client: "client", Server: p.stdio("--wait", "10s"), Version: "auto",
			Answer: map[string]bool{"approved": true},
			Do:     []step{{Call: "lab_approve", Arguments: map[string]any{"by": []string{"user:ada"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			came, asked := p.run(t, c)
			if !strings.Contains(came[0].Text, "gem_pending") || !strings.Contains(came[0].Text, "gem answer ") &&
				!strings.Contains(came[0].Text, "gem approve ") {
				t.Errorf("got %+v", came[0])
			}
			if len(asked) != 0 {
				t.Errorf("asked %s", asked)
			}
		})
	}
	t.Cleanup(func() { p.count(t, "select count(*) from core_tool_events where event = 'answered'", 0) })
}
