package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/schema"
)

// toolbox is what a model may call. It stands in the journal, so that a name means the same tool for as long as the agent works.
type toolbox struct {
	Tools      []offered `json:"tools"`
	NotOffered []leftOut `json:"not_offered,omitempty"`

	patterns []string // of the input
}

// offered is a tool, and the name that providers know it by.
type offered struct {
	Name string `json:"name"`
	As   string `json:"as"`
}

// leftOut is a tool that the input names, and that the user may not call.
type leftOut struct {
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// maxTools is how many tools a model is offered: more, and providers refuse the request.
const maxTools = 128

// approval is a tool that no model is offered: what it asks to be approved, nothing would run.
const approval = "wait.approval"

// toolbox finds the tools of the input, once for the call.
func (in *task) toolbox(ctx context.Context, call *handlers.Durable) (toolbox, error) {
	if len(in.Tools) == 0 {
		return toolbox{}, nil
	}
	box, err := handlers.Step(ctx, call, "tools", func(context.Context) (toolbox, error) { return choose(handlers.Tools(call), in.Tools) })
	box.patterns = in.Tools
	return box, err
}

// choose returns the tools that the patterns name. A pattern with which nothing can be meant is a mistake of the caller. A tool that is closed to
// the user is left out, and told: the same input serves callers of different rights.
func choose(all []handlers.Tool, patterns []string) (toolbox, error) {
	box, open := toolbox{}, map[string]bool{}
	for i, pattern := range patterns {
		domain, wild := strings.CutSuffix(pattern, "*")
		found, usable := false, false
		for _, t := range all {
			named := t.Name == pattern || wild && strings.HasPrefix(t.Name, domain)
			if !named || t.Name == approval {
				continue
			}
			found, usable = true, usable || t.Closed == ""
			switch {
			case t.Closed == "":
				open[t.Name] = true
			case !slices.ContainsFunc(box.NotOffered, func(l leftOut) bool { return l.Tool == t.Name }):
				box.NotOffered = append(box.NotOffered, leftOut{t.Name, t.Closed})
			}
		}
		switch {
		case pattern == approval:
			return box, wrongTool(i, approval+" is not for agents: nothing would run that it asks to be approved. A rule can ask for approvals")
		case !found && !wild:
			return box, wrongTool(i, fmt.Sprintf("there is no tool %s that agents may call", pattern)+
				cmp.Or(schema.DidYouMean(pattern, names(all)), ": see `calls` in the registry's entry of agent.run, "+
					"or in its `overrides` if the registry includes agent.run"))
		case !usable && wild:
			return box, wrongTool(i, fmt.Sprintf("there is no tool of %s that the agent may call", pattern))
		}
	}
	switch {
	case len(open) == 0:
		return box, &handlers.Failure{Code: "not_allowed", Message: "The user of this call may call none of the agent's tools.", Details: box}
	case len(open) > maxTools:
		return box, wrongTool(-1, fmt.Sprintf("they are %d tools, and an agent can have %d: name fewer", len(open), maxTools))
	}
	for _, name := range slices.Sorted(maps.Keys(open)) {
		box.Tools = append(box.Tools, offered{name, underscored(name)})
	}
	return box, nil
}

func names(all []handlers.Tool) (names []string) {
	for _, t := range all {
		names = append(names, t.Name)
	}
	return names
}

func wrongTool(i int, message string) error {
	path := "/tools"
	if i >= 0 {
		path = fmt.Sprintf("/tools/%d", i)
	}
	return &handlers.Failure{Code: "validation_error", Message: strings.Replace(fmt.Sprintf("The input does not fit: %s: %s.", path, message), "?.", "?", 1),
		Details: []map[string]string{{"path": path, "keyword": "tools", "message": message}}}
}

// underscored is the name that providers know a tool by: with _ for dots. The registry sees to it that they take it, and that no other tool has it.
func underscored(name string) string { return strings.ReplaceAll(name, ".", "_") }

// find returns the tool that a model calls by a name: the one it was given, or the tool's own.
func (b *toolbox) find(name string) (offered, bool) {
	i := slices.IndexFunc(b.Tools, func(t offered) bool { return t.As == name || t.Name == name })
	if i < 0 {
		return offered{}, false
	}
	return b.Tools[i], true
}

// described describes the tools to a model, as this worker's registry does. One that the registry has no longer is not described.
func (b *toolbox) described(call *handlers.Durable) []llm.Tool {
	if len(b.Tools) == 0 {
		return nil
	}
	entries := map[string]handlers.Tool{}
	for _, t := range handlers.Tools(call) {
		entries[t.Name] = t
	}
	var all []llm.Tool
	for _, t := range b.Tools {
		if entry, ok := entries[t.Name]; ok && entry.Closed == "" {
			all = append(all, llm.Tool{Name: t.As, Description: entry.Description, Parameters: llm.Parameters(entry.InputSchema)})
		}
	}
	return all
}
