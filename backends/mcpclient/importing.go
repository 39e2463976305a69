package mcpclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// Import is the result of merging the tools of a server into a registry.
type Import struct {
	Entries []json.RawMessage // that are new or changed
	Refused []string          // a line for each tool that the registry cannot take, and why
	Notes   []string          // a line for each thing to look at
}

const (
	maxEntry    = 256 << 10 // bytes of an entry
	maxDefects  = 3         // reported for a tool
	timeoutMS   = 60_000    // of a new entry
	importField = "x-import"
)

// NewImport compares the tools of a server with the entries of a registry file, by their names. A new tool gets an
// entry with the server's schemas, permissions by its readOnlyHint, and the idempotency that its hints allow. In the
// entry of a tool that was imported before, only fields that the server has changed since are changed; manual changes
// in the registry remain. frontends opens the tools whose entries have no field frontends.
func NewImport(entries map[string]json.RawMessage, domain string, tools []Tool, frontends bool) Import {
	var im Import
	byMethod := map[string][]Tool{}
	for _, t := range tools {
		byMethod[fold(t.Name)] = append(byMethod[fold(t.Name)], t)
	}
	listed := map[string]bool{}
	for _, t := range tools {
		shown := receipts.Shorten(value.OneLine(t.Name), 100)
		refuse := func(format string, args ...any) {
			im.Refused = append(im.Refused, shown+": "+fmt.Sprintf(format, args...))
		}
		name := domain + "." + method(t.Name)
		listed[name] = true
		switch same := byMethod[fold(t.Name)]; {
		case fold(t.Name) == "":
			refuse("its name has no letter or digit that a tool's name may have")
			continue
		case len(same) > 1:
			refuse("the server has %d tools whose names differ in case and separators alone, and the registry knows one %s",
				len(same), name)
			continue
		}
		old, known := entries[name]
		before := parseFields(old)
		after, notes := merge(before, name, t, frontends)
		if known && bytes.Equal(canonical(after.JSON()), canonical(before.JSON())) {
			continue
		}
		entry, loosened, err := acceptable(after)
		if err != nil {
			refuse("%v", err)
			continue
		}
		if known && bytes.Equal(canonical(entry), canonical(before.JSON())) {
			continue
		}
		for _, note := range append(notes, loosened...) {
			im.Notes = append(im.Notes, name+": "+note)
		}
		im.Entries = append(im.Entries, entry)
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if strings.HasPrefix(name, domain+".") && !listed[name] {
			im.Notes = append(im.Notes, name+": the server has no such tool; its calls end as not_configured. Remove the "+
				"entry if it is not to come back")
		}
	}
	return im
}

// method returns the name of a tool in the registry, after its domain: create_issue for createIssue, create-issue and
// create.issue.
func method(name string) string {
	var b strings.Builder
	runes := []rune(name)
	upper := func(i int) bool { return i < len(runes) && runes[i] >= 'A' && runes[i] <= 'Z' }
	lower := func(i int) bool { return i < len(runes) && runes[i] >= 'a' && runes[i] <= 'z' }
	for i, r := range runes {
		switch {
		case upper(i):
			if i > 0 && !upper(i-1) || i > 0 && lower(i+1) {
				b.WriteByte('_')
			}
			b.WriteRune(r + 'a' - 'A')
		case lower(i) || r >= '0' && r <= '9':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	text := strings.Join(slices.DeleteFunc(strings.Split(b.String(), "_"), func(part string) bool { return part == "" }),
		"_")
	if text != "" && text[0] >= '0' && text[0] <= '9' {
		text = digitPrefix + "_" + text
	}
	return text
}

// digitPrefix is the prefix of a name that begins with a digit.
const digitPrefix = "tool"

// field is a field of an entry. Entries keep the order of their fields.
type field struct {
	name  string
	value json.RawMessage
}

type fields []field // nil for a missing entry

func (f fields) get(name string) json.RawMessage {
	for _, one := range f {
		if one.name == name {
			return one.value
		}
	}
	return nil
}

func (f *fields) set(name string, v json.RawMessage) {
	for i, one := range *f {
		if one.name == name {
			(*f)[i].value = v
			return
		}
	}
	*f = append(*f, field{name, v})
}

func (f fields) JSON() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, one := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encoded(one.name))
		b.WriteByte(':')
		b.Write(one.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// parseFields reads an object, in its order.
func parseFields(object json.RawMessage) fields {
	var f fields
	d := json.NewDecoder(bytes.NewReader(object))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return nil
		}
		f.set(fmt.Sprint(name), v)
	}
	return f
}

// encoded returns a value as JSON, without escaping <.
func encoded(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of texts, booleans and raw JSON that was read before
	return bytes.TrimSpace(b.Bytes())
}

func canonical(text json.RawMessage) []byte {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return text
	}
	return encoded(v)
}

// digest identifies the server's version of a field at the time of the import.
func digest(v json.RawMessage) string { return fmt.Sprintf("%x", sha256.Sum256(canonical(v)))[:12] }

// theirs are the fields that a server decides.
func theirs(domain string, t Tool) fields {
	permission, mode := "write:", "none"
	if t.Annotations.ReadOnlyHint {
		permission = "read:"
	}
	if t.Annotations.ReadOnlyHint || t.Annotations.IdempotentHint {
		mode = "safe-retry"
	}
	hints := map[string]any{}
	if title := orElse(t.Title, t.Annotations.Title); title != "" {
		hints["title"] = receipts.Shorten(value.OneLine(title), 100)
	}
	if d := t.Annotations.DestructiveHint; d != nil && !t.Annotations.ReadOnlyHint {
		hints["destructive"] = *d
	}
	f := fields{{"description", encoded(t.Description)}, {"input_schema", t.InputSchema},
		{"output_schema", t.OutputSchema},
		{"permissions", encoded([]string{permission + domain})}, {"hints", nil},
		{"idempotency", encoded(map[string]string{"mode": mode})}}
	if len(f.get("input_schema")) == 0 {
		f.set("input_schema", json.RawMessage(`{"type":"object"}`))
	}
	if len(f.get("output_schema")) == 0 {
		f.set("output_schema", withoutSchema)
	}
	if len(hints) > 0 {
		f.set("hints", encoded(hints))
	}
	return f
}

// withoutSchema is the output schema of a tool for which the server has none: the form of outputs that [result] makes.
var withoutSchema = json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"},` +
	`"content":{"type":"array"}}}`)

// merge returns the entry of a tool: the existing entry, with the server's changes since its import.
func merge(before fields, name string, t Tool, frontends bool) (after fields, notes []string) {
	domain, _, _ := strings.Cut(name, ".")
	after = slices.Clone(before)
	if before == nil {
		after = fields{{"name", encoded(name)}}
	}
	was := parseFields(before.get(importField))
	now := map[string]string{"tool": t.Name}
	for _, f := range theirs(domain, t) {
		said := digest(f.value)
		if f.value == nil {
			said = ""
		}
		now[f.name] = said
		base, imported := text(was.get(f.name)), was.get(f.name) != nil
		ours := before.get(f.name)
		contract := strings.HasSuffix(f.name, "_schema")
		switch {
		case before == nil, !imported && ours == nil:
		case imported && base == said:
			continue
		case !imported && !contract, imported && !contract && (ours == nil || digest(ours) != base):
			if digest(ours) != said {
				notes = append(notes, fmt.Sprintf("the server says another %s than the entry, which somebody wrote: the entry's "+
					"stays", f.name))
			}
			continue
		case !imported && digest(ours) != said:
			notes = append(notes, fmt.Sprintf("its %s, which somebody wrote, is not the server's: the server's is taken",
				f.name))
		case imported && (ours == nil || digest(ours) != base):
			notes = append(notes, fmt.Sprintf("the server has changed its %s, and so had somebody in the registry: the "+
				"server's is taken", f.name))
		}
		if f.value == nil {
			after = slices.DeleteFunc(after, func(one field) bool { return one.name == f.name })
		} else {
			after.set(f.name, f.value)
		}
	}
	if before == nil {
		after.set("timeout_ms", encoded(timeoutMS))
		after.set("receipt_fields", json.RawMessage("[]"))
	}
	switch {
	case after.get("frontends") != nil:
	case frontends:
		after.set("frontends", json.RawMessage("true"))
	case domain == "db": // its permissions alone would open the tool
		after.set("frontends", json.RawMessage("false"))
	}
	after.set(importField, encoded(now))
	return after, notes
}

func text(v json.RawMessage) string {
	var s string
	_ = json.Unmarshal(v, &s)
	return s
}

// acceptable returns an entry that a registry accepts. It keeps keywords that JSON Schema does not have, or that GEM
// cannot check, as notes, because the server checks its inputs itself. The error lists the other defects in a few
// lines.
func acceptable(f fields) (entry json.RawMessage, loosened []string, err error) {
	f = slices.Clone(f)
	for range 10 {
		entry = f.JSON()
		if len(entry) > maxEntry {
			return nil, nil, fmt.Errorf("its entry has %d bytes, and may have %d", len(entry), maxEntry)
		}
		_, err = registry.Parse(fmt.Appendf(nil, `{"version": "1", "tools": [%s]}`, entry))
		var invalid *defects.InvalidError
		if !errors.As(err, &invalid) {
			return entry, loosened, err
		}
		changed := false
		for _, d := range invalid.Defects {
			if pointer, is := loosening(d); is && f.loosen(pointer) {
				changed = true
				loosened = append(loosened, value.OneLine(fmt.Sprintf("%s is kept as a note, and not checked", d.Field)))
			}
		}
		if !changed {
			var lines []string
			for _, d := range invalid.Defects[:min(len(invalid.Defects), maxDefects)] {
				lines = append(lines, value.OneLine(strings.TrimPrefix(d.Field+": "+d.Problem, ": ")))
			}
			if more := len(invalid.Defects) - maxDefects; more > 0 {
				lines = append(lines, fmt.Sprintf("and %d more", more))
			}
			return nil, nil, errors.New(strings.Join(lines, "; "))
		}
	}
	return nil, nil, err
}

// loosening reports whether a defect concerns a keyword that only narrows a schema.
func loosening(d defects.Defect) (steps []string, is bool) {
	steps = strings.Split(d.Field, "/")
	if len(steps) < 2 || !strings.HasSuffix(steps[0], "_schema") {
		return nil, false
	}
	unknown := strings.Contains(d.Problem, "is not a JSON Schema keyword") ||
		strings.Contains(d.Problem, "does nothing beside $ref")
	return steps, unknown || steps[len(steps)-1] == "pattern"
}

// loosen puts x- before a keyword of a schema.
func (f *fields) loosen(steps []string) bool {
	var root any
	d := json.NewDecoder(bytes.NewReader(f.get(steps[0])))
	d.UseNumber()
	if d.Decode(&root) != nil {
		return false
	}
	at := root
	for _, step := range steps[1 : len(steps)-1] {
		switch v := at.(type) {
		case map[string]any:
			at = v[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i < 0 || i >= len(v) {
				return false
			}
			at = v[i]
		}
	}
	object, ok := at.(map[string]any)
	last := steps[len(steps)-1]
	v, has := object[last]
	if !ok || !has {
		return false
	}
	delete(object, last)
	object["x-"+last] = v
	f.set(steps[0], encoded(root))
	return true
}
