package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/registry"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// covers reports whether the caller's token covers a tool: if scopes are on, it has each permission that the tool
// needs.
func (c caller) covers(t *registry.Tool) bool {
	return !c.limited || !slices.ContainsFunc(t.Permissions, func(p string) bool { return !slices.Contains(c.scopes, p) })
}

// scopes returns all scopes that a token can have: the permissions of the offered tools.
func (d *Server) scopes() []string {
	var all []string
	for _, t := range d.tools {
		all = append(all, t.Permissions...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// listCovered removes the tools that the caller's token does not cover from tools/list.
func (d *Server) listCovered(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		list, ok := result.(*sdk.ListToolsResult)
		if !ok || err != nil {
			return result, err
		}
		c, err := callerOf(ctx)
		if err != nil || !c.limited {
			return result, err
		}
		shown := *list // the original may be shared
		shown.CacheScope = "private"
		shown.Tools = slices.DeleteFunc(slices.Clone(list.Tools), func(listed *sdk.Tool) bool {
			t := d.byName[listed.Name]
			return t != nil && !c.covers(t.Tool)
		})
		return &shown, nil
	}
}

// scopeList formats scopes for OAuth.
func scopeList(scopes []string) string { return strings.Join(scopes, " ") }

// refuseUncovered rejects a call to a tool that the caller's token does not cover, whatever the form of the HTTP
// request.
func (d *Server) refuseUncovered(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if params, ok := req.GetParams().(*sdk.CallToolParamsRaw); ok {
			c, err := callerOf(ctx)
			if err != nil {
				return nil, err
			}
			if t := d.byName[params.Name]; t != nil && !c.covers(t.Tool) {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
					Message: "insufficient_scope: " + t.Name + " needs " + scopeList(t.Permissions)}
			}
		}
		return next(ctx, method, req)
	}
}

// hideUncovered answers a request about a call whose tool the caller's token does not cover as if the call did not
// exist.
func (d *Server) hideUncovered(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		c, err := callerOf(ctx)
		if err != nil {
			return nil, err
		}
		id := callIn(req)
		if !c.limited || id == "" {
			return next(ctx, method, req)
		}
		s, err := d.state(ctx, c, id)
		var none *jsonrpc.Error
		// A client that disconnects at the right moment must not get past this.
		if err != nil && !errors.As(err, &none) {
			return nil, internal("%s", reason(err))
		}
		if t, ok := d.o.Registry.Tool(s.Tool); ok && c.covers(t) {
			return next(ctx, method, req)
		}
		if read, ok := req.GetParams().(*sdk.ReadResourceParams); ok {
			return nil, sdk.ResourceNotFoundError(read.URI)
		}
		return nil, noCall(id)
	}
}

// callIn returns the id of the call that a request is about, or "".
func callIn(req sdk.Request) string {
	id := ""
	switch p := req.GetParams().(type) {
	case *sdk.CallToolParamsRaw:
		var in ownInput
		if slices.ContainsFunc(ownTools, func(t *ownTool) bool { return t.Name == p.Name }) &&
			json.Unmarshal(p.Arguments, &in) == nil {
			id = in.CallID
		}
	case *sdk.ReadResourceParams:
		id = strings.TrimPrefix(strings.TrimPrefix(p.URI, receiptURI), journalURI)
	case *taskParams:
		if p != nil {
			id = p.TaskID
		}
	}
	if !value.IsUUID(id) {
		return ""
	}
	return strings.ToLower(id)
}
