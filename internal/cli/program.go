package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
)

// Program is the input of gem.Program's author: see gem.Program.
type Program struct {
	Domains    []any
	Registry   []byte
	Migrations fs.FS
	Rules      []byte
	Backends   []byte

	// Version and Commit are set by the build. If they are empty, the values that the Go command recorded apply.
	Version, Commit string
}

// domains returns the program's domains, and the one that every program has.
func (p *Program) domains() []any { return append(slices.Clone(p.Domains), wait.Domain()) }

// check returns an error for mistakes in the program itself.
func (p *Program) check() error {
	if len(bytes.TrimSpace(p.Registry)) == 0 {
		return errors.New("its Registry is empty: embed a tools.registry.json with //go:embed, and pass its bytes")
	}
	named := map[string]bool{}
	for i, d := range binding.Domains(p.Domains...) {
		switch {
		case d.Tools == nil || reflect.TypeOf(d.Tools).NumMethod() == 0:
			return fmt.Errorf("its Domains[%d], a %T, has no tools: a tool is an exported method; one with a pointer receiver "+
				"needs a pointer",
				i, cmp.Or(d.Tools, p.Domains[i]))
		case d.Name() == "wait":
			return fmt.Errorf("its Domains[%d] is named wait, like the one that every program has: rename the type of "+
				"its tools", i)
		case named[d.Name()]:
			return fmt.Errorf("two of its Domains are named %s, after the types of their tools: rename one", d.Name())
		}
		named[d.Name()] = true
	}
	_, err := binding.Bind(p.domains()...)
	return err
}

// domainsOf returns the domains that a worker with the registry r has: a domain has its tables and grants only if r
// has one of its tools.
func (p *Program) domainsOf(r *registry.Registry) []any {
	var all []any
	for _, d := range binding.Domains(p.domains()...) {
		bound, err := binding.Bind(d)
		if err == nil && !slices.ContainsFunc(r.Tools(),
			func(t *registry.Tool) bool { _, has := bound.For(t.Name); return has }) {
			d.Tables, d.Grants = nil, nil
		}
		all = append(all, d)
	}
	return all
}

// sources returns the migrations that the registry r needs: those of its domains and of the program itself.
func (p *Program) sources(r *registry.Registry) []migrations.Source {
	all := migrations.Sources(p.domainsOf(r)...)
	if p.Migrations != nil {
		all = append(all, migrations.Source{Name: "program", Files: p.Migrations})
	}
	return all
}

// registryFile is the name of the registry in a working directory.
const registryFile = "tools.registry.json"

func registryInFolder() bool {
	_, err := os.Stat(registryFile)
	return !errors.Is(err, fs.ErrNotExist)
}

// builtInto is the source of a registry that is built into the program.
const builtInto = "built in"

// loadRegistry reads the registry that chosen (TOOLS_REGISTRY) names or holds, the one in the working directory, or
// the program's own, in this order. from is its source.
func (p *Program) loadRegistry(chosen string) (r *registry.Registry, from string, err error) {
	if chosen = strings.TrimSpace(chosen); chosen == "" && registryInFolder() {
		chosen = registryFile
	}
	switch {
	case strings.HasPrefix(chosen, "{"):
		return parseRegistry([]byte(chosen), "the JSON of TOOLS_REGISTRY")
	case chosen != "":
		r, err = registry.ReadFile(chosen)
		return r, chosen, err
	}
	return p.ownRegistry()
}

// ownRegistry reads the registry that is built into the program.
func (p *Program) ownRegistry() (r *registry.Registry, from string, err error) {
	return parseRegistry(p.Registry, builtInto)
}

func parseRegistry(contents []byte, source string) (r *registry.Registry, from string, err error) {
	if r, err = registry.Parse(contents); err != nil {
		err = fmt.Errorf("the registry (%s) is invalid:\n%w", source, err)
	}
	return r, source, err
}
