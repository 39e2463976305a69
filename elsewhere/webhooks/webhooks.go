// Package webhooks is the place of tools behind HTTP: crm.refund is POST <url>/refund, signed as the Standard Webhooks specification says.
//
// A request is one attempt of a call. Its body is {"call": {"id", "tool", "attempt", "session_id", "created_by"}, "input"}; webhook-id and
// Idempotency-Key are the call's id, the same in every attempt. What the answers mean is in answer.go.
package webhooks

import (
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
)

const (
	maxBody    = 1 << 20  // bytes, of a request and of an answer
	maxHeaders = 64 << 10 // bytes, of an answer
)

// Place has the tools of the services of a domains.json.
type Place struct{ byTool map[string]*handlers.Handler }

// New returns the place of the services, whose tools are those of their domains in the registry. lookup returns the value of a variable, as
// [os.Getenv] does: one that is missing or wrong makes the calls of its service not_configured. New connects nowhere.
func New(r *registry.Registry, services map[string]elsewhere.Service, lookup func(variable string) string) *Place {
	p := &Place{byTool: map[string]*handlers.Handler{}}
	transport := newTransport()
	known := map[string]*service{}
	for domain, s := range services {
		known[domain] = newService(domain, s, lookup, transport)
	}
	for _, tool := range r.Tools() {
		domain, method, _ := strings.Cut(tool.Name, ".")
		if s := known[domain]; s != nil {
			t := &webhook{service: s, url: s.url + "/" + strings.ReplaceAll(method, ".", "_"), once: tool.Idempotency.Mode == registry.None}
			p.byTool[tool.Name] = handlers.NewHandler("HTTP", t.url, false, t.run)
		}
	}
	return p
}

// For returns the handler of a tool, and whether it is a service's.
func (p *Place) For(tool string) (*handlers.Handler, bool) {
	h, ok := p.byTool[tool]
	return h, ok
}

// Close has nothing to close: no connection outlives its request.
func (p *Place) Close() {}

// newTransport reaches the hosts of domains.json, which the operator wrote, and no other: it is asked for no other URL, follows no redirect, and
// has no proxy.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:       nil,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		// One request a connection. On one that is kept, the transport sends a request again that has an Idempotency-Key, whatever the tool's mode is.
		DisableKeepAlives:      true,
		DisableCompression:     true, // what is bounded is what is read
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}
}
