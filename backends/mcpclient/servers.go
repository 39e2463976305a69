// Package mcpclient is the backend of tools in MCP servers: github.create_issue is the tool create_issue of the
// server that domains.json names for the domain github.
//
// A server is connected when a call first needs it, and stays connected. The results of its tools become outputs:
// structuredContent unchanged, text alone as {"text": ...}, and anything else as {"text": ..., "content": [...]}. A
// server sees only the variables of the worker's environment that domains.json names, and GEM uses only its tools.
package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"go.uber.org/zap"
)

// Servers are the MCP servers of a domains.json. It is a [binding.Backend] with every tool of its domains. If a server
// does not have a tool, the tool's calls end as not_configured.
type Servers struct {
	byDomain map[string]*server
}

// New returns the servers by their domains, without connecting. lookup returns the value of a variable, like
// [os.Getenv]; it is called when a server is connected.
func New(of map[string]backends.Server, lookup func(variable string) string, log *zap.Logger) *Servers {
	s := &Servers{byDomain: map[string]*server{}}
	for domain, settings := range of {
		to := &server{domain: domain, settings: settings, lookup: lookup, log: log.With(zap.String("server", domain))}
		to.life, to.end = context.WithCancel(context.Background())
		s.byDomain[domain] = to
	}
	return s
}

// For returns the handler of a tool whose domain is a server.
func (s *Servers) For(tool string) (*binding.Handler, bool) {
	domain, method, _ := strings.Cut(tool, ".")
	to, ok := s.byDomain[domain]
	if !ok {
		return nil, false
	}
	return binding.NewHandler("MCP", domain+" "+method, false,
		func(ctx context.Context, _ handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
			return to.run(ctx, call, method)
		}), true
}

// Tools requests the tools of a domain's server, and returns them in the server's order.
func (s *Servers) Tools(ctx context.Context, domain string) ([]Tool, error) {
	to, ok := s.byDomain[domain]
	if !ok {
		return nil, fmt.Errorf("the domain %s is not an MCP server. The MCP servers are: %s", domain,
			strings.Join(slices.Sorted(maps.Keys(s.byDomain)), ", "))
	}
	tools, err := to.list(ctx)
	var unset *handlers.NotConfigured
	if errors.As(err, &unset) {
		err = errors.New(unset.Reason)
	}
	return tools, err
}

// Close ends all connections and the programs that were started for them, which takes at most 5 s. Calls that still run
// fail.
func (s *Servers) Close() {
	var all sync.WaitGroup
	for _, to := range s.byDomain {
		all.Go(to.close)
	}
	all.Wait()
}
