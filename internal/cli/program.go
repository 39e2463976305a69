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

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
)

// Program is what a program adds to GEM: see gem.Program.
type Program struct {
	Domains    []any
	Registry   []byte
	Migrations fs.FS
	Rules      []byte
	Elsewhere  []byte

	// Version and Commit are set by the build. If they are empty, those that the Go command recorded apply.
	Version, Commit string
}

// domains are those of the program, and the one that belongs to every program.
func (p *Program) domains() []any { return append(slices.Clone(p.Domains), wait.Domain()) }

// check reports mistakes in the program itself.
func (p *Program) check() error {
	if len(bytes.TrimSpace(p.Registry)) == 0 {
		return errors.New("its Registry is empty: embed a tools.registry.json with //go:embed, and pass its bytes")
	}
	named := map[string]bool{}
	for i, d := range handlers.Domains(p.Domains...) {
		switch {
		case d.Tools == nil || reflect.TypeOf(d.Tools).NumMethod() == 0:
			return fmt.Errorf("its Domains[%d], a %T, has no tools: a tool is an exported method; one with a pointer receiver needs a pointer",
				i, cmp.Or(d.Tools, p.Domains[i]))
		case d.Name() == "wait":
			return fmt.Errorf("its Domains[%d] is named wait, as the one that belongs to every program: rename the type of its tools", i)
		case named[d.Name()]:
			return fmt.Errorf("two of its Domains are named %s, after the types of their tools: rename one", d.Name())
		}
		named[d.Name()] = true
	}
	_, err := handlers.Bind(p.domains()...)
	return err
}

// domainsOf returns the domains of the program as a worker with the registry r has them: a domain keeps its tables and
// grants only if r has one of its tools.
func (p *Program) domainsOf(r *registry.Registry) []any {
	var all []any
	for _, d := range handlers.Domains(p.domains()...) {
		bound, err := handlers.Bind(d)
		if err == nil && !slices.ContainsFunc(r.Tools(), func(t *registry.Tool) bool { _, has := bound.For(t.Name); return has }) {
			d.Tables, d.Grants = nil, nil
		}
		all = append(all, d)
	}
	return all
}

// sources are the migrations that the registry r needs: those of its domains and of the program itself.
func (p *Program) sources(r *registry.Registry) []migrations.Source {
	all := migrations.Sources(p.domainsOf(r)...)
	if p.Migrations != nil {
		all = append(all, migrations.Source{Name: "program", Files: p.Migrations})
	}
	return all
}

// builtInto marks the registry that is built into the program.
const builtInto = "built in"

// loadRegistry reads the registry that chosen (TOOLS_REGISTRY) names or holds, the one in the working directory, or the
// program's own, in this order. from says which it was.
func (p *Program) loadRegistry(chosen string) (r *registry.Registry, from string, err error) {
	const file = "tools.registry.json"
	if chosen = strings.TrimSpace(chosen); chosen == "" {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			chosen = file
		}
	}
	contents, from := p.Registry, builtInto
	switch {
	case strings.HasPrefix(chosen, "{"):
		contents, from = []byte(chosen), "the JSON of TOOLS_REGISTRY"
	case chosen != "":
		r, err = registry.ReadFile(chosen)
		return r, chosen, err
	}
	if r, err = registry.Parse(contents); err != nil {
		err = fmt.Errorf("the registry (%s) is refused:\n%w", from, err)
	}
	return r, from, err
}
