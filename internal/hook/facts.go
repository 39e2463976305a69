package hook

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gemworker/gem/rules"
)

// fact is something that happened in a session, in the order of its list. It has no contents of files, and
// no output.
type fact struct {
	Kind    factKind `json:"kind"`
	Path    string   `json:"path,omitempty"`    // a file, or the folder of a test run
	Command string   `json:"command,omitempty"` // of a test run
	Outcome outcome  `json:"outcome,omitempty"` // of a test run
	// of a test run: the names of tests that failed, as far as they were printed
	Failed []string `json:"failed,omitempty"`
}

type factKind string

const (
	fileRead   factKind = "read"
	fileEdited factKind = "edit"
	fileMade   factKind = "write"  // by a shell command: the session knows what is in it
	changed    factKind = "change" // a shell command may have changed any file
	tested     factKind = "test"
	cut        factKind = "cut" // earlier facts of the kind that is its path are left out
)

const maxCommand = 1000 // bytes of a test run's command that are kept

// facts are what is recorded of an act that has ended.
func (a *act) facts() (all []fact) {
	if a.event == before {
		return nil
	}
	if !a.shell {
		if a.end == failed {
			return nil // nothing was read, and nothing changed
		}
		for _, path := range a.reads {
			all = append(all, fact{Kind: fileRead, Path: path})
		}
		for _, path := range a.edits {
			all = append(all, fact{Kind: fileEdited, Path: path})
		}
		return all
	}
	for _, path := range a.reads {
		if a.end == passed {
			all = append(all, fact{Kind: fileRead, Path: path})
		}
	}
	for _, path := range a.edits {
		all = append(all, fact{Kind: fileEdited, Path: path})
	}
	change := a.unread
	for _, c := range a.commands {
		for _, file := range c.writes {
			if path := a.absolute(file); path != "" && len(all) < maxPaths {
				all = append(all, fact{Kind: fileMade, Path: path})
			}
		}
		_, _, test := runner(c.words)
		change = change || !test && c.words[0] != "apply_patch" && c.changes()
	}
	if change {
		all = append(all, fact{Kind: changed})
	}
	if run, ok := a.tests(); ok {
		end, names := endOf(run, a.end, readResults(a.output))
		all = append(all, fact{Kind: tested, Path: run.dir, Command: run.command, Outcome: end, Failed: names})
	}
	return all
}

// tests is the test run of an act, as facts have it.
func (a *act) tests() (testRun, bool) {
	run, ok := testsOf(a.commands)
	if ok {
		run.dir, run.command = a.absolute(run.dir), short(run.command, maxCommand)
		if run.dir == "" {
			run.dir = a.absolute(a.dir)
		}
	}
	return run, ok
}

// question is what the rules are asked of an act that is about to begin.
type question struct {
	edits   []target
	run     *testRun
	commits bool
	unread  bool // of a shell text, whose rest may commit
}

// target is a file that is about to be edited.
type target struct {
	path    string
	there   bool     // it exists
	imports []string // the names that it imports, for scope_check
}

// question returns what there is to ask of an act.
func (a *act) question(coding rules.Coding) (q question) {
	_, scoped := coding[rules.ScopeCheck]
	for _, path := range a.edits {
		_, err := os.Lstat(path)
		t := target{path: path, there: !os.IsNotExist(err)}
		if scoped && t.there {
			t.imports = importsOf(path)
		}
		q.edits = append(q.edits, t)
	}
	if run, is := a.tests(); is {
		q.run = &run
	}
	q.commits, q.unread = slices.ContainsFunc(a.commands, command.commits), a.unread
	return q
}

// paths are the files that the history is asked about.
func (q question) paths() []string {
	paths := []string{}
	for _, t := range q.edits {
		paths = append(paths, t.path)
	}
	return paths
}

// applying are the rules that are on and for the question, in their order.
func (q question) applying(coding rules.Coding) (names []string) {
	for _, name := range rules.CodingNames {
		if _, on := coding[name]; !on {
			continue
		}
		switch name {
		case rules.NoCommitFailing:
			if !q.commits && !q.unread {
				continue
			}
		case rules.NoPointlessRerun:
			if q.run == nil {
				continue
			}
		case rules.NoEditUnread, rules.ScopeCheck: // a file that is not there may be made, whatever was read
			if !slices.ContainsFunc(q.edits, func(t target) bool { return t.there }) {
				continue
			}
		default:
			if len(q.edits) == 0 {
				continue
			}
		}
		names = append(names, name)
	}
	return names
}

// verdict is what a rule that meets an act says.
type verdict struct {
	rule   string
	action rules.Action
	text   string
}

// judge asks the rules that are on, in their order. unsure are the rules that depend on facts that the history leaves
// out.
func judge(coding rules.Coding, q question, history []fact) (met []verdict, unsure []string) {
	h := session{cut: map[factKind]bool{}, parts: map[string][]part{}}
	for _, f := range history {
		if f.Kind == cut {
			h.cut[factKind(f.Path)] = true
		} else {
			h.facts = append(h.facts, f)
		}
	}
	for _, name := range q.applying(coding) {
		rule := coding[name]
		say := ""
		switch name {
		case rules.NoEditUnread:
			say = h.unread(q)
		case rules.TestAfterEdits:
			say = h.untested(rule.Threshold)
		case rules.NoCommitFailing:
			say = h.failing()
		case rules.FixRegressionsFirst:
			say = h.regressed(q)
		case rules.NoThrashing:
			say = h.thrashed(q, rule.Threshold)
		case rules.NoPointlessRerun:
			say = h.pointless(*q.run)
		case rules.ScopeCheck:
			say = h.outOfScope(q)
		}
		switch {
		case name == rules.NoCommitFailing && say != "" && !q.commits, h.unsure(name, say != ""):
			unsure = append(unsure, name)
		case say != "":
			met = append(met, verdict{name, rule.Action, say})
		}
	}
	return met, unsure
}

// session is what happened in one, in order.
type session struct {
	facts []fact
	cut   map[factKind]bool // kinds whose earlier facts are missing
	parts map[string][]part // of the commands of test runs: each is compared with many others, and parsed once
}

// unsure reports whether earlier facts may turn what a rule says. Rules that count back from now, or ask about one
// file, have all that they need.
func (h session) unsure(name string, met bool) bool {
	edits := h.cut[fileEdited] || h.cut[fileMade] || h.cut[changed]
	switch name {
	case rules.NoCommitFailing:
		return !met && h.cut[tested]
	case rules.NoThrashing:
		return !met && (h.cut[tested] || h.cut[fileEdited] && len(h.broken()) > 0)
	case rules.FixRegressionsFirst:
		return h.cut[tested] || edits && len(h.broken()) > 0
	case rules.ScopeCheck:
		return met && h.cut[fileEdited]
	}
	return false
}

func (h session) has(path string, kinds ...factKind) bool {
	return slices.ContainsFunc(h.facts, func(f fact) bool { return f.Path == path && slices.Contains(kinds, f.Kind) })
}

// unread: a file that the session wrote is one that it has read.
func (h session) unread(q question) string {
	var paths []string
	for _, t := range q.edits {
		if t.there && !h.has(t.path, fileRead, fileEdited, fileMade) {
			paths = append(paths, t.path)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return some(paths, 3) + " was not read in this session: read it first"
}

func (h session) untested(threshold int) string {
	n := 0
	for _, f := range slices.Backward(h.facts) {
		if f.Kind == tested {
			break
		}
		if f.Kind == fileEdited {
			n++
		}
	}
	if n < threshold {
		return ""
	}
	edits := "1 edit was"
	if n > 1 {
		edits = fmt.Sprintf("%d edits were", n)
	}
	return edits + " made and no test was run since: run the tests first"
}

func (h session) failing() string {
	now := h.broken()
	if len(now) == 0 {
		return ""
	}
	var names, commands []string
	for _, f := range now {
		commands = append(commands, "`"+f.Command+"`")
		names = append(names, f.Failed...)
	}
	what := "the tests"
	if len(names) > 0 {
		what = some(names, 5)
	}
	return fmt.Sprintf("%s failed when %s was last run: mend them and run that again, or all tests, before the commit",
		what, some(commands, 3))
}

// broken are the last runs of each command that failed, except runs whose tests another one has run since. Of a run
// that named no test it is not known whether any ran: such as one of a runner that is not there. All tests of its
// folder, by whatever runs them, settle it.
func (h session) broken() (now []fact) {
	for _, f := range h.facts {
		if f.Kind != tested || f.Outcome == unknown {
			continue
		}
		now = slices.DeleteFunc(now, func(old fact) bool {
			same := f.Path == old.Path && f.Command == old.Command
			settled := f.Outcome == passed && len(old.Failed) == 0 && around(f.Path, old.Path) && h.run(f).whole()
			return same || settled || (f.Outcome == passed || len(f.Failed) > 0) && covers(h.run(f), h.run(old))
		})
		if f.Outcome == failed {
			now = append(now, f)
		}
	}
	return now
}

// run is the test run that a fact is of.
func (h session) run(f fact) testRun {
	parts, known := h.parts[f.Command]
	if !known {
		for _, c := range parseShell(f.Command) {
			parts = append(parts, partOf(c))
		}
		h.parts[f.Command] = parts
	}
	return testRun{command: f.Command, dir: f.Path, parts: parts}
}

// regressed: tests passed, files were edited, and the tests failed. Only those files may be edited before they pass
// again. A test that was itself edited is none that broke, and after a shell command that may have changed anything
// nothing is known.
func (h session) regressed(q question) string {
	var tests []string
	for _, now := range h.broken() {
		names := now.Failed
		if len(names) == 0 {
			names = []string{""}
		}
		for _, name := range names {
			causes := h.causes(now, name)
			outside := slices.ContainsFunc(q.edits, func(t target) bool { return !slices.Contains(causes, t.path) })
			if len(causes) == 0 || !outside {
				continue
			}
			if name == "" {
				name = "`" + now.Command + "`"
			}
			tests = append(tests, fmt.Sprintf("%s (since the edit of %s)", name, some(causes, 2)))
		}
	}
	if len(tests) == 0 {
		return ""
	}
	one := "a test that passed before fails"
	if len(tests) > 1 {
		one = fmt.Sprintf("%d tests that passed before fail", len(tests))
	}
	return fmt.Sprintf("%s: %s. Mend or take back those edits first", one, some(tests, 3))
}

// causes are the files that were edited between the last run in which a test did not fail and the first in which it
// did. name is empty for a run that named no test.
func (h session) causes(now fact, name string) (paths []string) {
	fails := func(f fact) bool {
		return f.Outcome == failed && (len(f.Failed) == 0 || name == "" || slices.Contains(f.Failed, name))
	}
	first := -1
	for i, f := range slices.Backward(h.facts) {
		if f.Kind != tested || f.Outcome == unknown || !covers(h.run(f), h.run(now)) {
			continue
		}
		if fails(f) {
			first = i
			continue
		}
		if first < 0 {
			return nil
		}
		for _, between := range h.facts[i+1 : first] {
			switch {
			case between.Kind == changed || between.Kind == fileMade || between.Kind == fileEdited && isTest(between.Path):
				return nil
			case between.Kind == fileEdited && !slices.Contains(paths, between.Path):
				paths = append(paths, between.Path)
			}
		}
		return paths
	}
	return nil // it never passed
}

// thrashed: a file was edited, tests failed, it was edited again, and so on.
func (h session) thrashed(q question, threshold int) string {
	if len(h.broken()) == 0 {
		return ""
	}
	for _, t := range q.edits {
		n, open, fails, passes := 0, false, false, false
		ends := func() {
			switch {
			case open && fails:
				n++
			case open && passes:
				n = 0
			}
			fails, passes = false, false
		}
		for _, f := range h.facts {
			switch {
			case f.Kind == fileEdited && f.Path == t.path:
				ends()
				open = true
			case f.Kind == tested:
				fails, passes = fails || f.Outcome == failed, passes || f.Outcome == passed
			}
		}
		ends()
		if n >= threshold {
			return fmt.Sprintf("%s was edited %d times, and tests failed after each: step back, read the failure, and find "+
				"its cause elsewhere or take the edits back", t.path, n)
		}
	}
	return ""
}

func (h session) pointless(run testRun) string {
	for _, f := range slices.Backward(h.facts) {
		switch {
		case f.Kind == fileEdited || f.Kind == fileMade || f.Kind == changed:
			return ""
		case f.Kind == tested && f.Path == run.dir && f.Command == run.command:
			if f.Outcome == unknown {
				return ""
			}
			return fmt.Sprintf("`%s` was run before, and nothing was changed since: its result (%s) stands", f.Command,
				f.Outcome)
		}
	}
	return ""
}

// outOfScope: a file that is not there yet is in scope, and so is one that imports a file of the session's edits.
func (h session) outOfScope(q question) string {
	var edited, paths []string
	for _, f := range h.facts {
		if f.Kind == fileEdited {
			edited = append(edited, f.Path)
		}
	}
	for _, t := range q.edits {
		if t.there && !h.has(t.path, fileRead, fileEdited, fileMade) && !dependsOn(t, edited) {
			paths = append(paths, t.path)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return some(paths, 3) + " was not read in this session, and does not import what it edited: read it first, or leave it"
}

// some lists the first few of a list.
func some(all []string, n int) string {
	if len(all) <= n {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:n], ", "), len(all)-n)
}
