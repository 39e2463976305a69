package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/elsewhere/servers"
	"github.com/gemworker/gem/elsewhere/webhooks"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// place holds tools that are not Go methods, and what this process has open for them.
type place interface {
	handlers.Place
	Close()
}

// loadDomains reads the domains.json that a worker would load here. It is nil if there is none.
func (p *Program) loadDomains(chosen string) (*elsewhere.Domains, string, error) {
	return elsewhere.Find(chosen, p.Elsewhere)
}

// bind binds the handlers of the program and the tools of domains.json, which may be nil. The caller must close the places. If a
// tool would live in two of them, the error names both.
func (p *Program) bind(r *registry.Registry, d *elsewhere.Domains, lookup func(string) string, log *zap.Logger) (*handlers.Handlers, []place, error) {
	bound, err := handlers.Bind(p.domains()...)
	if err != nil || d == nil {
		return bound, nil, err
	}
	// They connect when their first tool is called.
	places := []place{
		webhooks.New(r, d.Services, lookup),
		servers.New(d.Servers, lookup, log),
	}
	var twice []error
	for _, tool := range r.Tools() {
		for _, place := range places {
			there, lives := place.For(tool.Name)
			if method, also := bound.For(tool.Name); lives && also {
				domain, _, _ := strings.Cut(tool.Name, ".")
				twice = append(twice, fmt.Errorf("%s lives in two places, in %s (%s) and by %s in %s (%s): remove one", tool.Name, method.File, method.Func, domain,
					elsewhere.File, there.Func))
			}
		}
	}
	for _, place := range places {
		bound.Add(place)
	}
	return bound, places, errors.Join(twice...)
}

// boundHere binds what a worker would bind here to a registry, without a database.
func (p *Program) boundHere(r *registry.Registry) (*handlers.Handlers, error) {
	d, _, err := p.loadDomains(os.Getenv("GEM_DOMAINS"))
	if err != nil {
		return nil, err
	}
	bound, _, err := p.bind(r, d, os.Getenv, zap.NewNop())
	return bound, err
}

// openPlaces opens the places of the worker's tools that are not Go methods, and closes those that were open.
func (s *setup) openPlaces() (*handlers.Handlers, error) {
	s.closePlaces()
	bound, places, err := s.program.bind(s.registry, s.domains, s.lookup, s.log)
	s.places = places
	if err != nil {
		return nil, err
	}
	s.addFunctions(bound)
	if s.domains != nil {
		bound.AddCheck(func(ctx context.Context, db handlers.DB) error { return recordDomains(ctx, db, s.domains) })
	}
	return bound, nil
}

// recordDomains refuses a domains.json whose version was recorded with other contents.
func recordDomains(ctx context.Context, db handlers.DB, ours *elsewhere.Domains) error {
	sha256, recorded, err := store.RecordDomains(ctx, db, ours.Version, ours.SHA256(), ours.JSON())
	switch {
	case err != nil:
		return fmt.Errorf("record the version of the domains: %w", err)
	case sha256 == ours.SHA256():
		return nil
	}
	earlier, err := elsewhere.Parse(recorded)
	if err != nil {
		return fmt.Errorf("another %s was recorded as version %s, and this program cannot read it: raise the version", elsewhere.File, ours.Version)
	}
	return elsewhere.CheckUpgrade(earlier, ours)
}

func (s *setup) closePlaces() {
	for _, place := range s.places {
		place.Close()
	}
	s.places = nil
}

// prepareDomains loads domains.json, if there is one. An isolated worker has none.
func (s *setup) prepareDomains() (err error) {
	if s.isolated {
		return nil
	}
	if s.domains, s.domainsFrom, err = s.program.loadDomains(os.Getenv("GEM_DOMAINS")); err != nil {
		return err
	}
	if s.domains == nil {
		s.log.Info("no domains elsewhere")
		return nil
	}
	var unset []string
	for _, variable := range s.domains.Variables() {
		if strings.TrimSpace(s.lookup(variable)) == "" {
			unset = append(unset, variable)
		}
	}
	s.log.Info("domains loaded", zap.String("from", s.domainsFrom), zap.String("version", s.domains.Version), zap.Strings("domains", s.domains.Names()),
		zap.Strings("missing_variables", unset), zap.String("sha256", s.domains.SHA256()))
	for _, note := range domainsWithoutTools(s.domains, s.registry) {
		s.log.Warn(note)
	}
	return nil
}

// domainsWithoutTools has a sentence for each domain of domains.json that has no tool in the registry. d may be nil.
func domainsWithoutTools(d *elsewhere.Domains, r *registry.Registry) (notes []string) {
	of := map[string]bool{}
	for _, tool := range r.Tools() {
		domain, _, _ := strings.Cut(tool.Name, ".")
		of[domain] = true
	}
	for _, name := range d.Names() {
		remedy := fmt.Sprintf(": add entries for its tools, such as %s.do", name)
		if _, isServer := d.Servers[name]; isServer {
			remedy = ": `gem registry import " + name + "` adds those of the server"
		}
		if !of[name] {
			notes = append(notes, fmt.Sprintf("%s names the domain %s, and the registry has no tool of it%s", elsewhere.File, name,
				cmp.Or(schema.DidYouMean(name, slices.Sorted(maps.Keys(of))), remedy)))
		}
	}
	return notes
}
