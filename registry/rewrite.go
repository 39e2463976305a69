package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rewrite returns the text of a valid registry file with another version and with these entries. Each entry replaces
// the one of its name, and new ones come at the end. The rest of the text does not change, and neither does the order
// of an entry's keys.
func Rewrite(file []byte, version string, entries []json.RawMessage) ([]byte, error) {
	text, err := find(file)
	if err != nil {
		return nil, fmt.Errorf("the registry cannot be rewritten: %w", err)
	}
	encoded, err := json.Marshal(version)
	if err != nil {
		return nil, err
	}
	edits := []edit{{text.version, encoded}}
	var added [][]byte
	for _, entry := range entries {
		name, err := nameOf(entry)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := json.Indent(&b, entry, text.indent, "  "); err != nil {
			return nil, err
		}
		if at, known := text.entries[name]; known {
			edits = append(edits, edit{at, b.Bytes()})
		} else {
			added = append(added, append([]byte("\n"+text.indent), b.Bytes()...))
		}
	}
	if len(added) > 0 {
		new := bytes.Join(added, []byte(","))
		if text.end == text.start { // the list is empty
			new = append(new, "\n  "...)
		} else {
			new = append([]byte(","), new...)
		}
		edits = append(edits, edit{span{text.end, text.end}, new})
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.at.from, b.at.from) })
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(append(out, file[done:e.at.from]...), e.text...)
		done = e.at.to
	}
	return append(out, file[done:]...), nil
}

// Entries returns the entries of a valid registry file with their original text, by name.
func Entries(file []byte) (map[string]json.RawMessage, error) {
	text, err := find(file)
	if err != nil {
		return nil, fmt.Errorf("the registry cannot be read: %w", err)
	}
	all := map[string]json.RawMessage{}
	for name, at := range text.entries {
		all[name] = file[at.from:at.to]
	}
	return all, nil
}

// NextVersion returns the next version: it increments the second number, as in 1.5.0 after 1.4.2, or the last one if
// the version has another form.
func NextVersion(version string) string {
	var major, minor, patch int
	if n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n == 3 && err == nil &&
		fmt.Sprintf("%d.%d.%d", major, minor, patch) == version {
		return fmt.Sprintf("%d.%d.0", major, minor+1)
	}
	end := strings.LastIndexAny(version, "0123456789") + 1
	start := len(strings.TrimRight(version[:end], "0123456789"))
	if end == 0 || end-start > 9 {
		return version + ".2"
	}
	last, _ := strconv.Atoi(version[start:end])
	return fmt.Sprintf("%s%0*d%s", version[:start], end-start, last+1, version[end:])
}

type span struct{ from, to int }

type edit struct {
	at   span
	text []byte
}

// places are the positions in a file that are rewritten.
type places struct {
	version    span
	entries    map[string]span
	start, end int    // of the list's entries, without white space around them
	indent     string // of an entry
}

func find(file []byte) (*places, error) {
	p := &places{entries: map[string]span{}, indent: "    "}
	d := json.NewDecoder(bytes.NewReader(file))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key == "tools" {
			if err := p.tools(d, file); err != nil {
				return nil, err
			}
			continue
		}
		at, _, err := next(d)
		if err != nil {
			return nil, err
		}
		if key == "version" {
			p.version = at
		}
	}
	if p.version.to == 0 || p.end == 0 {
		return nil, errors.New("it has no version or no tools")
	}
	return p, nil
}

func (p *places) tools(d *json.Decoder, file []byte) error {
	if _, err := d.Token(); err != nil {
		return err
	}
	p.start = int(d.InputOffset())
	p.end = p.start
	for d.More() {
		at, entry, err := next(d)
		if err != nil {
			return err
		}
		name, err := nameOf(entry)
		if err != nil {
			return err
		}
		if p.end == p.start { // the first
			line := file[:at.from]
			line = line[bytes.LastIndexByte(line, '\n')+1:]
			if len(bytes.TrimLeft(line, " \t")) == 0 {
				p.indent = string(line)
			}
		}
		p.entries[name], p.end = at, at.to
	}
	_, err := d.Token()
	return err
}

// next reads a value and returns its position.
func next(d *json.Decoder) (span, json.RawMessage, error) {
	var value json.RawMessage
	if err := d.Decode(&value); err != nil {
		return span{}, nil, err
	}
	end := int(d.InputOffset())
	return span{end - len(value), end}, value, nil
}

func nameOf(entry json.RawMessage) (string, error) {
	var e struct {
		Name string `json:"name"`
	}
	err := json.Unmarshal(entry, &e)
	return e.Name, err
}
