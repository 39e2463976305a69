package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
)

// playModel starts a scripted model on 127.0.0.1 and gives the program's models a routes file for it. It does nothing
// for a program without agents.
func (d *demo) playModel(ctx context.Context, version string) (stop func(), err error) {
	if !slices.ContainsFunc(binding.Domains(d.program.Domains...),
		func(d handlers.Domain) bool { return d.Name() == "agent" }) {
		return func() {}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(d.modelSays), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	d.model = fmt.Sprintf("http://%s/v1", listener.Addr())
	d.environment = map[string]string{"LLM_ROUTES": `{"version": "demo ` + version + `", ` +
		`"providers": {"demo": {"dialect": "openai", "base_url": "` + d.model + `", "local": true}}, ` +
		`"targets": {"script": {"provider": "demo", "model": "a-script", "context": 100000, "max_output": 4096, ` +
		`"capabilities": ["tools"], "usd_per_mtok": [{"input": "1", "output": "2"}]}}, ` +
		`"routes": {"default": {"targets": ["script"]}}}`}
	return func() { _ = server.Close() }, nil
}

// modelSays answers a request in OpenAI's dialect with the next turn of the script: a tool call or the answer. An
// agent that may ask people asks one question, like the one in docs/agents.md.
func (d *demo) modelSays(w http.ResponseWriter, r *http.Request) {
	type object = map[string]any
	var asked struct {
		Messages []struct{ Role string }
		Tools    []struct{ Function struct{ Name string } }
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "this is not a request of OpenAI's dialect", http.StatusBadRequest)
		return
	}
	turn := 0
	for _, m := range asked.Messages {
		if m.Role == "assistant" {
			turn++
		}
	}
	script, answer := d.script, "The note describes two broken tiles, and there is a task to look at them."
	for _, t := range asked.Tools {
		if t.Function.Name == "wait_answer" {
			script, answer = askingScript, "There is a task for the repair on the day that you chose."
		}
	}
	says, reason := object{"role": "assistant", "content": answer}, "stop"
	if turn < len(script) {
		says = object{"role": "assistant", "content": nil,
			"tool_calls": []object{{"id": fmt.Sprintf("call_%d", turn+1), "type": "function",
				"function": object{"name": script[turn].tool, "arguments": script[turn].json()}}}}
		reason = "tool_calls"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object{"id": "demo", "object": "chat.completion", "model": "a-script",
		"choices": []object{{"index": 0, "message": says, "finish_reason": reason}},
		"usage":   object{"prompt_tokens": 400 + 60*turn, "completion_tokens": 30}})
}

// askingScript is the script for an agent that may ask people.
var askingScript = []*sample{
	{tool: "os_search_notes", input: map[string]any{"query": "Sam Carter"}},
	{tool: "wait_answer", input: map[string]any{"text": "On which day should the roof be repaired?"}},
	{tool: "os_create_task", input: map[string]any{"domain": "business", "title": "Repair the roof of Sam Carter"}},
}

// howToUse explains how another terminal uses the database, and the scripted model if there is one.
func (d *demo) howToUse() string {
	said := ""
	if d.private {
		said = "\nFor other terminals and programs:\n  export DATABASE_URL='" + d.config.DatabaseURL.Reveal() +
			"'\n"
	}
	if _, has := d.registry.Tool("agent.run"); has && d.environment != nil {
		said += "\nThe model is a script at " + d.model + ", which ignores the task. An agent that uses it:\n" +
			`  gem call agent.run '{"task": "Plan the repair of the roof.", "tools": ["os.search_notes", "os.create_task"]}' --wait` + "\n" +
			"It also serves the agent of docs/agents.md. For gem replay and workers of your own:\n" +
			"  export LLM_ROUTES='" + d.environment["LLM_ROUTES"] + "'\n"
	}
	return said
}

// work runs an agent on a task, if the program has agents, and prints the tools that it called.
func (d *demo) work(ctx context.Context, title string) error {
	if d.environment == nil {
		return nil
	}
	if _, has := d.registry.Tool("agent.run"); !has {
		return nil
	}
	d.script = []*sample{
		{tool: "os_search_notes", input: map[string]any{"query": title}},
		{tool: "os_create_task", input: map[string]any{"domain": "business", "title": "Look at the tiles: " + title}},
	}
	agent := &sample{tool: "agent.run", want: "succeeded",
		input: map[string]any{"task": "Read the note of the " + title + ", and plan what has to be done.",
			"tools": []string{"os.search_notes", "os.create_task"}}}
	var id string
	err := d.roundWith(ctx, "An agent works at a task: its model, here a script on this machine, calls tools until it "+
		"answers.", func(_ context.Context, call string) error {
		id = call
		return nil
	}, agent)
	if err != nil {
		return err
	}
	children, err := client.Children(ctx, d.frontend, id, 10)
	if err != nil {
		return refusal(err)
	}
	for _, c := range children {
		d.say("  %s: %s %s", c.Name, c.Tool, c.Status)
	}
	if len(children) != len(d.script) {
		return fmt.Errorf("the demo failed: the agent made %s, and should make %d",
			count(len(children), "call"), len(d.script))
	}
	return nil
}
