// Package webhooks is the place of tools behind HTTP: crm.refund is POST <url>/refund, signed as Standard Webhooks says.
package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
)

// Place has the tools of the services of a domains.json.
type Place struct{ byTool map[string]*handlers.Handler }

// New returns the place of the services, whose tools are those of their domains in the registry. lookup returns the value of a variable, as
// [os.Getenv] does. It connects nowhere.
func New(r *registry.Registry, services map[string]elsewhere.Service, lookup func(variable string) string) *Place {
	p := &Place{byTool: map[string]*handlers.Handler{}}
	for _, tool := range r.Tools() {
		domain, method, _ := strings.Cut(tool.Name, ".")
		if service, ok := services[domain]; ok {
			url := service.URL + "/" + strings.ReplaceAll(method, ".", "_")
			p.byTool[tool.Name] = handlers.NewHandler("HTTP", url, false, func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error) {
				return nil, errors.New("not written yet")
			})
		}
	}
	return p
}

// For returns the handler of a tool, and whether it is a service's.
func (p *Place) For(tool string) (*handlers.Handler, bool) {
	h, ok := p.byTool[tool]
	return h, ok
}

// Close does nothing.
func (p *Place) Close() {}
