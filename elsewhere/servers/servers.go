// Package servers is the place of tools that live in MCP servers: github.create_issue is the tool create_issue of the server that domains.json
// names for the domain github.
//
// A server is connected when a call first needs it, and stays connected. The results of its tools become outputs: structuredContent as it is, text
// alone as {"text": ...}, and anything else as {"text": ..., "content": [...]}. A server never sees more of the worker's environment than the
// variables that domains.json names, and it is asked for nothing but tools.
package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/handlers"
	"go.uber.org/zap"
)

// Servers are the MCP servers of a domains.json. It is a [handlers.Place]: every tool of its domains lives in it, also one that the server turns out not
// to have, which is not_configured.
type Servers struct {
	byDomain map[string]*server
}

// New returns the servers by their domains, and connects none. lookup returns the value of a variable, as [os.Getenv] does; it is asked when a
// server is connected.
func New(of map[string]elsewhere.Server, lookup func(variable string) string, log *zap.Logger) *Servers {
	s := &Servers{byDomain: map[string]*server{}}
	for domain, settings := range of {
		to := &server{domain: domain, settings: settings, lookup: lookup, log: log.With(zap.String("server", domain))}
		to.life, to.end = context.WithCancel(context.Background())
		s.byDomain[domain] = to
	}
	return s
}

// For returns the handler of a tool whose domain is a server.
func (s *Servers) For(tool string) (*handlers.Handler, bool) {
	domain, method, _ := strings.Cut(tool, ".")
	to, ok := s.byDomain[domain]
	if !ok {
		return nil, false
	}
	return handlers.NewHandler("MCP", domain+" "+method, false, func(ctx context.Context, _ handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
		return to.run(ctx, call, method)
	}), true
}

// Tools asks the server of a domain which tools it has, in the order in which it lists them.
func (s *Servers) Tools(ctx context.Context, domain string) ([]Tool, error) {
	to, ok := s.byDomain[domain]
	if !ok {
		return nil, fmt.Errorf("the domain %s is no MCP server; these are: %s", domain, strings.Join(slices.Sorted(maps.Keys(s.byDomain)), ", "))
	}
	tools, err := to.list(ctx)
	var unset *handlers.NotConfigured
	if errors.As(err, &unset) {
		err = errors.New(unset.Reason)
	}
	return tools, err
}

// Close ends all connections and the programs that were started for them, which takes at most 5 s. Calls that still run fail.
func (s *Servers) Close() {
	var all sync.WaitGroup
	for _, to := range s.byDomain {
		all.Go(to.close)
	}
	all.Wait()
}
