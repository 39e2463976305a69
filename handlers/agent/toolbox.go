package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/schema"
)

// toolbox has the tools that a model may call. It is in the journal, so that a name means the same tool for the agent's
// whole life.
type toolbox struct {
	Tools      []offeredTool `json:"tools"`
	NotOffered []leftOut     `json:"not_offered,omitempty"`

	patterns []string // of the input
}

// offeredTool is a tool, and its name for providers.
type offeredTool struct {
	Name string `json:"name"`
	As   string `json:"as"`
}

// leftOut is a tool that the input names but the user may not call.
type leftOut struct {
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// maxTools is the maximum number of tools for a model: providers reject requests with more.
const maxTools = 128

// approval is a tool that is never offered to a model: nothing would run the call that the model asks to approve.
const approval = "wait.approval"

// toolbox finds the tools of the input, once for the call.
func (in *task) toolbox(ctx context.Context, call *handlers.Durable) (toolbox, error) {
	if len(in.Tools) == 0 {
		return toolbox{}, nil
	}
	box, err := handlers.Step(ctx, call, "tools", func(context.Context) (toolbox, error) {
		return choose(handlers.Tools(call), in.Tools)
	})
	box.patterns = in.Tools
	return box, err
}

// choose returns the tools that the patterns name. A pattern that matches no usable tool is a mistake of the caller. A
// tool that is closed to the user is omitted and reported, because callers with different rights may use the same
// input.
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
			return box, wrongTool(i, approval+" is not for agents: nothing would run that it asks to be approved. A rule can "+
				"ask for approvals")
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
		return box, &handlers.Failure{Code: "not_allowed", Message: "The user of this call may call none of the agent's " +
			"tools.", Details: box}
	case len(open) > maxTools:
		return box, wrongTool(-1, fmt.Sprintf("they are %d tools, and an agent can have %d: name fewer", len(open), maxTools))
	}
	for _, name := range slices.Sorted(maps.Keys(open)) {
		box.Tools = append(box.Tools, offeredTool{name, underscored(name)})
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
	return &handlers.Failure{Code: "validation_error", Message: strings.Replace(fmt.Sprintf("The input does not fit: "+
		"%s: %s.", path, message), "?.", "?", 1),
		Details: []map[string]string{{"path": path, "keyword": "tools", "message": message}}}
}

// underscored returns a tool's name for providers, with _ for dots. The registry ensures that providers accept it, and
// that no other tool has it.
func underscored(name string) string { return strings.ReplaceAll(name, ".", "_") }

// find returns the tool that a model calls by a name: the name for providers, or the tool's own name.
func (b *toolbox) find(name string) (offeredTool, bool) {
	i := slices.IndexFunc(b.Tools, func(t offeredTool) bool { return t.As == name || t.Name == name })
	if i < 0 {
		return offeredTool{}, false
	}
	return b.Tools[i], true
}

// described describes the tools to a model, by this worker's registry. It omits tools that the registry no longer has.
func (b *toolbox) described(call *handlers.Durable) []provider.Tool {
	if len(b.Tools) == 0 {
		return nil
	}
	entries := map[string]handlers.Tool{}
	for _, t := range handlers.Tools(call) {
		entries[t.Name] = t
	}
	var all []provider.Tool
	for _, t := range b.Tools {
		if entry, ok := entries[t.Name]; ok && entry.Closed == "" {
			all = append(all, provider.Tool{Name: t.As, Description: entry.Description,
				Parameters: provider.Parameters(entry.InputSchema)})
		}
	}
	return all
}
