package schema

import (
	"net/url"
	"strings"
)

// schemaURL is the address under which the library compiles a schema. Each is compiled alone, so none has a name.
const schemaURL = "gem://registry/schema"

type reference struct{ pointer, base, target string }

// identify records the names that references can use for a schema, and returns the URL that its own are relative to.
func (l *linter) identify(schema map[string]any, at, base string) string {
	_, ref := schema["$ref"]
	id := As[string](schema["$id"])
	if l.draft == 4 {
		id = As[string](schema["id"])
	}
	if id != "" && (!ref || l.draft >= 2019) {
		location, fragment, _ := strings.Cut(id, "#")
		if location != "" {
			base = resolveURL(base, location)
			l.resources[base] = at
		}
		l.anchors[base+"#"+fragment] = true
	}
	l.anchors[base+"#"+As[string](schema["$anchor"])] = true
	l.anchors[base+"#"+As[string](schema["$dynamicAnchor"])] = true
	return base
}

// follow checks that a reference stays inside its schema and leads to something there, and walks its target.
func (l *linter) follow(ref reference) {
	location, fragment, _ := strings.Cut(resolveURL(ref.base, ref.target), "#")
	fragment = PlainPointer(fragment)
	at, inside := l.resources[location]
	target, found := Lookup(l.root, at+fragment)
	byPointer := len(fragment) > 1 && fragment[0] == '/'
	switch {
	case !inside:
		l.add(ref.pointer, "%s leads out of this schema: copy its target under $defs and refer to #/$defs/NAME",
			Show(ref.target))
	case byPointer && !found, !byPointer && !l.anchors[location+"#"+strings.TrimPrefix(fragment, "/")]:
		l.add(ref.pointer, "%s leads to nothing in this schema: add its target, or correct the reference", Show(ref.target))
	case byPointer:
		switch target.(type) {
		case map[string]any, bool:
			l.walk(target, itself, at+fragment, location)
		default:
			l.add(at+fragment, "is %s, and a reference leads here as to a schema: correct the reference", kindOf(target))
		}
	}
}

func resolveURL(base, ref string) string {
	if b, err := url.Parse(base); err == nil {
		if u, err := b.Parse(ref); err == nil {
			return u.String()
		}
	}
	return ref
}
