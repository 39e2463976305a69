package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
)

// Coding has the active rules for coding agents, by their names. gem hook judges by them. Nil: all are off.
type Coding map[string]CodingRule

// CodingRule has an operator's options for one of the [CodingNames].
type CodingRule struct {
	// Action is Warn, Ask or Block; a rule that is off is missing.
	Action Action
	// Threshold is how often something may happen before the rule meets an action; 3 by default, and 0 for a rule without
	// a count.
	Threshold int
	// Unknown decides an action while the history is unavailable: Off, which lets it through, or Ask.
	Unknown Action
}

// The rules for coding agents. Each uses the history of one session.
const (
	NoEditUnread        = "no_edit_unread"        // a file is edited without having been read
	TestAfterEdits      = "test_after_edits"      // a file is edited, after threshold edits without a test run
	NoCommitFailing     = "no_commit_failing"     // a commit is made while a test fails
	FixRegressionsFirst = "fix_regressions_first" // a file is edited while a regression of another edit remains
	// a file is edited again, after threshold edits of it that left tests failing
	NoThrashing      = "no_thrashing"
	NoPointlessRerun = "no_pointless_rerun" // the same tests run again without a change
	ScopeCheck       = "scope_check"        // a file is edited that is unrelated to the others
)

// CodingNames are all names, in the order in which they are judged and listed.
var CodingNames = []string{NoEditUnread, TestAfterEdits, NoCommitFailing, FixRegressionsFirst, NoThrashing,
	NoPointlessRerun, ScopeCheck}

const defaultThreshold = 3

// counts reports whether the rule with this name has a threshold.
func counts(name string) bool { return name == TestAfterEdits || name == NoThrashing }

// ReadCoding returns the rules for coding agents of a rules file. It ignores the rest of the file, because [Parse]
// takes longer than a hook may. If the file can be read, its error is an [*InvalidError] with all their defects.
func ReadCoding(data []byte) (Coding, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("the rules have %d bytes and may have at most %d", len(data), maxFile)
	}
	doc, err := schema.Decode("the rules file", bytes.TrimPrefix(data, []byte("\ufeff")))
	if err != nil {
		return nil, err
	}
	coding, problems := parseCoding(schema.ValueAt(doc, "/coding"))
	if len(problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "rules", problems, schema.FieldName)}
	}
	return coding, nil
}

// parseCoding reads the object coding of a rules file. Every field is optional; nil means no object. The pointers of
// its problems begin at the top of the file. Do not use the rules if there are problems.
func parseCoding(doc any) (Coding, []schema.Problem) {
	if doc == nil {
		return nil, nil
	}
	entries, ok := doc.(map[string]any)
	if !ok {
		return nil, []schema.Problem{{Pointer: "/coding", Text: "must be an object of rules, as in {\"no_edit_unread\": " +
			"\"warn\"}"}}
	}
	p := codingParser{rules: Coding{}}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		at := schema.JoinPointer("/coding", name)
		switch {
		case strings.HasPrefix(name, "x-"): // a note
		case !slices.Contains(CodingNames, name):
			p.add(at, "unknown rule"+orKnown(name, CodingNames))
		default:
			p.entry(at, name, entries[name])
		}
	}
	return p.rules, p.problems
}

type codingParser struct {
	rules    Coding
	problems []schema.Problem
}

func (p *codingParser) add(pointer, text string) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: text})
}

// entry reads an action, or a list of an action and its options.
func (p *codingParser) entry(at, name string, value any) {
	rule := CodingRule{Unknown: Off}
	if counts(name) {
		rule.Threshold = defaultThreshold
	}
	list, isList := value.([]any)
	switch {
	case !isList:
		rule.Action = p.action(at, value)
	case len(list) == 0 || len(list) > 2:
		p.add(at, `must be an action, or a list of an action and its options, as in ["warn", {"unknown": "ask"}]`)
		return
	default:
		rule.Action = p.action(schema.JoinPointer(at, "0"), list[0])
		if len(list) == 2 {
			p.options(schema.JoinPointer(at, "1"), name, list[1], &rule)
		}
	}
	if rule.Action != Off {
		p.rules[name] = rule
	}
}

func (p *codingParser) action(at string, value any) Action {
	text, _ := value.(string)
	known := []string{string(Off), string(Warn), string(Ask), string(Block)}
	if !slices.Contains(known, text) {
		p.add(at, "is "+oneline.Cut(schema.Show(value), 40)+", and must be an action"+orKnown(text, known))
	}
	return Action(text)
}

func (p *codingParser) options(at, name string, value any, rule *CodingRule) {
	options, ok := value.(map[string]any)
	if !ok {
		p.add(at, `must be an object of options, as in {"unknown": "ask"}`)
		return
	}
	known := []string{"unknown"}
	if counts(name) {
		known = append(known, "threshold")
	}
	for _, option := range slices.Sorted(maps.Keys(options)) {
		at, value := schema.JoinPointer(at, option), options[option]
		switch {
		case strings.HasPrefix(option, "x-"): // a note
		case !slices.Contains(known, option):
			p.add(at, "unknown option of "+name+orKnown(option, known))
		case option == "unknown":
			switch value {
			case "ask":
				rule.Unknown = Ask
			case "allow":
				rule.Unknown = Off
			default:
				p.add(at, "is "+oneline.Cut(schema.Show(value), 40)+
					`, and must be "allow" or "ask": what becomes of an act while the history cannot be asked`)
			}
		default:
			number, _ := value.(json.Number)
			n, err := number.Int64()
			if err != nil || n < 1 || n > 1000 {
				p.add(at, "is "+oneline.Cut(schema.Show(value), 40)+", and must be a whole number from 1 to 1000")
			}
			rule.Threshold = int(n)
		}
	}
}

// orKnown completes a message about an unknown word, with the intended word or with all known words.
func orKnown(word string, known []string) string {
	if meant := schema.DidYouMean(word, known); meant != "" {
		return meant
	}
	return ": the known ones are " + strings.Join(known, ", ")
}
