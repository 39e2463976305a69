package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// Check compares the rules with a registry. A defect means that a rule would not work as written. A worker refuses a
// file with defects. Notes describe rules that are allowed but may surprise.
func (s *Set) Check(r *registry.Registry) (found []defects.Defect, notes []string) {
	c := &checker{registry: r, read: map[string]any{}}
	for _, rule := range s.rules {
		c.rule(rule)
	}
	return c.defects, c.notes
}

// checker compares one rule after another with a registry.
type checker struct {
	registry *registry.Registry
	defects  []defects.Defect
	notes    []string
	read     map[string]any // schemas, by their tool and noun

	on    *Rule
	tools []*registry.Tool // the tools that the rule is for
}

func (c *checker) defect(field, format string, args ...any) {
	c.defects = append(c.defects, defects.Defect{Part: c.on.Name, Field: oneline.Cut(field, 200),
		Problem: oneline.Cut(fmt.Sprintf(format, args...), 500)})
}

func (c *checker) note(format string, args ...any) {
	c.notes = append(c.notes, c.on.Name+": "+oneline.Cut(fmt.Sprintf(format, args...), 500))
}

func (c *checker) rule(r *Rule) {
	c.on, c.tools = r, nil
	for _, tool := range c.registry.Tools() {
		if r.IsFor(tool) {
			c.tools = append(c.tools, tool)
		}
	}
	c.matches("tools", r.Tools)
	c.permissions()
	switch {
	case r.Limit != nil:
		c.per("limit.per", r.Limit.Per)
		if r.Limit.Sum != "" {
			c.sum()
		}
	case r.Running != nil:
		c.per("running.per", r.Running.Per)
	case r.Requires != nil && len(r.Requires.Tools) == 1 && r.entry["requires"].(map[string]any)["tool"] != nil:
		c.match("requires.tool", r.Requires.Tools[0])
	case r.Requires != nil:
		c.matches("requires.tools", r.Requires.Tools)
	case r.After != nil:
		c.matches("after.tools", r.After.Tools)
	case r.Failures != nil:
		c.per("failures.per", r.Failures.Per)
	}
	c.condition("when", r.when)
	c.condition("unless", r.unless)
	for _, pointer := range r.template.pointers() {
		c.field("ask.question", "input", pointer)
	}
	c.asks()
	c.session()
	c.sharedLimit()
	for _, tool := range c.tools {
		if strings.HasPrefix(tool.Name, "llm.") {
			c.note("it is for %s, but the steps of a durable handler are not calls: an agent's own thinking is not checked",
				tool.Name)
			break
		}
	}
}

// matches refuses patterns that match no tool.
func (c *checker) matches(field string, patterns []string) {
	for i, pattern := range patterns {
		c.match(field+"["+strconv.Itoa(i)+"]", pattern)
	}
}

func (c *checker) match(field, pattern string) {
	var known []string
	for _, tool := range c.registry.Tools() {
		if covers(pattern, tool.Name) {
			return
		}
		domain, _, _ := strings.Cut(tool.Name, ".")
		known = append(known, domain+".*")
	}
	hint := c.registry.DidYouMean(pattern)
	if strings.HasSuffix(pattern, "*") {
		hint = schema.DidYouMean(pattern, known)
	}
	c.defect(field, "the registry %s has no tool %s%s", c.registry.Version, pattern,
		cmp.Or(hint, ": remove it, or add the tool to the registry"))
}

func (c *checker) permissions() {
	for i, pattern := range c.on.Permissions {
		known := map[string]bool{}
		for _, tool := range c.registry.Tools() {
			for _, permission := range tool.Permissions {
				verb, _, _ := strings.Cut(permission, ":")
				known[permission], known[verb+":*"] = true, true
			}
		}
		matches := false
		for permission := range known {
			matches = matches || !strings.HasSuffix(permission, "*") && covers(pattern, permission)
		}
		if !matches {
			hint := cmp.Or(schema.DidYouMean(pattern, slices.Sorted(maps.Keys(known))),
				": remove it, or add it to a tool of the registry")
			c.defect("permissions["+strconv.Itoa(i)+"]", "no tool of the registry %s needs %s%s", c.registry.Version, pattern,
				hint)
		}
	}
}

// condition checks the fields of the input and the result that a condition names.
func (c *checker) condition(field string, when *condition) {
	if when == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(when.input)) {
		c.field(field+"."+schema.FieldName([]string{"input", name}), "input", schema.JoinPointer("", name))
	}
	for _, name := range slices.Sorted(maps.Keys(when.result)) {
		c.field(field+"."+schema.FieldName([]string{"result", name}), "output", schema.JoinPointer("", name))
	}
}

func (c *checker) per(field string, per []string) {
	for i, what := range per {
		if pointer, ok := strings.CutPrefix(what, "input:"); ok {
			c.field(field+"["+strconv.Itoa(i)+"]", "input", pointer)
		}
	}
}

// field refuses a field that no tool of the rule has, and notes one that only some tools have. A schema that does not
// list its properties may have any.
func (c *checker) field(field, noun, pointer string) {
	var lacking, known []string
	for _, tool := range c.tools {
		found := c.find(tool, noun, pointer)
		if found.lacks {
			lacking = append(lacking, tool.Name)
			known = append(known, found.known...)
		}
	}
	steps := schema.Tokens(pointer)
	switch name := steps[len(steps)-1]; {
	case len(lacking) == 0:
	case len(lacking) == len(c.tools):
		c.defect(field, "no tool of the rule has %s in its %s_schema%s", pointer, noun,
			cmp.Or(schema.DidYouMean(name, known), ": correct it, or describe the field there"))
	default:
		c.note("%s: the %s of %s has no %s", field, noun, list(lacking), pointer)
	}
}

// sum refuses the sum of a field that need not be a number of at least 0 in each tool of the rule, because some calls
// could then not be judged.
func (c *checker) sum() {
	var not, known []string
	for _, tool := range c.tools {
		if found := c.find(tool, "input", c.on.Limit.Sum); !found.required || !found.number() {
			not = append(not, tool.Name)
			known = append(known, found.known...)
		}
	}
	if len(not) > 0 {
		steps := schema.Tokens(c.on.Limit.Sum)
		hint := cmp.Or(schema.DidYouMean(steps[len(steps)-1], known),
			`: add it to "required", with "type": "number" and "minimum": 0, or sum another field`)
		c.defect("limit.sum", "%s is not a required number of at least 0 in the input_schema of %s%s", c.on.Limit.Sum,
			list(not), hint)
	}
}

// found describes the value at a pointer, according to a schema.
type found struct {
	lacks    bool     // the schema lists the properties there, without this one
	known    []string // the properties that it lists, if it lacks this one
	required bool
	schemas  []map[string]any // the schemas that the value must match
}

// schema returns the schema of a tool's input or output.
func (c *checker) schema(tool *registry.Tool, noun string) any {
	key := noun + " " + tool.Name
	root, known := c.read[key]
	if !known {
		text := tool.InputSchema
		if noun == "output" {
			text = tool.OutputSchema
		}
		root, _ = schema.Decode("the schema", text) // the registry has already read it
		c.read[key] = root
	}
	return root
}

// find looks up a pointer in a schema. It does not follow alternatives.
func (c *checker) find(tool *registry.Tool, noun, pointer string) (f found) {
	root := c.schema(tool, noun)
	f = found{required: true, schemas: schema.Conjuncts(root, root)}
	for _, name := range schema.Tokens(pointer) {
		var inside []map[string]any
		var known []string
		described, required, open, closed := false, false, false, false
		for _, part := range f.schemas {
			properties := schema.As[map[string]any](part["properties"])
			known = slices.AppendSeq(known, maps.Keys(properties))
			if property, ok := properties[name]; ok {
				described = true
				inside = append(inside, schema.Conjuncts(root, property)...)
			}
			required = required || slices.Contains(schema.Texts(part["required"]), name)
			open = open || slices.ContainsFunc(undescribed, func(keyword string) bool { return part[keyword] != nil })
			closed = closed || part["additionalProperties"] == false
		}
		f.required = f.required && required
		if f.schemas = inside; !described {
			slices.Sort(known)
			f.lacks, f.known = !open && (closed || len(known) > 0), known
			return f
		}
	}
	return f
}

// undescribed are the keywords that may describe a property in addition to properties.
var undescribed = []string{"patternProperties", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies",
	"$dynamicRef", "$recursiveRef", "items", "prefixItems"}

// number reports whether the value is always a number of at least 0.
func (f found) number() bool {
	isNumber, least := false, false
	for _, part := range f.schemas {
		isNumber = isNumber || part["type"] == "number" || part["type"] == "integer"
		for _, keyword := range []string{"minimum", "exclusiveMinimum"} {
			minimum, ok := new(big.Rat).SetString(string(schema.As[json.Number](part[keyword])))
			least = least || ok && minimum.Sign() >= 0
		}
	}
	return isNumber && least
}

// asks refuses questions that cannot be asked.
func (c *checker) asks() {
	if c.on.Action != Ask {
		return
	}
	for _, tool := range c.tools {
		if strings.HasPrefix(tool.Name, "wait.") {
			c.defect("action", "is ask, but %s asks people itself: name other tools, or another action", tool.Name)
			return
		}
	}
}

// session notes rules that a new session would evade, because a frontend chooses its sessions.
func (c *checker) session() {
	r := c.on
	if r.Action != Off && r.Action != Warn && (r.After != nil || slices.Contains(r.per(), "session")) {
		c.note("it looks at one session, and a caller may begin another, because frontends choose sessions: a limit per " +
			"caller cannot be evaded")
	}
}

// sharedLimit notes a counter that one user could fill for others.
func (c *checker) sharedLimit() {
	r := c.on
	if r.Action == Off || r.Action == Warn || r.Limit == nil && r.Running == nil && r.Failures == nil ||
		r.Limit != nil && r.Limit.Max == "0" || !r.shared() {
		return
	}
	for _, tool := range c.tools {
		if tool.ClosedBecause() == "" {
			c.note("it counts the calls of all callers together, and signed-in users may call %s: one user can use it up "+
				"for everyone; with per caller, each user has a limit", tool.Name)
			return
		}
	}
}
