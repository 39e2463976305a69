package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// errand is the task of an agent of a crowd, for its model.
type errand struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Turns int    `json:"turns"` // it answers in the last one
}

// The kinds of agents.
const (
	thatWorks       = "works"     // and answers in its last turn
	thatNeverEnds   = "never"     // answers, and comes to its turn limit
	thatRefuses     = "refuses"   // in the middle
	thatIsPoor      = "poor"      // has money for some turns
	thatIsCancelled = "cancelled" // by its user, in the middle
)

// deeds are the tool calls of a model. Each has a unique mark: the agent, the turn, the model's request, and its
// position among the calls.
var deeds = []struct {
	name   string
	weight int
}{
	{"plain", 40},     // delta.keep: a row
	{"fail", 8},       // the same, and then it fails
	{"forbidden", 10}, // the same, which a rule blocks
	{"big", 6},        // the same, which people approve or deny
	{"scarce", 10},    // the same, which a rule allows a session some times
	{"once", 10},      // delta.keep_once: a row for each key, which several agents share
	{"question", 6},   // wait.answer
	{"unknown", 5},    // no tool
	{"helper", 3},     // agent.run: an agent of two turns
}

// keep is the input of delta.keep and delta.keep_once.
type keep struct {
	Mark string `json:"mark"`
	How  string `json:"how"`
	Key  string `json:"key,omitempty"`
}

// approves is what people decide on a call that is big, and answerTo what they answer to a question.
func approves(mark string) bool       { return crc32.ChecksumIEEE([]byte(mark))%3 > 0 }
func answerTo(question string) string { return "to: " + question }

// crowdModel is the model of a crowd's agents. It draws random tool calls for each request, since a real model's
// answers differ on a retry: no trace of a lost answer may appear. It reads its conversations, which must not change.
type crowdModel struct {
	server *llmtest.Server
	seed   uint64
	cancel func(name string) // asks for an agent's end

	mu     sync.Mutex
	heard  map[string][]string // by agent: the messages, as it first read them
	asked  []request
	faults []string
}

// request is one that the model was asked: llmtest calls it req_ and its number.
type request struct {
	n             int
	name          string
	turn          int
	input, output int64
}

func (m *crowdModel) fault(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

// think answers a request.
func (m *crowdModel) think(r *llmtest.Request) (said llmtest.Script) {
	draw := rand.New(rand.NewPCG(m.seed, uint64(r.N)))
	used := provider.Usage{Input: 1000 + draw.Int64N(1000), Output: 100 + draw.Int64N(400), Known: true}
	e, turn := m.read(r)
	m.mu.Lock()
	m.asked = append(m.asked, request{r.N, e.Name, turn, used.Input, used.Output})
	m.mu.Unlock()
	middle := turn == (e.Turns+1)/2
	switch {
	case e.Kind == thatRefuses && middle:
		said = llmtest.Say("I will not.")
		said.Stop = provider.Refusal
	case e.Kind == thatWorks && turn == e.Turns:
		said = llmtest.Say("done: " + e.Name)
	default:
		for i := range 1 + draw.IntN(3) {
			p := m.want(draw, &e, fmt.Sprintf("%s turn %d request %d call %d", e.Name, turn, r.N, i+1))
			p.Type, p.ID = provider.ToolCall, fmt.Sprintf("id_%d_%d", r.N, i+1)
			said.Parts = append(said.Parts, p)
		}
	}
	said.Usage, said.Delta = &used, 64
	pause := time.Duration(draw.IntN(30)) * time.Millisecond
	said.Before = func(ctx context.Context, delta int) {
		if delta >= 1 {
			return
		}
		if e.Kind == thatIsCancelled && middle && delta < 0 {
			m.cancel(e.Name)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return said
}

// want draws a call to a tool.
func (m *crowdModel) want(draw *rand.Rand, e *errand, mark string) provider.Part {
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	at, deed := draw.IntN(total), ""
	for _, d := range deeds {
		if at -= d.weight; at < 0 {
			deed = d.name
			break
		}
	}
	call := func(name string, input any) provider.Part {
		encoded, _ := json.Marshal(input)
		return provider.Part{Name: name, Arguments: encoded}
	}
	switch deed {
	case "once":
		return call("delta_keep_once", keep{mark, deed, fmt.Sprintf("key %d", draw.IntN(40))})
	case "question":
		return call("wait_answer", map[string]any{"text": mark})
	case "unknown":
		return call("delta_gone", keep{Mark: mark, How: deed})
	case "helper":
		if e.Turns > 2 {
			task, _ := json.Marshal(errand{mark, thatWorks, 2})
			return call("agent_run", map[string]any{"task": string(task), "tools": crowdTools, "max_output_tokens": 1000})
		}
		deed = "plain"
	}
	return call("delta_keep", keep{Mark: mark, How: deed})
}

// read reads a conversation, and returns its agent and the requested turn.
func (m *crowdModel) read(r *llmtest.Request) (e errand, turn int) {
	talk := conversation(r)
	if err := json.Unmarshal([]byte(talk[0].Content[0].Text), &e); err != nil {
		m.fault("a task is %v", talk[0])
		return e, 0
	}
	m.mu.Lock()
	for i, message := range talk {
		text, _ := json.Marshal(message)
		switch known := m.heard[e.Name]; {
		case i == len(known):
			m.heard[e.Name] = append(known, string(text))
		case known[i] != string(text):
			m.faults = append(m.faults, fmt.Sprintf("message %d of agent %s was %s, and then %s", i, e.Name, known[i], text))
		}
	}
	m.mu.Unlock()
	for i := 1; i+1 < len(talk); i += 2 {
		said, seen := talk[i], talk[i+1]
		said.Content = slices.DeleteFunc(slices.Clone(said.Content),
			func(p provider.Part) bool { return p.Type != provider.ToolCall })
		if said.Role != provider.Assistant || seen.Role != provider.FromTool || len(said.Content) != len(seen.Content) {
			m.fault("turn %d of agent %s: it said %+v, and saw %+v", i/2+1, e.Name, said, seen)
			continue
		}
		for j, p := range said.Content {
			if fault := observed(&p, &seen.Content[j], r.Dialect); fault != "" {
				m.fault("turn %d of agent %s: call %d of %s with %s, of which it saw %s: %s", i/2+1, e.Name, j+1, p.Name,
					p.Arguments, seen.Content[j].Content, fault)
			}
		}
	}
	if len(talk)%2 == 0 {
		m.fault("agent %s asks with %d messages", e.Name, len(talk))
	}
	return e, (len(talk) + 1) / 2
}

// conversation returns the messages of a request in one form: each dialect has its own of results, and Postgres its own
// of objects.
func conversation(r *llmtest.Request) (talk []provider.Message) {
	for _, m := range r.Asked.Messages {
		for i := range m.Content {
			p := &m.Content[i]
			p.Content = strings.TrimPrefix(p.Content, "Error: ")
			var object map[string]any
			if json.Unmarshal(p.Arguments, &object) == nil {
				p.Arguments, _ = json.Marshal(object)
			}
		}
		if last := len(talk) - 1; last >= 0 && talk[last].Role == m.Role {
			talk[last].Content = append(slices.Clone(talk[last].Content), m.Content...)
		} else {
			talk = append(talk, m)
		}
	}
	return talk
}

// observed returns the fault in an agent's observation of a call, or an empty text.
func observed(call, result *provider.Part, dialect llmtest.Dialect) string {
	var (
		in struct {
			keep
			Text, Task string
		}
		seen struct {
			Status string
			Code   string `json:"error_code"`
			Result struct {
				Answer string
				keep
			}
		}
	)
	if json.Unmarshal(call.Arguments, &in) != nil || json.Unmarshal([]byte(result.Content), &seen) != nil {
		return "it cannot be read"
	}
	came := seen.Status
	if came == "failed" {
		came = seen.Code
	}
	want := []string{"succeeded"}
	own := seen.Result.Mark == in.Mark
	switch {
	case call.Name == "wait_answer":
		own = seen.Result.Answer == answerTo(in.Text)
	case call.Name == "agent_run":
		own = strings.Contains(in.Task, strings.TrimPrefix(seen.Result.Answer, "done: "))
	case call.Name == "delta_keep_once":
		own = seen.Result.Key == in.Key
	case in.How == "fail":
		want = []string{"no_luck"}
	case in.How == "forbidden":
		want = []string{"rule_blocked"}
	case in.How == "scarce":
		want = append(want, "limit_reached")
	case in.How == "unknown":
		want = []string{"unknown_tool"}
	case in.How == "big" && !approves(in.Mark):
		want = []string{"approval_denied"}
	}
	switch {
	case !slices.Contains(want, came):
		return "it was to come to " + strings.Join(want, " or ")
	case came == "succeeded" && !own:
		return "that is of another call"
	case dialect != llmtest.Gemini && result.ToolCallID != call.ID:
		return "that is the result of " + result.ToolCallID
	}
	return ""
}
