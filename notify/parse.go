package notify

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// maxFile is the maximum size of a file in bytes.
const maxFile = 1 << 20

//go:embed notify.schema.json
var formText []byte

// FileSchema returns the JSON Schema of a notify.json, for editors.
func FileSchema() []byte { return slices.Clone(formText) }

var form = sync.OnceValue(func() *schema.Form { return schema.NewForm("the file", formText) })

// Parse reads a file and checks everything that needs no registry. Its error is an [*defects.InvalidError] with every
// defect. [Set.Check] compares the channels with a registry.
func Parse(data []byte) (*Set, error) {
	if len(data) > maxFile {
		return nil, &defects.InvalidError{Defects: []defects.Defect{{Problem: fmt.Sprintf(
			"the notices have %d bytes and may have at most %d", len(data), maxFile)}}}
	}
	doc, problems := form().Read(data)
	p := &parser{problems: problems}
	var read struct {
		Version  string             `json:"version"`
		Channels map[string]channel `json:"channels"`
		Rules    []rule             `json:"rules"`
	}
	if len(problems) == 0 {
		if err := json.Unmarshal(schema.Canonical(doc), &read); err != nil {
			return nil, fmt.Errorf("the notices cannot be read: %w", err)
		}
		p.channels(read.Channels)
		for i := range read.Rules {
			p.rule(fmt.Sprintf("/rules/%d", i), &read.Rules[i], read.Channels)
		}
	}
	if len(p.problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "rules", p.problems, schema.FieldName)}
	}
	s := &Set{Version: read.Version, channels: read.Channels, rules: read.Rules, doc: doc.(map[string]any)}
	delete(s.doc, "$schema")
	s.json = schema.Canonical(s.doc)
	return s, nil
}

type parser struct{ problems []schema.Problem }

func (p *parser) add(pointer, format string, args ...any) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: fmt.Sprintf(format, args...)})
}

func (p *parser) channels(all map[string]channel) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		eachText(all[name].Input, schema.JoinPointer("/channels", name)+"/input", func(at, text string) {
			if problem := checkPlaces(text); problem != "" {
				p.add(at, "%s", problem)
			}
		})
	}
}

func (p *parser) rule(at string, r *rule, channels map[string]channel) {
	known := slices.Sorted(maps.Keys(channels))
	named := func(at, name string) {
		if _, is := channels[name]; !is {
			p.add(at, "%s", noChannel(name, known))
		}
	}
	for i, name := range r.To {
		named(fmt.Sprintf("%s/to/%d", at, i), name)
	}
	if r.Else != "" {
		named(at+"/else", r.Else)
		if slices.Contains(r.To, r.Else) {
			p.add(at+"/else", "is the channel whose delivery failed: name another, or remove it")
		}
	}
	for _, f := range []struct {
		field string
		given bool
		of    []string
	}{
		{"tools", r.Tools != nil, []string{Question, Failed, Refused, Failing, Schedule}},
		{"roles", r.Roles != nil, []string{Question}},
		{"codes", r.Codes != nil, []string{Failed, Refused}},
		{"failed", r.Failed > 0, []string{Failing}},
		{"within", r.Within > 0, []string{Failing}},
		{"at", r.At != nil, []string{Budget}},
	} {
		switch belongs := slices.Contains(f.of, r.When); {
		case f.given && !belongs:
			p.add(at+"/"+f.field, "belongs to %s: remove it", strings.Join(f.of, ", "))
		case !f.given && belongs && len(f.of) == 1 && f.field != "roles":
			p.add(at+"/"+f.field, "is missing: %s needs it", r.When)
		}
	}
	if r.Every < 0 {
		switch r.When {
		case Question:
			r.Every = 0
		case Failing:
			r.Every = r.Within
		default:
			r.Every = duration(time.Minute)
		}
	}
}

// noChannel describes the problem of a channel's name that is not among known.
func noChannel(name string, known []string) string {
	return fmt.Sprintf("%s is not a channel of the file: %s", schema.Show(name),
		cmp.Or(schema.DidYouMean(name, known), "its channels are "+strings.Join(known, ", ")))
}

// UnmarshalJSON reads a rule. Every is -1 if it is not given.
func (r *rule) UnmarshalJSON(data []byte) error {
	type plain rule
	with := plain{Every: -1}
	if err := json.Unmarshal(data, &with); err != nil {
		return err
	}
	*r = rule(with)
	return nil
}

// UnmarshalJSON reads a duration in the form that the file's schema requires. It limits the duration to a day.
func (d *duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	n, err := strconv.Atoi(text[:len(text)-1])
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour}[text[len(text)-1]]
	*d = duration(min(time.Duration(n)*unit, 24*time.Hour))
	return err
}

// Check compares the channels with a registry: each tool must exist, its mode may not be none, and a notice must fit
// its input schema. The error is an [*defects.InvalidError].
func (s *Set) Check(r *registry.Registry) error {
	var found []defects.Defect
	for _, name := range s.Channels() {
		c := s.channels[name]
		field := "channels." + name
		tool, known := r.Tool(c.Tool)
		switch {
		case !known:
			var names []string
			for _, t := range r.Tools() {
				names = append(names, t.Name)
			}
			found = append(found, defects.Defect{Field: field + ".tool", Problem: fmt.Sprintf(
				"%s is not in the registry: %s", c.Tool, cmp.Or(schema.DidYouMean(c.Tool, names), "add it there, or name another"))})
		case tool.Idempotency.Mode == registry.None:
			found = append(found, defects.Defect{Field: field + ".tool", Problem: fmt.Sprintf(
				"%s has the idempotency mode none, and a notice may be delivered twice after a failure: choose a tool "+
					"that may run again", c.Tool)})
		default:
			for _, sample := range samples {
				for _, fault := range tool.ValidateInput(s.Input(name, sample)) {
					d := defects.Defect{Field: field + ".input" + strings.ReplaceAll(fault.Path, "/", "."),
						Problem: fmt.Sprintf("does not fit %s: %s", c.Tool, fault.Message)}
					if !slices.Contains(found, d) {
						found = append(found, d)
					}
				}
			}
		}
	}
	if len(found) > 0 {
		return &defects.InvalidError{Defects: found}
	}
	return nil
}
