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

// values is a set of JSON values that a language can express: for each kind all values, none, or the values of some
// types.
type values [kinds]part

// part holds the values of one kind in a set: all of them, or the values that one of the options accepts.
type part struct {
	every bool
	only  []option
}

// option is a type: a constant, a type of lists, or a type of objects.
type option struct {
	text string
	size int   // the number of types that TypeScript makes of this type when it is combined with others
	both bool  // the type is an intersection
	dict *dict // in Python, the description of a type of objects that has no name yet
}

// most is the highest number of types into which TypeScript may have to expand one type; the compiler fails at 100,000.
// A type that exceeds it is replaced by one that accepts more values.
const most = 1000

// only returns the set of all values of some kinds.
func only(some ...kind) (v values) {
	for _, k := range some {
		v[k].every = true
	}
	return v
}

func anything() values { return only(text, integer, fraction, boolean, list, object, null) }

// part returns the values of the set that are of the kind k; for all, the whole set.
func (v values) part(k kind) values {
	for other := range v {
		if k != all && kind(other) != k {
			v[other] = part{}
		}
	}
	return v
}

// alone reports whether all values are of the kind k.
func (v values) alone(k kind) bool {
	for other, p := range v {
		if kind(other) != k && (p.every || len(p.only) > 0) {
			return false
		}
	}
	return true
}

// and returns the set of the values that are in both sets. If the language cannot express it, the result contains more
// values.
func (w *writer) and(v, u values) (both values) {
	for k := range both {
		both[k] = w.andPart(v[k], u[k], kind(k))
	}
	return both
}

// andPart is like and, for the values of one kind.
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
	case !slices.ContainsFunc(q.only, lacks(p)): // this includes an empty q
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

// or returns the set of the values that are in one of the two sets.
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

// distinct returns the options without duplicates.
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

// listed returns the set as a list of types, which is empty for an empty set.
func (w *writer) listed(v values) (options []option) {
	full := 0
	for k, p := range v {
		if p.every {
			full++
			p.only = []option{{text: w.lang.every(kind(k))}}
		}
		if kind(k) != integer || !v[fraction].every { // the type of all fractions also accepts integers
			options = append(options, p.only...)
		}
	}
	if full == kinds {
		return []option{{text: w.lang.anything()}}
	}
	return distinct(options)
}
