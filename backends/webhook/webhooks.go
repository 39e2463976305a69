// Package webhook is the backend of tools behind HTTP: crm.refund is POST <url>/refund, signed according to the
// Standard Webhooks specification.
//
// A request is one attempt of a call, unless the tool is durable. Its body is {"call": {"id", "tool", "attempt",
// "session_id", "created_by"}, "input"}; webhook-id and Idempotency-Key are the call's id, the same in every attempt.
// answer.go interprets the answers.
//
// The tools of a service with url_env post their input, unsigned, to the URL in that variable, such as a webhook of
// Slack's. The URL is a secret.
package webhook

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/registry"
)

const (
	maxBody    = 1 << 20  // bytes, of a request and of an answer
	maxHeaders = 64 << 10 // bytes, of an answer
)

// Services has the tools of the services in a domains.json.
type Services struct{ byTool map[string]*binding.Handler }

// New returns the backend of the services. A service has the registry's tools of its domain. lookup returns the value
// of a variable, like [os.Getenv]. If a variable is missing or invalid, the calls of its service end as not_configured.
// New makes no connections.
func New(r *registry.Registry, services map[string]backends.Service, lookup func(variable string) string) *Services {
	p := &Services{byTool: map[string]*binding.Handler{}}
	transport := newTransport()
	known := map[string]*service{}
	for domain, s := range services {
		known[domain] = newService(domain, s, lookup, transport)
	}
	for _, tool := range r.Tools() {
		domain, method, _ := strings.Cut(tool.Name, ".")
		if s := known[domain]; s != nil {
			t := &webhook{service: s, url: s.url, shown: s.shown, once: tool.Idempotency.Mode == registry.None}
			if !s.plain {
				t.url += "/" + strings.ReplaceAll(method, ".", "_")
				t.shown = t.url
			}
			p.byTool[tool.Name] = binding.NewHandler("HTTP", t.shown, false, t.run)
			if slices.Contains(services[domain].Durable, method) {
				p.byTool[tool.Name] = binding.NewDurableHandler("HTTP", t.shown, t.converse)
			}
		}
	}
	return p
}

// For returns the handler of a tool, and whether a service has the tool.
func (p *Services) For(tool string) (*binding.Handler, bool) {
	h, ok := p.byTool[tool]
	return h, ok
}

// Close does nothing, because no connection outlives its request.
func (p *Services) Close() {}

// newTransport returns a transport that reaches only the hosts of domains.json, which the operator wrote: it gets no
// other URL, follows no redirects, and uses no proxy.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:       nil,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		// One request per connection. On a kept connection, the transport would resend a request with an Idempotency-Key,
		// even in mode none.
		DisableKeepAlives:      true,
		DisableCompression:     true, // so that limits apply to the bytes as sent
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}
}
