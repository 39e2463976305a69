package schema

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Problem is an error at a place of a schema or a file, which is a JSON pointer.
type Problem struct{ Pointer, Text string }

// linter walks a schema and all schemas inside it.
type linter struct {
	draft     int
	problems  []Problem
	walked    map[string]bool // pointers of the schemas that were visited
	root      any
	resources map[string]string // pointers of what a URL names
	anchors   map[string]bool   // URL#name
	refs      []reference
}

// lint returns what is wrong with a schema beyond the values of its keywords, which the library checks, and whether it
// has references whose target is only known during a validation.
func lint(schema any) (_ []Problem, dynamic bool) {
	l := &linter{draft: newest, root: schema, resources: map[string]string{schemaURL: ""}}
	l.anchors, l.walked = map[string]bool{}, map[string]bool{}
	if name, ok := As[map[string]any](schema)["$schema"].(string); ok {
		_, bare, _ := strings.Cut(name, "://")
		if l.draft, ok = drafts[strings.TrimRight(bare, "/#")]; !ok {
			l.add("/$schema", "%s is not a supported draft of JSON Schema: remove $schema for draft 2020-12, or write one of "+
				"https://json-schema.org/draft/2020-12/schema, https://json-schema.org/draft/2019-09/schema and "+
				"http://json-schema.org/draft-07/schema# (also 06 and 04)", Show(name))
			return l.problems, false
		}
	}
	l.walk(schema, itself, "", schemaURL)
	// A reference may lead to a place that no keyword leads to: its target becomes a schema, with references of its own.
	for i := 0; i < len(l.refs); i++ {
		l.follow(l.refs[i])
	}
	return l.problems, slices.ContainsFunc(l.refs, func(r reference) bool {
		return !strings.HasSuffix(r.pointer, "/$ref")
	})
}

func (l *linter) add(pointer, format string, args ...any) {
	l.problems = append(l.problems, Problem{pointer, fmt.Sprintf(format, args...)})
}

// walk visits the schemas in the value of a keyword. A value of the wrong form is left to the library.
func (l *linter) walk(value any, place place, at, base string) {
	if place == nowhere {
		return
	}
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			l.walk(item, place, at+"/"+strconv.Itoa(i), base)
		}
	case map[string]any:
		if place == itself {
			l.schema(v, at, base)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			l.walk(v[name], itself, JoinPointer(at, name), base)
		}
	}
}

func (l *linter) schema(schema map[string]any, at, base string) {
	if l.walked[at] {
		return
	}
	l.walked[at] = true
	base = l.identify(schema, at, base)
	for _, name := range slices.Sorted(maps.Keys(schema)) {
		value, here := schema[name], JoinPointer(at, name)
		if !l.known(schema, name, here) {
			continue
		}
		switch name {
		case "$ref", "$dynamicRef", "$recursiveRef":
			if target, ok := value.(string); ok {
				l.refs = append(l.refs, reference{here, base, target})
			}
		case "pattern":
			l.pattern(As[string](value), here)
		case "patternProperties":
			for pattern := range As[map[string]any](value) {
				l.pattern(pattern, JoinPointer(here, pattern))
			}
		case "enum":
			if list, ok := value.([]any); ok && len(list) == 0 {
				l.add(here, "is empty, so that no value can match: list the values, or remove enum")
			}
		}
		l.walk(value, keywords[name].place, here, base)
	}
}

// known reports whether the keyword means something in this schema.
func (l *linter) known(schema map[string]any, name, at string) bool {
	if strings.HasPrefix(name, "x-") {
		return false
	}
	if !l.has(name) {
		known := slices.DeleteFunc(slices.Sorted(maps.Keys(keywords)), func(name string) bool { return !l.has(name) })
		hint := cmp.Or(instead[name], DidYouMean(name, known), ": remove it, or begin its name with x- to keep it as a note")
		if since := keywords[name].since; since > l.draft {
			hint = ": name " + draftNames[since] + " in $schema, or remove $schema"
		}
		l.add(at, "%s is not a JSON Schema keyword in %s and would check nothing%s", Show(name), draftNames[l.draft], hint)
		return false
	}
	if _, ref := schema["$ref"]; ref && l.draft < 2019 && name != "$ref" && !slices.Contains(notes, name) {
		l.add(at, "%s does nothing beside $ref in %s: put both under allOf, or use draft 2020-12", name, draftNames[l.draft])
	}
	return true
}

// has reports whether the schema's draft has the keyword.
func (l *linter) has(name string) bool {
	k, ok := keywords[name]
	return ok && k.since <= l.draft && l.draft <= k.until
}

func (l *linter) pattern(pattern, at string) {
	if _, err := regexp.Compile(pattern); err != nil {
		l.add(at, "%v. Go's regular expressions have no lookahead, lookbehind or backreference: put several patterns under "+
			"allOf, and "+
			"those that must not match under not; see https://pkg.go.dev/regexp/syntax", err)
	}
}
