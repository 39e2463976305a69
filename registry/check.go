package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Parse reads a registry, checks all of it and compiles its schemas. Its error is an [*InvalidError] with every fault.
func Parse(data []byte) (*Registry, error) {
	doc, faults, whole := decodeRegistry(bytes.TrimPrefix(data, []byte("\ufeff")))
	c := &checker{doc: doc}
	for _, f := range faults {
		c.poison(f)
	}
	if !whole {
		return nil, &InvalidError{c.defects}
	}
	return c.registry()
}

// checker collects the defects of one registry.
type checker struct {
	doc     any
	defects []Defect
	tool    string // whose entry is being checked
	// noCompile: something in the file would make the library panic.
	noCompile bool
}

func (c *checker) add(field, format string, args ...any) {
	c.defects = append(c.defects, Defect{c.tool, field, cut(fmt.Sprintf(format, args...), 500)})
}

// poison adds what the decoder found, under the tool in which it found it.
func (c *checker) poison(f Fault) {
	steps := tokens(f.Path)
	if len(steps) > 1 && steps[0] == "tools" {
		entry, _ := lookup(c.doc, joinPointer("/tools", steps[1]))
		index, _ := strconv.Atoi(steps[1])
		c.tool = toolLabel(entry, index)
		steps = steps[2:]
	}
	c.add(cut(strings.Join(steps, "/"), 200), "%s", f.Message)
	c.tool = ""
	c.noCompile = c.noCompile || f.Keyword != keywordDuplicate
}

func (c *checker) registry() (*Registry, error) {
	top, ok := c.doc.(map[string]any)
	if !ok {
		c.add("", `the registry is %s and must be an object: {"version": "1.0.0", "tools": [...]}`, kindOf(c.doc))
		return nil, &InvalidError{c.defects}
	}
	version := c.version(top)
	tools := c.tools(top)
	if len(c.defects) > 0 {
		return nil, &InvalidError{c.defects}
	}
	return newRegistry(top, version, tools), nil
}

const maxVersion = 64 // characters

func (c *checker) version(top map[string]any) string {
	v, ok := top["version"]
	version, isString := v.(string)
	switch {
	case !ok:
		c.add("version", `is missing: state one, such as "1.0.0", and raise it with every change%s`, misspelt(top, "version"))
	case !isString:
		c.add("version", `is %s and must be a string, such as "1.0.0"`, kindOf(v))
	case version == "":
		c.add("version", `is empty: state one, such as "1.0.0"`)
	case utf8.RuneCountInString(version) > maxVersion:
		c.add("version", "has %d characters and may have at most %d: shorten it", utf8.RuneCountInString(version), maxVersion)
	case strings.TrimSpace(version) != version || strings.ContainsFunc(version, unicode.IsControl):
		c.add("version", `is %s: remove the white space around it and all control characters`, quote(version))
	}
	return version
}

// misspelt names a key that may have been meant for the one that is missing.
func misspelt(object map[string]any, want string) string {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if nearest(key, []string{want}) != "" {
			return fmt.Sprintf(" (%s does not count)", quote(key))
		}
	}
	return ""
}

func (c *checker) tools(top map[string]any) []*Tool {
	v, ok := top["tools"]
	list, isList := v.([]any)
	switch {
	case !ok:
		c.add("tools", "is missing: state the list of tools, which may be empty%s", misspelt(top, "tools"))
	case !isList:
		c.add("tools", "is %s and must be a list of tools", kindOf(v))
	}
	tools := make([]*Tool, 0, len(list))
	first := map[string]int{}
	for i, v := range list {
		c.tool = toolLabel(v, i)
		entry, ok := v.(map[string]any)
		if !ok {
			c.add("", "is %s and must be an object with name, input_schema, output_schema, idempotency and timeout_ms", kindOf(v))
			continue
		}
		t := c.entry(entry)
		if before, twice := first[t.Name]; twice {
			c.add("name", "is the name of both tools[%d] and tools[%d]: a name can stand only once, so rename or remove one", before, i)
		} else if t.Name != "" {
			first[t.Name] = i
		}
		tools = append(tools, t)
	}
	c.tool = ""
	return tools
}

// toolLabel is what a defect calls the tool: its name, or its place when it has no usable one.
func toolLabel(v any, index int) string {
	if entry, ok := v.(map[string]any); ok {
		if name, ok := entry["name"].(string); ok && name != "" && utf8.RuneCountInString(name) <= 200 && !strings.ContainsFunc(name, unicode.IsControl) {
			return name
		}
	}
	return fmt.Sprintf("tools[%d]", index)
}

// The fields of an entry, of its idempotency and of its retry. Besides them, names that begin with x- are free.
var (
	toolFields        = []string{"name", "description", "input_schema", "output_schema", "permissions", "idempotency", "timeout_ms", "receipt_fields", "retry"}
	idempotencyFields = []string{"mode", "key_field"}
	retryFields       = []string{"max_attempts", "backoff_ms"}
)

// entry checks one tool. The order is that in which people write an entry.
func (c *checker) entry(entry map[string]any) *Tool {
	t := &Tool{entry: entry}
	c.fields("", entry, toolFields)
	t.Name = c.name(entry)
	t.Description = c.description(entry)
	t.input = c.schema(entry, "input_schema", "the input")
	t.output = c.schema(entry, "output_schema", "the output")
	t.Permissions = c.strings(entry, "permissions", permission, "must have the form verb:object, such as read:db or send:sms")
	t.Idempotency = c.idempotency(entry)
	t.Timeout = c.timeout(entry)
	t.ReceiptFields = c.strings(entry, "receipt_fields", receiptField,
		"must be a path that begins with result or effects, such as result.lead_id or effects.db_writes")
	t.Retry = c.retry(entry)
	return t
}

// fields refuses names that nothing reads: a mistyped field would be lost without a word.
func (c *checker) fields(at string, object map[string]any, known []string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if slices.Contains(known, name) || strings.HasPrefix(name, "x-") {
			continue
		}
		hint := didYouMean(name, known)
		switch {
		case hint != "":
		case at == "" && slices.Contains([]string{"parameters", "arguments", "args", "schema"}, name):
			hint = ": did you mean input_schema?"
		default:
			hint = ": remove it, or begin its name with x- if it is a note of your own; known are " + strings.Join(known, ", ")
		}
		c.add(at+cut(name, 80), "is no field that GEM reads%s", hint)
	}
}

const maxName = 200

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)

func (c *checker) name(entry map[string]any) string {
	v, ok := entry["name"]
	name, isString := v.(string)
	switch {
	case !ok:
		c.add("name", "is missing: name the tool domain.method, such as leads.create")
	case !isString:
		c.add("name", "is %s and must be a string such as leads.create", kindOf(v))
	case len(name) > maxName:
		c.add("name", "has %d characters and may have at most %d: shorten it", utf8.RuneCountInString(name), maxName)
	case !namePattern.MatchString(name):
		c.add("name", "%s must be two or more parts joined by dots, each a small letter and then small letters, digits and "+
			"underscores, such as leads.create", quote(name))
	}
	return name
}

func (c *checker) description(entry map[string]any) string {
	v, ok := entry["description"]
	text, isString := v.(string)
	if ok && !isString {
		c.add("description", "is %s and must be a string: tell what the tool is for", kindOf(v))
	}
	return text
}

var (
	permission   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*:[A-Za-z][A-Za-z0-9_.-]*$`)
	receiptField = regexp.MustCompile(`^(result|effects)(\.[A-Za-z0-9_-]+|\[[0-9]*\])*$`)
)

// strings reads a list of strings that may be left out.
func (c *checker) strings(entry map[string]any, field string, form *regexp.Regexp, must string) []string {
	v, ok := entry[field]
	if !ok {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		c.add(field, "is %s and must be a list of strings; each %s", kindOf(v), must)
		return nil
	}
	var all []string
	for i, item := range list {
		s, ok := item.(string)
		switch {
		case !ok:
			c.add(fmt.Sprintf("%s[%d]", field, i), "is %s and %s", kindOf(item), must)
		case !form.MatchString(s):
			c.add(fmt.Sprintf("%s[%d]", field, i), "%s %s", quote(s), must)
		}
		all = append(all, s)
	}
	return all
}

func (c *checker) schema(entry map[string]any, field, noun string) *schema {
	doc, ok := entry[field]
	if !ok {
		c.add(field, `is missing: state the JSON Schema of %s; {"type": "object"} accepts every object`, noun)
		return nil
	}
	if c.noCompile {
		faults, _ := lint(doc)
		for _, f := range faults {
			c.add(field+f.pointer, "%s", f.problem)
		}
		return nil
	}
	s, faults := compile(noun, doc)
	for _, f := range faults {
		c.add(field+cut(f.pointer, 200), "%s", f.problem)
	}
	if field != "input_schema" {
		return s
	}
	for _, part := range conjuncts(doc) {
		if t, ok := part["type"]; ok && t != "object" && !slices.Contains(asList(t), any("object")) {
			c.add(field+"/type", `is %s, and an input is always an object: write "type": "object"`, show(t))
			break
		}
	}
	if s != nil {
		s.object = true
	}
	return s
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// conjuncts returns the schemas that every document must match as a whole: the schema itself, and what it takes in by
// $ref and allOf.
func conjuncts(root any) []map[string]any {
	var all []map[string]any
	var take func(v any)
	take = func(v any) {
		schema, ok := v.(map[string]any)
		// A schema in a circle of references is refused elsewhere; here it must only end.
		if !ok || len(all) >= 100 {
			return
		}
		all = append(all, schema)
		if ref, ok := schema["$ref"].(string); ok && strings.HasPrefix(ref, "#/") {
			if target, ok := lookup(root, libraryPointer(ref[1:])); ok {
				take(target)
			}
		}
		for _, part := range asList(schema["allOf"]) {
			take(part)
		}
	}
	take(root)
	return all
}

func (c *checker) idempotency(entry map[string]any) Idempotency {
	v, ok := entry["idempotency"]
	if !ok {
		c.add("idempotency", `is missing: state {"mode": "none"} when every call must run, {"mode": "safe-retry"} when a call may run twice, `+
			`or {"mode": "keyed", "key_field": "…"}`)
		return Idempotency{}
	}
	object, ok := v.(map[string]any)
	if !ok {
		c.add("idempotency", `is %s and must be an object such as {"mode": "none"}`, kindOf(v))
		return Idempotency{}
	}
	c.fields("idempotency.", object, idempotencyFields)
	mode, isString := object["mode"].(string)
	keyField := object["key_field"] // null counts as left out
	stated := keyField != nil
	name, nameIsString := keyField.(string)
	switch m := Mode(mode); {
	case object["mode"] == nil:
		c.add("idempotency.mode", "is missing: it must be none, safe-retry or keyed")
	case !isString:
		c.add("idempotency.mode", "is %s and must be none, safe-retry or keyed", kindOf(object["mode"]))
	case m != None && m != SafeRetry && m != Keyed:
		c.add("idempotency.mode", "is %s and must be none, safe-retry or keyed%s", quote(mode),
			didYouMean(mode, []string{string(None), string(SafeRetry), string(Keyed)}))
	case m != Keyed && stated:
		c.add("idempotency.key_field", "means nothing with mode %s: remove it, or set the mode to keyed", m)
	case m == Keyed && !stated:
		c.add("idempotency.key_field", "is missing: mode keyed needs the name of the input's property whose value is the key")
	case m == Keyed && (!nameIsString || name == ""):
		c.add("idempotency.key_field", "must be the name of a property of the input")
	case m == Keyed:
		c.keyField(entry, name)
	}
	return Idempotency{Mode: Mode(mode), KeyField: name}
}

// keyField refuses a key that a right input could lack.
func (c *checker) keyField(entry map[string]any, name string) {
	described, required := false, false
	for _, part := range conjuncts(entry["input_schema"]) {
		properties, _ := part["properties"].(map[string]any)
		_, ok := properties[name]
		described = described || ok
		required = required || slices.Contains(asList(part["required"]), any(name))
	}
	switch {
	case !described:
		c.add("idempotency.key_field", "%s is no property of input_schema: describe it under properties, and require it", quote(name))
	case !required:
		c.add("idempotency.key_field", `%s is not required by input_schema, and a call without it would have no key: add it to "required"`, quote(name))
	}
}

// whole reads a whole number of a range.
func (c *checker) whole(v any, field, unit string, lowest, highest int) int {
	n, ok := v.(json.Number)
	if !ok {
		c.add(field, "is %s and must be a whole number%s from %d to %d", kindOf(v), unit, lowest, highest)
		return 0
	}
	i, err := strconv.Atoi(canonicalNumber(n))
	if err != nil || i < lowest || i > highest {
		c.add(field, "is %s and must be a whole number%s from %d to %d", cut(string(n), 30), unit, lowest, highest)
		return 0
	}
	return i
}

const (
	maxTimeout = 24 * time.Hour
	maxBackoff = time.Hour
	maxRetries = 20
)

func (c *checker) timeout(entry map[string]any) time.Duration {
	v, ok := entry["timeout_ms"]
	if !ok {
		c.add("timeout_ms", "is missing: state after how many milliseconds a run is ended, from 1 to %d (24 hours)", maxTimeout.Milliseconds())
		return 0
	}
	return time.Duration(c.whole(v, "timeout_ms", " of milliseconds", 1, int(maxTimeout.Milliseconds()))) * time.Millisecond
}

func (c *checker) retry(entry map[string]any) Retry {
	retry := Retry{DefaultMaxAttempts, DefaultBackoff}
	v, ok := entry["retry"]
	if !ok {
		return retry
	}
	object, ok := v.(map[string]any)
	if !ok {
		c.add("retry", `is %s and must be an object such as {"max_attempts": 3, "backoff_ms": 500}`, kindOf(v))
		return retry
	}
	c.fields("retry.", object, retryFields)
	if v, ok := object["max_attempts"]; ok {
		retry.MaxAttempts = c.whole(v, "retry.max_attempts", "", 1, maxRetries)
	}
	if v, ok := object["backoff_ms"]; ok {
		retry.Backoff = time.Duration(c.whole(v, "retry.backoff_ms", " of milliseconds", 1, int(maxBackoff.Milliseconds()))) * time.Millisecond
	}
	return retry
}
