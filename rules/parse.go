package rules

import (
	"cmp"
	"crypto/sha256"
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
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// maxFile is the maximum size of a file in bytes.
const maxFile = 1 << 20

// ReadFile reads and parses a rules file. Its errors name the file and the solution.
func ReadFile(path string) (*Set, error) {
	return plainfile.Parsed(path, "rules", "TOOLS_RULES", Parse)
}

// Parse reads a rules file, checks everything that needs no registry, and compiles the conditions. Its error is an
// [*InvalidError] with every defect. [Set.Check] compares the rules with a registry.
func Parse(data []byte) (*Set, error) {
	if len(data) > maxFile {
		return nil, &defects.InvalidError{Defects: []defects.Defect{{
			Problem: fmt.Sprintf("the rules have %d bytes and may have at most %d", len(data), maxFile)}}}
	}
	doc, problems := form().Read(data)
	p := &parser{problems: problems}
	s := &Set{byName: map[string]*Rule{}}
	p.rules(doc, s)
	coding, found := parseCoding(schema.ValueAt(doc, "/coding"))
	if _, isObject := schema.ValueAt(doc, "/coding").(map[string]any); isObject { // the form says so of anything else
		p.problems = append(p.problems, found...)
	}
	s.coding = coding
	if len(p.problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "rules", p.problems, schema.FieldName)}
	}
	s.doc = doc.(map[string]any)
	delete(s.doc, "$schema")
	s.Version, s.json = schema.As[string](s.doc["version"]), schema.Canonical(s.doc)
	return s, nil
}

//go:embed rules.schema.json
var formText []byte

// FileSchema returns the JSON Schema of a rules file, for editors.
func FileSchema() []byte { return slices.Clone(formText) }

// form is rules.schema.json without the grammar of the conditions' schemas. Each of these is checked by its own draft.
var form = sync.OnceValue(func() *schema.Form { return schema.NewForm("the rules", formText, "schema") })

// SHA256 returns the hash of [Set.JSON] in hexadecimal digits. Formatting the file does not change it; any other change
// does.
func (s *Set) SHA256() string { return fmt.Sprintf("%x", sha256.Sum256(s.json)) }

// JSON returns the rules in canonical form: keys sorted, no white space, numbers written in one way, and without the
// $schema at the top. It parses to the same rules.
func (s *Set) JSON() []byte { return slices.Clone(s.json) }

// Rules returns all rules in the order of the file, including inactive ones.
func (s *Set) Rules() []*Rule { return slices.Clone(s.rules) }

// Coding returns the active rules for coding agents.
func (s *Set) Coding() Coding { return maps.Clone(s.coding) }

// Longest returns the longest time that a rule looks back. It ignores rules that look at whole sessions, whose time has
// no bound.
func (s *Set) Longest() (longest time.Duration) {
	for _, r := range s.rules {
		if r.Limit != nil {
			longest = max(longest, r.Limit.Within)
		}
		if r.Failures != nil {
			longest = max(longest, r.Failures.Cooldown)
		}
		if r.Requires != nil {
			longest = max(longest, r.Requires.Within)
		}
		if r.After != nil {
			longest = max(longest, r.After.Within)
		}
		if r.Action == Wait {
			longest = max(longest, r.AtMost)
		}
	}
	return longest
}

// Compare returns a line for each rule that was added, removed or changed, sorted by name, such as "mail_pace was
// changed (limit)", and for each other field at the top. It ignores formatting and order.
func Compare(old, new *Set) []string {
	return append(schema.Compare(old.file(), new.file()), schema.CompareTop(old.file(), new.file())...)
}

// CheckUpgrade returns an error if new has the version of old but other contents. Receipts name the version, which must
// identify one file.
func CheckUpgrade(old, new *Set) error { return schema.CheckUpgrade(old.file(), new.file()) }

func (s *Set) file() schema.File {
	f := schema.File{Noun: "the rules", List: "rules", Version: s.Version, Doc: s.doc,
		Entries: map[string]map[string]any{}}
	for _, r := range s.rules {
		f.Entries[r.Name] = r.entry
	}
	return f
}

// parser makes the rules of one file, and checks what the form cannot.
type parser struct{ problems []schema.Problem }

func (p *parser) add(pointer, format string, args ...any) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: fmt.Sprintf(format, args...)})
}

func (p *parser) rules(doc any, s *Set) {
	first := map[string]int{}
	for i, v := range schema.As[[]any](schema.ValueAt(doc, "/rules")) {
		entry, ok := v.(map[string]any)
		if !ok {
			continue
		}
		at := "/rules/" + strconv.Itoa(i)
		r := p.rule(at, entry)
		if before, twice := first[r.Name]; !twice {
			first[r.Name] = i
		} else if r.Name != "" {
			p.add(at+"/name", "rules[%d] and rules[%d] have the same name: rename or remove one", before, i)
		}
		s.rules = append(s.rules, r)
		s.byName[r.Name] = r
	}
}

// rule reads one entry. It ignores a value of the wrong type, which the form reports.
func (p *parser) rule(at string, entry map[string]any) *Rule {
	r := &Rule{
		Name:        schema.As[string](entry["name"]),
		Tools:       schema.Texts(entry["tools"]),
		Permissions: schema.Texts(entry["permissions"]),
		Action:      Action(schema.As[string](entry["action"])),
		when:        p.condition(at+"/when", entry["when"]),
		unless:      p.condition(at+"/unless", entry["unless"]),
		Of:          schema.Texts(schema.ValueAt(entry, "/ask/of")),
		Within:      cmp.Or(p.duration(at, entry, "/ask/within"), 24*time.Hour),
		Question:    schema.As[string](schema.ValueAt(entry, "/ask/question")),
		AtMost:      cmp.Or(p.duration(at, entry, "/at_most"), time.Hour),
		Say:         schema.As[string](entry["say"]),
		entry:       entry,
	}
	if limit, ok := entry["limit"].(map[string]any); ok {
		r.Limit = &Limit{
			Max:    schema.As[json.Number](limit["max"]),
			Within: p.duration(at, entry, "/limit/within"),
			Sum:    schema.As[string](limit["sum"]),
			Per:    schema.Texts(limit["per"]),
		}
	}
	if running, ok := entry["running"].(map[string]any); ok {
		most, _ := strconv.Atoi(string(schema.As[json.Number](running["max"])))
		r.Running = &Running{Max: most, Per: schema.Texts(running["per"])}
	}
	if requires, ok := entry["requires"].(map[string]any); ok {
		r.Requires = &Requires{Tools: schema.Texts(requires["tools"]), Within: p.duration(at, entry, "/requires/within")}
		if tool, ok := requires["tool"].(string); ok {
			r.Requires.Tools = append(r.Requires.Tools, tool)
		}
	}
	if after, ok := entry["after"].(map[string]any); ok {
		r.After = &After{Tools: schema.Texts(after["tools"]), Ended: schema.Texts(after["ended"]),
			Within: p.duration(at, entry, "/after/within")}
		if _, stated := after["ended"]; !stated {
			r.After.Ended = []string{"succeeded"}
		}
	}
	if failures, ok := entry["failures"].(map[string]any); ok {
		inARow, _ := strconv.Atoi(string(schema.As[json.Number](failures["in_a_row"])))
		r.Failures = &Failures{InARow: inARow, Per: schema.Texts(failures["per"]),
			Cooldown: p.duration(at, entry, "/failures/cooldown")}
	}
	if question, problem := parseTemplate(r.Question); problem != "" {
		p.add(at+"/ask/question", "%s", problem)
	} else {
		r.template = question
	}
	p.whole(at, r)
	p.memory(at, r)
	p.action(at, r)
	return r
}

// duration reads a duration such as 90s. A missing or invalid field is 0.
func (p *parser) duration(at string, entry map[string]any, pointer string) time.Duration {
	text := schema.As[string](schema.ValueAt(entry, pointer))
	if len(text) < 2 {
		return 0
	}
	const most = 366 * 24 * time.Hour
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour,
		'd': 24 * time.Hour}[text[len(text)-1]]
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 32)
	if err != nil || unit == 0 {
		return 0
	}
	if n > int64(most/unit) {
		p.add(at+pointer, "is %s and may be at most 366d: write less", schema.Show(text))
		return 0
	}
	return time.Duration(n) * unit
}

// condition reads a when or an unless, and compiles its schemas.
func (p *parser) condition(at string, v any) *condition {
	parts, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	read := func(name string) map[string]*schema.Schema {
		fields := schema.As[map[string]any](parts[name])
		if len(fields) == 0 {
			return nil
		}
		compiled := make(map[string]*schema.Schema, len(fields))
		for field, doc := range fields {
			switch doc.(type) {
			case bool, map[string]any:
				s, problems := schema.New(field, doc)
				for _, found := range problems {
					p.add(schema.JoinPointer(at+"/"+name, field)+found.Pointer, "%s", found.Text)
				}
				compiled[field] = s
			}
		}
		return compiled
	}
	return &condition{input: read("input"), caller: read("caller"), result: read("result"), effects: read("effects")}
}

// whole checks the fields of a rule one by one.
func (p *parser) whole(at string, r *Rule) {
	_, tools := r.entry["tools"]
	_, permissions := r.entry["permissions"]
	if !tools && !permissions {
		p.add(at+"/tools", `is missing, and permissions too: say which calls the rule is for, as in "tools": ["leads.*"]`)
	}
	if r.Limit != nil {
		p.pointer(at+"/limit/sum", r.Limit.Sum)
		for i, per := range r.Limit.Per {
			p.pointer(at+"/limit/per/"+strconv.Itoa(i), per)
		}
		_, summed := schema.Lookup(r.entry, "/limit/sum")
		if most, err := strconv.Atoi(string(r.Limit.Max)); !summed && r.Limit.Max != "" && (err != nil || most > 1_000_000) {
			p.add(at+"/limit/max", "is %s and must be a whole number from 0 to 1000000: it is a number of calls, since the "+
				"limit has no sum", oneline.Cut(string(r.Limit.Max), 40))
		}
	}
	if r.Requires != nil {
		_, one := schema.Lookup(r.entry, "/requires/tool")
		_, several := schema.Lookup(r.entry, "/requires/tools")
		if one == several {
			p.add(at+"/requires", `needs either tool or tools, as in {"tool": "leads.list_by_stage"}`)
		}
	}
	if r.Running != nil {
		for i, per := range r.Running.Per {
			p.pointer(at+"/running/per/"+strconv.Itoa(i), per)
		}
	}
	if r.Failures != nil {
		for i, per := range r.Failures.Per {
			p.pointer(at+"/failures/per/"+strconv.Itoa(i), per)
		}
	}
}

// maxPointer limits the length of the pointers in a counter's name.
const maxPointer = 200

func (p *parser) pointer(at, text string) {
	if len(text) > maxPointer {
		p.add(at, "has %d bytes and may have at most %d: shorten the names of the input's fields", len(text), maxPointer)
	}
}

// memory checks that a rule has at most one condition other than on the call itself.
func (p *parser) memory(at string, r *Rule) {
	first := ""
	for _, word := range []string{"limit", "running", "requires", "after", "failures"} {
		switch _, has := r.entry[word]; {
		case has && first != "":
			p.add(at+"/"+word, "is combined with %s, but a rule has only one of limit, running, requires, after and failures: "+
				"make it two rules", first)
		case has && r.OnResult():
			p.add(at+"/"+word, "cannot be combined with a condition on the result or the effects: make it two rules")
		}
		if _, has := r.entry[word]; has {
			first = cmp.Or(first, word)
		}
	}
}

// action checks that a rule has the fields that its action needs, and none that only another action uses. A rule that
// is off may have all.
func (p *parser) action(at string, r *Rule) {
	_, asks := r.entry["ask"]
	_, atMost := r.entry["at_most"]
	switch {
	case r.OnResult() && (r.Action == Ask || r.Action == Wait):
		p.add(at+"/action", "is %s, and a rule with a condition on the result or the effects can only warn or block: the "+
			"handler has run by then", r.Action)
	case r.Action == Wait && r.entry["limit"] == nil && r.entry["running"] == nil:
		p.add(at+"/action",
			`is wait, and a call can only wait for room in a limit or for a place: `+
				`add "limit": {"max": 5, "within": "1m"} or "running": {"max": 5}, or write block`)
	case r.entry["running"] != nil && (r.Action == Ask || r.Action == Warn):
		p.add(at+"/action", "is %s, and a rule with running can only let calls wait, or block them: write wait or block",
			r.Action)
	case r.Action == Ask && !asks:
		p.add(at+"/ask", `is missing: say who decides, as in "ask": {"of": ["finance"]}`)
	}
	if r.Action == Wait && r.Limit != nil && r.Limit.Sum != "" {
		p.add(at+"/limit/sum", "is not possible with the action wait, which counts calls: remove sum, or write block")
	}
	if r.Action == Wait && r.Limit != nil && r.Limit.Max == "0" {
		p.add(at+"/limit/max", "is 0, so that no call could ever start: write at least 1, or the action block")
	}
	if asks && r.Action != Ask && r.Action != Off {
		p.add(at+"/ask", "does nothing with the action %s: remove it, or write the action ask", schema.Show(string(r.Action)))
	}
	if atMost && r.Action != Wait && r.Action != Off {
		p.add(at+"/at_most", "does nothing with the action %s: remove it, or write the action wait",
			schema.Show(string(r.Action)))
	}
	for i, tool := range r.Tools {
		if r.Action == Ask && strings.HasPrefix(tool, "wait.") {
			p.add(at+"/tools/"+strconv.Itoa(i), "is %s, which asks people itself: remove it, or write another action",
				tool)
		}
	}
}

// OnResult reports whether the rule is judged after the handler.
func (r *Rule) OnResult() bool {
	return r.when.onResult() || r.unless.onResult()
}

func (c *condition) onResult() bool { return c != nil && len(c.result)+len(c.effects) > 0 }

// IsFor reports whether the rule applies to a tool, by its name or its permissions.
func (r *Rule) IsFor(tool *registry.Tool) bool {
	return slices.ContainsFunc(r.Tools, func(pattern string) bool { return covers(pattern, tool.Name) }) ||
		slices.ContainsFunc(r.Permissions, func(pattern string) bool {
			return slices.ContainsFunc(tool.Permissions, func(permission string) bool { return covers(pattern, permission) })
		})
}

// covers reports whether a pattern such as leads.create or leads.* matches the name of a tool, or send:sms or send:* a
// permission.
func covers(pattern, name string) bool {
	family, all := strings.CutSuffix(pattern, "*")
	return pattern == name || all && strings.HasPrefix(name, family)
}
