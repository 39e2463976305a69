package mcpclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxTools = 2000
	maxPages = 100
	// listAgain is how long a list of tools is considered current, so that not every call of a missing tool requests the
	// list.
	listAgain = 10 * time.Second
)

// Tool is a server's description of one of its tools. It is unchecked.
type Tool struct {
	Name         string          `json:"name"`
	Title        string          `json:"title"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
	Annotations  struct {
		Title           string `json:"title"`
		ReadOnlyHint    bool   `json:"readOnlyHint"`
		IdempotentHint  bool   `json:"idempotentHint"`
		DestructiveHint *bool  `json:"destructiveHint"`
	} `json:"annotations"`
}

// fold returns a name without case, separators and characters that the registry does not allow. A name and the result
// of [method] for it have the same fold.
func fold(name string) string {
	folded := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
	if folded != "" && folded[0] <= '9' {
		folded = digitPrefix + folded
	}
	return folded
}

// list connects and requests all tools.
func (s *server) list(ctx context.Context) ([]Tool, error) {
	made, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	tools, err := made.list(ctx)
	if err != nil {
		return nil, made.failure(ctx, err, false)
	}
	return tools, nil
}

func (s *session) list(ctx context.Context) ([]Tool, error) {
	var all []Tool
	params, size := &sdk.ListToolsParams{}, 0
	for page := 0; page < maxPages; page++ {
		result, err := s.ListTools(ctx, params)
		if errors.Is(err, errTooMany) {
			return nil, errTooMany
		}
		if err != nil {
			return nil, err
		}
		if size += len(raw(result.Meta)); size > maxMessage {
			return nil, fmt.Errorf("its list of tools has more than %d MiB", maxMessage>>20)
		}
		found, err := listed([]byte(s.secrets.scrub(string(raw(result.Meta)))), maxTools-len(all))
		if err != nil {
			return nil, err
		}
		if all = append(all, found...); len(all) > maxTools {
			return nil, errTooMany
		}
		if result.NextCursor == "" {
			return all, nil
		}
		params = &sdk.ListToolsParams{Cursor: result.NextCursor}
	}
	return nil, fmt.Errorf("its list of tools has more than %d pages", maxPages)
}

// listed returns the tools in a page of a list, up to the first beyond a number.
func listed(page []byte, most int) (tools []Tool, err error) {
	var said struct {
		Tools json.RawMessage `json:"tools"`
	}
	unreadable := errors.New("its list of tools cannot be read")
	if json.Unmarshal(page, &said) != nil {
		return nil, unreadable
	}
	d := json.NewDecoder(bytes.NewReader(said.Tools))
	if start, _ := d.Token(); start == nil {
		return nil, nil // it is null, or missing
	} else if start != json.Delim('[') {
		return nil, unreadable
	}
	for d.More() && len(tools) <= most {
		var t Tool
		if err := d.Decode(&t); err != nil || t.Name == "" {
			continue // the SDK, too, takes the others
		}
		tools = append(tools, t)
	}
	return tools, nil
}

// known are the tools of a session, by their folded names.
type known struct {
	mu      sync.Mutex
	tools   map[string][]Tool
	listed  time.Time
	listing chan struct{} // holds one while the server is asked
}

// learn requests the server's tools.
func (s *session) learn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	tools := map[string][]Tool{}
	for _, t := range all {
		t.InputSchema, t.Description = nil, "" // nobody needs them
		tools[fold(t.Name)] = append(tools[fold(t.Name)], t)
	}
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	s.known.tools, s.known.listed = tools, time.Now()
	return nil
}

// named returns the tools with a folded name, and the time of the request.
func (k *known) named(key string) ([]Tool, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tools[key], k.listed
}

// tool finds the tool of a method of the registry, and requests the list again if there is none. Its errors mean that
// nothing was done.
func (s *session) tool(ctx context.Context, method string) (Tool, error) {
	key := fold(method)
	found, listed := s.known.named(key)
	if len(found) == 0 && time.Since(listed) > listAgain {
		select {
		case s.known.listing <- struct{}{}:
		case <-ctx.Done():
			return Tool{}, ctx.Err()
		}
		err := s.learn(ctx)
		<-s.known.listing
		if err != nil {
			return Tool{}, s.failure(ctx, err, false)
		}
		found, _ = s.known.named(key)
	}
	if exact := slices.IndexFunc(found, func(t Tool) bool { return t.Name == method }); exact >= 0 {
		return found[exact], nil
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Tool{}, &handlers.NotConfigured{
			Reason: fmt.Sprintf("The MCP server %s has no tool %s.", s.server.domain, method),
			NextSteps: []string{fmt.Sprintf("See which tools it has: gem registry import %s --dry-run.", s.server.domain),
				"Remove the tool from the registry, or the fault from the server, and make the call again."},
		}
	}
	names := make([]string, len(found))
	for i, t := range found {
		names[i] = receipts.Shorten(t.Name, 100)
	}
	return Tool{}, handlers.Fail("ambiguous_tool", fmt.Sprintf(
		"The MCP server %s has several tools that the registry would call %s: %s.", s.server.domain, method,
		value.OneLine(strings.Join(names, ", "))))
}
