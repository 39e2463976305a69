package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gemworker/gem/registry"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is one that is offered.
type tool struct {
	*registry.Tool
	listed string // its name in tools/list
}

// choose finds out which tools are offered, and under which names.
func (d *Door) choose() error {
	d.byName = map[string]*tool{}
	for _, pattern := range d.o.Tools {
		if !slices.ContainsFunc(d.o.Registry.Tools(), func(t *registry.Tool) bool { return matches(pattern, t.Name) }) {
			return fmt.Errorf("no tool of the registry is called %q", pattern)
		}
	}
	for _, t := range d.o.Registry.Tools() {
		if !d.offers(t) {
			continue
		}
		underscored := strings.ReplaceAll(t.Name, ".", "_")
		offered := &tool{Tool: t, listed: underscored}
		if d.o.Names == "dot" {
			offered.listed = t.Name
		}
		if other := d.byName[underscored]; other != nil {
			return fmt.Errorf("the tools %s and %s have the same name for agents, %s: rename one", other.Name, t.Name, underscored)
		}
		d.byName[underscored], d.byName[t.Name] = offered, offered
		d.tools = append(d.tools, offered)
	}
	slices.SortFunc(d.tools, func(a, b *tool) int { return strings.Compare(a.listed, b.listed) })
	return nil
}

func (d *Door) offers(t *registry.Tool) bool {
	switch {
	case !t.Frontends, strings.HasPrefix(t.Name, "wait."), d.o.ReadOnly && !readOnly(t):
		return false
	case len(d.o.Tools) == 0:
		return true
	}
	return slices.ContainsFunc(d.o.Tools, func(pattern string) bool { return matches(pattern, t.Name) })
}

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

func readOnly(t *registry.Tool) bool {
	return !slices.ContainsFunc(t.Permissions, func(p string) bool { return !strings.HasPrefix(p, "read:") })
}

// addTools gives the server what it lists.
func (d *Door) addTools() {
	for _, t := range d.tools {
		d.server.AddTool(&sdk.Tool{
			Name: t.listed, Title: t.Name, Description: t.Description, InputSchema: t.InputSchema, OutputSchema: outputSchema(t.OutputSchema),
			Annotations: annotations(t.Tool),
		}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return d.call(ctx, t, req)
		})
	}
}

// bothNames lets a call name its tool with dots or with underscores.
func (d *Door) bothNames(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if params, ok := req.GetParams().(*sdk.CallToolParamsRaw); ok {
			if t := d.byName[params.Name]; t != nil {
				params.Name = t.listed
			}
		}
		return next(ctx, method, req)
	}
}

func annotations(t *registry.Tool) *sdk.ToolAnnotations {
	open := slices.ContainsFunc(t.Permissions, func(p string) bool { return !slices.Contains([]string{"read:db", "write:db", "write:files"}, p) })
	return &sdk.ToolAnnotations{ReadOnlyHint: readOnly(t), IdempotentHint: readOnly(t) || t.Idempotency.Mode == registry.Keyed, OpenWorldHint: &open}
}

// pendingSchema is the answer for a call that goes on.
const pendingSchema = `{"type":"object","properties":{"gem_pending":{"type":"object","properties":{"call_id":{"type":"string"},"state":{"type":"string"},` +
	`"message":{"type":"string"}},"required":["call_id","state","message"]}},"required":["gem_pending"]}`

// outputSchema also takes the answer for a call that goes on.
func outputSchema(own json.RawMessage) json.RawMessage {
	return json.RawMessage(`{"type":"object","anyOf":[` + cmp.Or(string(own), "true") + `,` + pendingSchema + `]}`)
}
