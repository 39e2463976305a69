package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// schemaFault is what is wrong at one place of a schema.
type schemaFault struct{ pointer, problem string }

// linter walks a schema and all schemas inside it.
type linter struct {
	draft     int
	faults    []schemaFault
	walked    map[string]bool     // pointers of the schemas that were visited
	resources map[string]resource // what a $ref can name, by URL without fragment
	anchors   map[string]bool     // URL#name
	refs      []reference
}

type resource struct {
	pointer string
	schema  any
}

type reference struct{ pointer, base, target string }

// schemaURL is where the library thinks that a schema stands. Each is compiled alone, so that no other has a name.
const schemaURL = "gem://registry/schema"

// lint returns what is wrong with the schema beyond the grammar of its keywords, which the library checks, and whether
// the schema has references.
func lint(schema any) (_ []schemaFault, refs bool) {
	l := &linter{
		draft:     newest,
		walked:    map[string]bool{},
		resources: map[string]resource{schemaURL: {"", schema}},
		anchors:   map[string]bool{},
	}
	if root, ok := schema.(map[string]any); ok {
		if name, ok := root["$schema"].(string); ok && !l.setDraft(name) {
			return l.faults, false
		}
	}
	l.walk(schema, "", schemaURL)
	refs = len(l.refs) > 0
	// A reference may name a place that no keyword leads to: what stands there becomes a schema, with references of its own.
	for len(l.refs) > 0 {
		ref := l.refs[0]
		l.refs = l.refs[1:]
		l.resolve(ref)
	}
	slices.SortFunc(l.faults, func(a, b schemaFault) int { return comparePointers(a.pointer, b.pointer) })
	return l.faults, refs
}

func (l *linter) add(pointer, format string, args ...any) {
	l.faults = append(l.faults, schemaFault{pointer, fmt.Sprintf(format, args...)})
}

func (l *linter) setDraft(name string) bool {
	bare := strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	bare = strings.TrimSuffix(strings.TrimSuffix(bare, "/"), "#")
	draft, ok := drafts[bare]
	if !ok {
		l.add("/$schema", "%s is no draft of JSON Schema that GEM knows: leave $schema out for draft 2020-12, or name one of "+
			"https://json-schema.org/draft/2020-12/schema, https://json-schema.org/draft/2019-09/schema and "+
			"http://json-schema.org/draft-07/schema# (also 06 and 04)", quote(name))
		return false
	}
	l.draft = draft
	return true
}

// walk visits one schema. What is wrong with the form of a keyword's value is left to the library.
func (l *linter) walk(node any, at, base string) {
	if l.walked[at] {
		return
	}
	l.walked[at] = true
	schema, ok := node.(map[string]any)
	if !ok {
		return
	}
	base = l.identify(schema, at, base)
	for _, name := range slices.Sorted(maps.Keys(schema)) {
		value := schema[name]
		here := joinPointer(at, name)
		k, ok := l.known(schema, name, here)
		if !ok {
			continue
		}
		switch name {
		case "$ref", "$dynamicRef", "$recursiveRef":
			if target, ok := value.(string); ok {
				l.refs = append(l.refs, reference{here, base, target})
			}
		case "pattern":
			if pattern, ok := value.(string); ok {
				l.pattern(pattern, here)
			}
		case "patternProperties":
			if patterns, ok := value.(map[string]any); ok {
				for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
					l.pattern(pattern, joinPointer(here, pattern))
				}
			}
		case "enum":
			if list, ok := value.([]any); ok && len(list) == 0 {
				l.add(here, "the list is empty, so that no value would ever be right: list the values, or leave enum out")
			}
		}
		l.walkInto(k.place, value, here, base)
	}
}

func (l *linter) walkInto(place place, value any, at, base string) {
	switch v := value.(type) {
	case map[string]any:
		switch place {
		case oneSchema, oneOrListOf:
			l.walk(v, at, base)
		case mapOf:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				l.walk(v[name], joinPointer(at, name), base)
			}
		}
	case []any:
		if place == listOf || place == oneOrListOf {
			for i, item := range v {
				l.walk(item, at+"/"+strconv.Itoa(i), base)
			}
		}
	}
}

// known says whether the keyword means something in this schema.
func (l *linter) known(schema map[string]any, name, at string) (keyword, bool) {
	if strings.HasPrefix(name, "x-") {
		return keyword{}, false
	}
	k, ok := keywords[name]
	switch {
	case !ok:
		hint := didYouMean(name, l.words())
		if instead, ok := strangers[name]; ok {
			hint = ": " + instead
		}
		if hint == "" {
			hint = ": remove it, or begin its name with x- if it is a note of your own"
		}
		l.add(at, "%s is no keyword of JSON Schema and would check nothing%s", quote(name), hint)
		return k, false
	case l.draft < k.since:
		l.add(at, "%s came with %s and does nothing in %s: name the newer draft in $schema, or leave $schema out",
			name, draftName(k.since), draftName(l.draft))
		return k, false
	case l.draft > k.until:
		hint := "write $id"
		if name == "additionalItems" {
			hint = "write prefixItems for the first items, and items for all others"
		}
		l.add(at, "%s ended with %s and does nothing in %s: %s", name, draftName(k.until), draftName(l.draft), hint)
		return k, false
	}
	if _, ref := schema["$ref"]; ref && l.draft < 2019 && !k.note && name != "$ref" {
		l.add(at, "%s does nothing beside $ref in %s: put both under allOf, or use draft 2020-12", name, draftName(l.draft))
	}
	return k, true
}

// words are the keywords of the schema's draft.
func (l *linter) words() []string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(keywords)) {
		if k := keywords[name]; k.since <= l.draft && l.draft <= k.until {
			words = append(words, name)
		}
	}
	return words
}

// identify notes the names that references can use for this schema, and returns the URL that its own are relative to.
func (l *linter) identify(schema map[string]any, at, base string) string {
	_, ref := schema["$ref"]
	word := "$id"
	if l.draft == 4 {
		word = "id"
	}
	if id, ok := schema[word].(string); ok && (!ref || l.draft >= 2019) {
		location, fragment, _ := strings.Cut(id, "#")
		if location != "" {
			base = resolveURL(base, location)
			if _, taken := l.resources[base]; !taken {
				l.resources[base] = resource{at, schema}
			}
		}
		if fragment != "" {
			l.anchors[base+"#"+fragment] = true
		}
	}
	for _, word := range []string{"$anchor", "$dynamicAnchor"} {
		if name, ok := schema[word].(string); ok {
			l.anchors[base+"#"+name] = true
		}
	}
	return base
}

// resolve checks that a reference stays inside its schema and names something there.
func (l *linter) resolve(ref reference) {
	location, fragment, _ := strings.Cut(resolveURL(ref.base, ref.target), "#")
	in, ok := l.resources[location]
	if !ok {
		l.add(ref.pointer, "%s leads out of this schema, and a tool's schema must stand alone: copy what it names under $defs and refer to #/$defs/NAME", quote(ref.target))
		return
	}
	if fragment == "" || fragment == "/" {
		return
	}
	if plain, err := url.PathUnescape(fragment); err == nil {
		fragment = plain
	}
	if !strings.HasPrefix(fragment, "/") {
		if !l.anchors[location+"#"+fragment] {
			l.add(ref.pointer, "%s names no $anchor of this schema: add it, or refer to #/$defs/NAME", quote(ref.target))
		}
		return
	}
	target, ok := lookup(in.schema, fragment)
	if !ok {
		l.add(ref.pointer, "%s names nothing in this schema: add it, or correct the reference", quote(ref.target))
		return
	}
	switch target.(type) {
	case map[string]any, bool:
		l.walk(target, in.pointer+fragment, location)
	default:
		l.add(in.pointer+fragment, "a reference leads here, and this is %s and no schema: correct the reference", kindOf(target))
	}
}

func resolveURL(base, ref string) string {
	b, err := url.Parse(base)
	if err != nil {
		return ref
	}
	r, err := url.Parse(ref)
	if err != nil {
		return ref
	}
	return b.ResolveReference(r).String()
}

func (l *linter) pattern(pattern, at string) {
	_, err := regexp.Compile(pattern)
	if err == nil {
		return
	}
	for _, look := range []string{"(?=", "(?!", "(?<=", "(?<!"} {
		if strings.Contains(pattern, look) {
			l.add(at, "the pattern uses %s…), and Go's regular expressions have no lookahead and no lookbehind: "+
				"put several plain patterns under allOf, or what must not match under not", look)
			return
		}
	}
	reason := "it is too large"
	var e *syntax.Error
	if errors.As(err, &e) {
		reason = string(e.Code) + ": " + quote(e.Expr)
	}
	l.add(at, "Go can not read the pattern: %s; see https://pkg.go.dev/regexp/syntax for what it may hold", reason)
}

// quote shows a word of the registry, cut to a length that a person reads.
func quote(s string) string { return strconv.Quote(cut(s, 80)) }
