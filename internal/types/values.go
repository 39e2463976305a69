package types

import "slices"

// kind is one of JSON's kinds of values.
type kind int

const (
	text kind = iota
	integer
	fraction // a number that is not an integer
	boolean
	list
	object
	null
	kinds int  = iota
	all   kind = -1 // of an alias
)

// values is a set of JSON values that a language can express: for each kind all values, none, or a list of options.
type values [kinds]part

type part struct {
	every bool
	only  []option
}

// option is a type: a constant, or one of lists or objects. A value has to have one of a part's options.
type option struct {
	text string
	size int   // the number of types that TypeScript makes of it when it is combined with others
	both bool  // it is an intersection
	dict *dict // in Python, a type of objects that has no name yet
}

// most is how many types TypeScript may have to make of one that combines others; it fails at 100,000. Beyond it, a
// type is wider.
const most = 1000

// only is the set of all values of some kinds.
func only(some ...kind) (v values) {
	for _, k := range some {
		v[k].every = true
	}
	return v
}

func anything() values { return only(text, integer, fraction, boolean, list, object, null) }

// part is the set without the values of other kinds.
func (v values) part(k kind) values {
	for other := range v {
		if k != all && kind(other) != k {
			v[other] = part{}
		}
	}
	return v
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

// and is the set of the values that are in both, or a larger one.
func (w *writer) and(v, u values) (both values) {
	for k := range both {
		both[k] = w.andPart(v[k], u[k], kind(k))
	}
	return both
}

func (w *writer) andPart(p, q part, k kind) part {
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
	return w.lang.both(p, q)
}

func (p part) size() (n int) {
	for _, o := range p.only {
		n += o.size
	}
	return n
}

// or is the set of the values that are in one of both.
func (v values) or(w values) (either values) {
	for k := range either {
		p := part{every: v[k].every || w[k].every}
		if !p.every {
			p.only = distinct(slices.Concat(v[k].only, w[k].only))
			p.every = p.size() > most || kind(k) == boolean && len(p.only) == 2 || kind(k) == null && len(p.only) == 1
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

// listed writes the set as a list of types, none for a set without values.
func (w *writer) listed(v values) (options []option) {
	full := 0
	for k, p := range v {
		if p.every {
			full++
			p.only = []option{{text: w.lang.every(kind(k))}}
		}
		if kind(k) != integer || !v[fraction].every { // the type of fractions has them too
			options = append(options, p.only...)
		}
	}
	if full == kinds {
		return []option{{text: w.lang.anything()}}
	}
	return distinct(options)
}
