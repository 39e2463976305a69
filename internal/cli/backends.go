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

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/backends/webhook"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// backend is a backend with the connections that this process has open for it.
type backend interface {
	binding.Backend
	Close()
}

// loadDomains reads the domains.json that a worker would load here. It returns nil if there is none.
func (p *Program) loadDomains(chosen string) (*backends.Domains, string, error) {
	return backends.Find(chosen, p.Backends)
}

// bind binds the handlers of the program and the tools of domains.json, which may be nil. The caller must close the
// backends. If two of them have the same tool, the error names both.
func (p *Program) bind(r *registry.Registry, d *backends.Domains, lookup func(string) string,
	log *zap.Logger) (*binding.Handlers, []backend, error) {
	bound, err := binding.Bind(p.domains()...)
	if err != nil || d == nil {
		return bound, nil, err
	}
	// They connect at the first call to a tool.
	opened := []backend{
		webhook.New(r, d.Services, lookup),
		mcpclient.New(d.Servers, lookup, log),
	}
	var faults []error
	for _, tool := range r.Tools() {
		domain, _, _ := strings.Cut(tool.Name, ".")
		if d.Services[domain].URLEnv != "" && tool.Frontends {
			faults = append(faults, fmt.Errorf("%s posts its input to a URL of yours, unsigned (url_env in %s), and signed-in "+
				`users could call it: give its entry "frontends": false`, tool.Name, backends.File))
		}
		for _, b := range opened {
			there, lives := b.For(tool.Name)
			if method, also := bound.For(tool.Name); lives && also {
				faults = append(faults, fmt.Errorf("%s is defined twice, by %s (%s) and by %s in %s (%s): remove one", tool.Name,
					method.File, method.Func, domain,
					backends.File, there.Func))
			}
		}
	}
	for _, b := range opened {
		bound.Add(b)
	}
	return bound, opened, errors.Join(faults...)
}

// boundHere binds a registry's tools as a worker would here, without a database.
func (p *Program) boundHere(r *registry.Registry) (*binding.Handlers, error) {
	d, _, err := p.loadDomains(os.Getenv("GEM_DOMAINS"))
	if err != nil {
		return nil, err
	}
	bound, _, err := p.bind(r, d, os.Getenv, zap.NewNop())
	return bound, err
}

// openBackends opens the backends of the worker's tools, and closes the previous ones.
func (s *setup) openBackends() (*binding.Handlers, error) {
	s.closeBackends()
	bound, opened, err := s.program.bind(s.registry, s.domains, s.lookup, s.log)
	s.opened = opened
	if err != nil {
		return nil, err
	}
	s.addFunctions(bound)
	if s.domains != nil {
		bound.AddCheck(func(ctx context.Context, db handlers.DB) error { return recordDomains(ctx, db, s.domains) })
	}
	return bound, nil
}

// recordDomains returns an error if the version of domains.json was recorded with other contents.
func recordDomains(ctx context.Context, db handlers.DB, ours *backends.Domains) error {
	sha256, recorded, err := store.RecordDomains(ctx, db, ours.Version, ours.SHA256(), ours.JSON())
	switch {
	case err != nil:
		return fmt.Errorf("record the version of the domains: %w", err)
	case sha256 == ours.SHA256():
		return nil
	}
	earlier, err := backends.Parse(recorded)
	if err != nil {
		return fmt.Errorf("another %s was recorded as version %s, and this program cannot read it: raise the version",
			backends.File, ours.Version)
	}
	return backends.CheckUpgrade(earlier, ours)
}

func (s *setup) closeBackends() {
	for _, b := range s.opened {
		b.Close()
	}
	s.opened = nil
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
		s.log.Info("no backends")
		return nil
	}
	var unset []string
	for _, variable := range s.domains.Variables() {
		if strings.TrimSpace(s.lookup(variable)) == "" {
			unset = append(unset, variable)
		}
	}
	s.log.Info("backends loaded", zap.String("from", s.domainsFrom), zap.String("version", s.domains.Version),
		zap.Strings("domains", s.domains.Names()),
		zap.Strings("missing_variables", unset), zap.String("sha256", s.domains.SHA256()))
	for _, note := range domainsWithoutTools(s.domains, s.registry) {
		s.log.Warn(note)
	}
	return nil
}

// domainsWithoutTools returns a sentence for each domain of domains.json that has no tool in the registry. d may be
// nil.
func domainsWithoutTools(d *backends.Domains, r *registry.Registry) (notes []string) {
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
			notes = append(notes, fmt.Sprintf("%s names the domain %s, and the registry has no tool of it%s", backends.File,
				name,
				cmp.Or(schema.DidYouMean(name, slices.Sorted(maps.Keys(of))), remedy)))
		}
	}
	return notes
}
