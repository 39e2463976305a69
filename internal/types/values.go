package types

import (
	"slices"
	"strings"
)

// kind is one of JSON's kinds of values.
type kind int

const (
	text kind = iota
	number
	boolean
	list
	object
	null
	kinds int  = iota
	all   kind = -1 // of an alias
)

// values is a set of JSON values that TypeScript can express: for each kind all values, none, or a list of options.
type values [kinds]part

type part struct {
	every bool
	only  []option
}

// option is a type: a constant, or one of lists or objects. A value has to have one of a part's options.
type option struct {
	text string
	size int  // the number of types that TypeScript makes of it when it is combined with others
	both bool // it is an intersection
}

// mostTypes is how many types TypeScript may have to make of one that combines others; it fails at 100,000. Beyond
// it a type is wider.
const mostTypes = 1000

// fullNames are the types of all values of a kind.
var fullNames = [kinds]string{"string", "number", "boolean", "unknown[]", "{ [key: string]: unknown }", "null"}

// only is the set of all values of some kinds.
func only(some ...kind) (v values) {
	for _, k := range some {
		v[k].every = true
	}
	return v
}

func anything() values { return only(text, number, boolean, list, object, null) }

// part is the set without the values of other kinds.
func (v values) part(k kind) values {
	if k == all {
		return v
	}
	return v.and(only(k))
}

// alone reports whether all values are of one kind.
func (v values) alone(k kind) bool {
	for other, p := range v {
		if kind(other) != k && (p.every || len(p.only) > 0) {
			return false
		}
	}
	return true
}

// and is the set of the values that are in both; it is v where that would be too much for TypeScript.
func (v values) and(w values) (both values) {
	for k := range both {
		both[k] = v[k].and(w[k], kind(k))
	}
	return both
}

func (p part) and(q part, k kind) part {
	has := func(in part) func(option) bool {
		return func(o option) bool {
			return slices.ContainsFunc(in.only, func(other option) bool { return other.text == o.text })
		}
	}
	lacks := func(in part) func(option) bool { return func(o option) bool { return !has(in)(o) } }
	switch {
	case p.every:
		return q
	case q.every:
		return p
	case k != list && k != object:
		return part{only: slices.DeleteFunc(slices.Clone(p.only), lacks(q))}
	case len(p.only) == 0, !slices.ContainsFunc(p.only, lacks(q)):
		return p
	case !slices.ContainsFunc(q.only, lacks(p)): // none, too
		return q
	}
	made := p.size() * q.size()
	if made > mostTypes {
		return p
	}
	return part{only: []option{{operand(p.only) + " & " + operand(q.only), made, true}}}
}

func (p part) size() (n int) {
	for _, o := range p.only {
		n += o.size
	}
	return n
}

// operand writes a union as one side of an intersection.
func operand(options []option) string {
	if len(options) > 1 {
		return "(" + union(options) + ")"
	}
	return union(options)
}

// or is the set of the values that are in one of both.
func (v values) or(w values) (either values) {
	for k := range either {
		p := part{every: v[k].every || w[k].every}
		if !p.every {
			p.only = distinct(slices.Concat(v[k].only, w[k].only))
			p.every = p.size() > mostTypes || kind(k) == boolean && len(p.only) == 2 || kind(k) == null && len(p.only) == 1
		}
		if p.every {
			p.only = nil
		}
		either[k] = p
	}
	return either
}

// distinct leaves out repetitions.
func distinct(options []option) (kept []option) {
	seen := map[string]bool{}
	for _, o := range options {
		if !seen[o.text] {
			kept = append(kept, o)
		}
		seen[o.text] = true
	}
	return kept
}

// options writes the set as a list of types, none for a set without values.
func (v values) options() (options []option) {
	full := 0
	for k, p := range v {
		if p.every {
			full++
			p.only = []option{{text: fullNames[k]}}
		}
		options = append(options, p.only...)
	}
	if full == kinds {
		return []option{{text: "unknown"}}
	}
	return options
}

func (v values) text() string { return union(v.options()) }

func union(options []option) string {
	if len(options) == 0 {
		return "never"
	}
	texts := make([]string, len(options))
	for i, o := range options {
		texts[i] = o.text
	}
	return strings.Join(texts, " | ")
}

// element writes the type of a list's elements, as it is written before [] or ?.
func element(options []option) string {
	if len(options) > 1 || len(options) == 1 && options[0].both {
		return "(" + union(options) + ")"
	}
	return union(options)
}
