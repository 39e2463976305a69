package registry

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gemworker/gem/internal/schema"
)

// Always are the tools with which rules and handlers ask people. Every registry has them, even if it does not include
// them.
var Always = []string{"wait.answer", "wait.approval"}

//go:embed own.registry.json
var ownText []byte

var own = sync.OnceValues(func() (catalog, error) { return readCatalog(ownText) })

// Own returns a registry of all tools of GEM that a file can include.
var Own = sync.OnceValue(func() *Registry {
	r, err := Parse(ownText)
	if err != nil {
		panic(err)
	}
	return r
})

// catalog has the entries that a file can include, by the names of their tools.
type catalog map[string]offer

// offer is an entry of the program. Its tool is compiled when the first file includes it.
type offer struct {
	entry map[string]any
	tool  func() (*Tool, []schema.Problem)
}

func readCatalog(text []byte) (catalog, error) {
	doc, problems := form().Read(text)
	if len(problems) > 0 {
		return nil, fmt.Errorf("the program's own entries are invalid: %s: %s", problems[0].Pointer, problems[0].Text)
	}
	c, checked := catalog{}, isChecked(text)
	for _, v := range list(doc, "tools") {
		entry := v.(map[string]any)
		c[schema.As[string](entry["name"])] = offer{entry, sync.OnceValues(func() (*Tool, []schema.Problem) {
			p := parser{checked: checked}
			return p.included(entry), p.problems
		})}
	}
	return c, nil
}

func (p *parser) included(entry map[string]any) *Tool {
	t := p.tool("/include", entry)
	t.Included = true
	return t
}

func (c catalog) names() []string { return slices.Sorted(maps.Keys(c)) }

// matching returns the tools that an item of "include" selects: one, or all of a domain.
func (c catalog) matching(item string) []string {
	return slices.DeleteFunc(c.names(), func(name string) bool { return name != item && domainOf(name) != item })
}

func domainOf(tool string) string {
	domain, _, _ := strings.Cut(tool, ".")
	return domain
}

// include adds the program's entries to the tools of the file, sorted by name, with the file's overrides. The file's
// own tools take precedence. It returns the version of the result, and the tools that this version does not cover.
func (p *parser) include(doc any, own catalog, recorded bool) (version string, added []string) {
	named := p.named(doc, own)
	overrides := schema.As[map[string]any](schema.ValueAt(doc, "/overrides"))
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		if !named[name] {
			p.add(schema.JoinPointer("/overrides", name), p.notNamed(name, own, named))
		}
	}
	includes := len(list(doc, "include")) > 0
	if _, has := schema.Lookup(doc, "/added"); has && !recorded { // it would hide entries from the version
		p.add("/added", "is written only by GEM, into the registries that it records: remove it")
	}
	for _, name := range schema.Texts(schema.ValueAt(doc, "/added")) {
		if slices.Contains(Always, name) && p.byName[name] != nil && !includes {
			added = append(added, name)
		}
	}
	stated := []any{} // before overrides
	for _, name := range own.names() {
		if p.byName[name] != nil || !named[name] && !slices.Contains(Always, name) {
			continue
		}
		if !includes {
			added = append(added, name)
		}
		stated = append(stated, own[name].entry)
		tool, problems := own[name].tool()
		p.problems = append(p.problems, problems...)
		if changes := schema.As[map[string]any](overrides[name]); len(changes) > 0 {
			entry := maps.Clone(own[name].entry)
			maps.Copy(entry, changes)
			tool = p.included(entry)
		}
		p.enter("/include", "include", tool)
	}
	version = schema.As[string](schema.ValueAt(doc, "/version"))
	if includes {
		sum := sha256.Sum256(schema.Canonical(stated))
		hash := fmt.Sprintf("+%x", sum[:4])
		if most := mostVersion - len(hash); len(version) > most {
			p.add("/version", fmt.Sprintf(`has %d characters, and "include" adds %d to it: shorten it to %d`,
				len(version), len(hash), most))
		}
		version += hash
	}
	return version, added
}

// mostVersion is the length of the longest version.
const mostVersion = 64

// named returns the tools that "include" adds to those of the file.
func (p *parser) named(doc any, own catalog) map[string]bool {
	named := map[string]bool{}
	for i, v := range list(doc, "include") {
		item := schema.As[string](v)
		tools := own.matching(item)
		if item != "" && len(tools) == 0 {
			p.add("/include/"+strconv.Itoa(i), fmt.Sprintf("%s does not come with this program%s; it has %s", schema.Show(item),
				strings.TrimSuffix(schema.DidYouMean(item, own.items()), "?"), strings.Join(own.names(), ", ")))
		}
		for _, name := range tools {
			named[name] = p.byName[name] == nil
		}
	}
	return named
}

// items returns all names that "include" can have.
func (c catalog) items() []string {
	all := map[string]bool{}
	for name := range c {
		all[name], all[domainOf(name)] = true, true
	}
	return slices.Sorted(maps.Keys(all))
}

// notNamed returns why the entry of a tool cannot be overridden.
func (p *parser) notNamed(name string, own catalog, named map[string]bool) string {
	switch {
	case p.byName[name] != nil:
		return `is in "tools": change its entry there`
	case own[name].entry != nil:
		return fmt.Sprintf(`is not included: add %q to "include"`, name)
	}
	included := slices.DeleteFunc(own.names(), func(name string) bool { return !named[name] })
	return "is not an included tool" +
		cmp.Or(schema.DidYouMean(name, included), `: name a tool that "include" adds, or remove it`)
}
