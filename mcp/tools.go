package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/registry"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is an offered tool.
type tool struct {
	*registry.Tool
	listed string // its name in tools/list
	keyed  bool   // its input has our gem_key
}

// choose selects the tools to offer, and the tools that would be offered if they were open.
func (d *Server) choose() error {
	d.byName = map[string]*tool{}
	for _, pattern := range d.o.Tools {
		if !slices.ContainsFunc(d.o.Registry.Tools(), func(t *registry.Tool) bool { return t.Matches(pattern) }) {
			return fmt.Errorf("the registry has no tool %q%s", pattern, d.o.Registry.DidYouMean(pattern))
		}
	}
	for _, t := range d.o.Registry.Tools() {
		switch {
		case strings.HasPrefix(t.Name, "wait."), d.o.ReadOnly && !readOnly(t):
		case len(d.o.Tools) > 0 && !slices.ContainsFunc(d.o.Tools, t.Matches):
		case !t.Frontends:
			d.closed = append(d.closed, t)
		default:
			offered := &tool{Tool: t, listed: t.FlatName()}
			if d.o.Dots {
				offered.listed = t.Name
			}
			d.byName[t.FlatName()], d.byName[t.Name] = offered, offered
			d.tools = append(d.tools, offered)
		}
	}
	slices.SortFunc(d.tools, func(a, b *tool) int { return strings.Compare(a.listed, b.listed) })
	return nil
}

// readOnly reports whether all permissions of a tool are of the form read:….
func readOnly(t *registry.Tool) bool {
	return !slices.ContainsFunc(t.Permissions, func(p string) bool { return !strings.HasPrefix(p, "read:") })
}

// Closed returns one line that names the tools that are not offered because signed-in users may not call them, and
// how to open them. It is empty if there are none.
func (d *Server) Closed() string {
	if len(d.closed) == 0 {
		return ""
	}
	var why []string
	for _, t := range d.closed {
		why = append(why, t.Name+" "+t.ClosedBecause())
	}
	return fmt.Sprintf(
		`not offered, since they are closed to signed-in users ("frontends": true in its entry of the registry opens a tool): %s`, strings.Join(why, "; "))
}

// addTools adds the listed tools to the server.
func (d *Server) addTools() {
	for _, t := range d.tools {
		d.sdk.AddTool(d.listing(t), func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return d.call(ctx, t, req)
		})
	}
	for _, own := range ownTools {
		d.sdk.AddTool(&own.Tool, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return own.answer(d, ctx, req)
		})
	}
}

// Listed returns the tools of tools/list, for a caller who may call all of them.
func (d *Server) Listed() []*sdk.Tool {
	var all []*sdk.Tool
	for _, t := range d.tools {
		all = append(all, d.listing(t))
	}
	for _, own := range ownTools {
		all = append(all, &own.Tool)
	}
	slices.SortFunc(all, func(a, b *sdk.Tool) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// listing returns a tool in the form of the list.
func (d *Server) listing(t *tool) *sdk.Tool {
	listed := &sdk.Tool{
		Name: t.listed, Title: title(t.Tool), Description: t.Description, Annotations: annotations(t.Tool),
		OutputSchema: outputSchema(t.OutputSchema),
	}
	listed.InputSchema, t.keyed = inputSchema(t.InputSchema, d.o.KeyArgument && !readOnly(t.Tool))
	return listed
}

// bothNames accepts both forms of a tool's name, and returns why a tool is not offered.
func (d *Server) bothNames(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if params, ok := req.GetParams().(*sdk.CallToolParamsRaw); ok && method == "tools/call" {
			if t := d.byName[params.Name]; t != nil {
				params.Name = t.listed
			} else if t, ok := d.o.Registry.Named(params.Name); ok {
				return nil, invalid("unknown tool %q: %s", params.Name, d.notOffered(t))
			} else if t, ok := registry.Own().Named(params.Name); ok {
				return nil, invalid(`unknown tool %q: it comes with GEM, and the registry of this server, version %s, lacks it: `+
					`add %q to "include" in its file, and start the server again`, params.Name, d.o.Registry.Version, t.Name)
			} else if !slices.ContainsFunc(ownTools, func(own *ownTool) bool { return own.Name == params.Name }) {
				return nil, invalid("unknown tool %q: the registry of this server, version %s, does not have it. Set "+
					"TOOLS_REGISTRY to the path of your own registry; after a change of the file, start the server again",
					prose.Cut(params.Name, 200), d.o.Registry.Version)
			}
		}
		return next(ctx, method, req)
	}
}

// notOffered returns why a tool of the registry is not offered.
func (d *Server) notOffered(t *registry.Tool) string {
	if slices.Contains(d.closed, t) {
		return "it is closed to signed-in users, since it " + t.ClosedBecause()
	}
	return "it is not offered here"
}

func title(t *registry.Tool) string {
	if t.Hints.Title != "" {
		return t.Hints.Title
	}
	return t.Name
}

// annotations returns hints for clients. A repeated call of a keyed tool changes nothing more; that of a safe-retry
// tool may: this mode is about lost workers.
func annotations(t *registry.Tool) *sdk.ToolAnnotations {
	open := slices.ContainsFunc(t.Permissions, func(p string) bool {
		return !slices.Contains([]string{"read:db", "write:db", "write:files"}, p)
	})
	return &sdk.ToolAnnotations{
		ReadOnlyHint: readOnly(t), IdempotentHint: readOnly(t) || t.Idempotency.Mode == registry.Keyed, OpenWorldHint: &open,
		DestructiveHint: t.Hints.Destructive,
	}
}

// keySchema is the schema of gem_key: see Options.KeyArgument.
const keySchema = `{"type":"string","minLength":1,"maxLength":255,"description":"Names this call: a retry with the same key and arguments returns the same call, which runs once."}`

// inputSchema returns the tool's schema, with "type": "object" at its root, which the protocol requires and every
// input satisfies. With key it has a gem_key, unless the tool has its own property of that name.
func inputSchema(own json.RawMessage, key bool) (_ json.RawMessage, keyed bool) {
	schema := map[string]json.RawMessage{}
	if json.Unmarshal(own, &schema) != nil { // true or false
		schema["not"] = json.RawMessage(`{}`)
		if string(own) == "true" {
			delete(schema, "not")
		}
	}
	schema["type"] = json.RawMessage(`"object"`)
	if key {
		properties := map[string]json.RawMessage{}
		_ = json.Unmarshal(schema["properties"], &properties) // none, or an object: the registry is valid
		if _, taken := properties["gem_key"]; !taken {
			properties["gem_key"], keyed = json.RawMessage(keySchema), true
			schema["properties"] = encode(properties)
		}
	}
	return encode(schema), keyed
}

// The answers of a tool other than its result: for a call that continues, and for a result that is too large to show.
const (
	pendingSchema = `{"type":"object","required":["gem_pending"],"properties":{"gem_pending":{"type":"object","required":["call_id","state","message"],` +
		`"properties":{"call_id":{"type":"string"},"state":{"type":"string"},"message":{"type":"string"}}}}}`
	largeSchema = `{"type":"object","required":["gem_large"],"properties":{"gem_large":{"type":"object","required":["call_id","bytes","beginning","message"],` +
		`"properties":{"call_id":{"type":"string"},"bytes":{"type":"integer"},"beginning":{"type":"string"},"message":{"type":"string"}}}}}`
)

// outputSchema returns a schema for the tool's output or one of the other answers.
func outputSchema(own json.RawMessage) json.RawMessage {
	all := map[string]json.RawMessage{"type": json.RawMessage(`"object"`)}
	schema := map[string]json.RawMessage{}
	if json.Unmarshal(own, &schema) == nil {
		if dialect, ok := schema["$schema"]; ok { // allowed only at the root
			all["$schema"] = dialect
			delete(schema, "$schema")
		}
		own = moved(encode(schema), "#/anyOf/0")
	}
	all["anyOf"] = json.RawMessage("[" + string(own) + "," + pendingSchema + "," + largeSchema + "]")
	return encode(all)
}

// encode encodes a value that always can be encoded.
func encode(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return encoded
}
