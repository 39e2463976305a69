package schema

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// finding is one fault of a document before it is put into words.
type finding struct {
	path    string // of the value, or of the property that is missing
	keyword string
	at      string // pointer into the schema, to the keyword's value
	route   string // how validation came there, $ref by $ref
	never   bool   // the schema is false: nothing is allowed here
}

func (f finding) compare(g finding) int {
	return cmp.Or(ComparePointers(f.path, g.path), cmp.Compare(f.keyword, g.keyword), cmp.Compare(f.at, g.at),
		cmp.Compare(f.route, g.route))
}

// eachLeaf visits the errors that cause all others. It skips errors that only wrap these (a $ref, a branch of anyOf),
// and errors of items that contains ignored, which are not faults.
func eachLeaf(err *jsonschema.ValidationError, visit func(*jsonschema.ValidationError)) {
	// The error of a schema under a property named minContains has no message.
	if len(err.Causes) == 0 || strings.HasSuffix(err.KeywordLocation, "/minContains") && err.Message != "" {
		visit(err)
		return
	}
	for _, cause := range err.Causes {
		eachLeaf(cause, visit)
	}
}

// findings visits what an error of the library says: one finding a property, where it speaks of several.
func (s *Schema) findings(doc any, e *jsonschema.ValidationError, visit func(finding)) {
	_, at, _ := strings.Cut(e.AbsoluteKeywordLocation, "#")
	steps := route(e.KeywordLocation)
	f := finding{
		path:    PlainPointer(e.InstanceLocation),
		keyword: steps[len(steps)-1].keyword,
		at:      PlainPointer(at),
		route:   e.KeywordLocation,
		never:   e.Message == "not allowed",
	}
	var names []string
	switch f.keyword {
	case "minContains":
		if ValueAt(s.doc, f.at) == nil {
			f.keyword = "contains"
		}
	case "required":
		names = slices.DeleteFunc(Texts(ValueAt(s.doc, f.at)), func(name string) bool {
			_, ok := Lookup(doc, JoinPointer(f.path, name))
			return ok
		})
	case "additionalProperties":
		if !f.never {
			names = s.additional(doc, f)
		}
	case "dependencies", "dependentRequired":
		if name, ok := ValueAt(s.doc, f.at).(string); ok {
			names = []string{name}
		}
	}
	if len(names) == 0 {
		visit(f)
	}
	around := f.path
	for _, name := range names {
		f.path = JoinPointer(around, name)
		visit(f)
	}
}

// sibling returns the object under another keyword of the same subschema.
func (s *Schema) sibling(at, keyword string) map[string]any {
	around, _ := splitPointer(at)
	return As[map[string]any](ValueAt(s.doc, around+"/"+keyword))
}

// additional names the properties that neither properties nor patternProperties of the schema know.
func (s *Schema) additional(doc any, f finding) []string {
	known := s.sibling(f.at, "properties")
	var patterns []*regexp.Regexp
	for pattern := range s.sibling(f.at, "patternProperties") {
		if p, err := regexp.Compile(pattern); err == nil {
			patterns = append(patterns, p)
		}
	}
	object := As[map[string]any](ValueAt(doc, f.path))
	return slices.DeleteFunc(slices.Collect(maps.Keys(object)), func(name string) bool {
		_, ok := known[name]
		return ok || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(name) })
	})
}

// step is a keyword that validation went through, with the index of the schema in its list, if it has one.
type step struct{ keyword, index string }

// named are the keywords that a name follows.
var named = []string{"properties", "patternProperties", "dependentSchemas", "dependencies", "dependentRequired"}

// route splits the library's keyword location, such as /properties/tags/items/anyOf/1/type. No keyword is a number.
func route(location string) []step {
	all := []step{{keyword: "schema"}}
	for parts := Tokens(location); len(parts) > 0; {
		s := step{keyword: parts[0]}
		parts = parts[1:]
		if len(parts) > 0 && slices.Contains(named, s.keyword) {
			parts = parts[1:]
		}
		if len(parts) > 0 && index(parts[0]) >= 0 {
			s.index, parts = parts[0], parts[1:]
		}
		all = append(all, s)
	}
	return all
}
