package hook

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gemworker/gem/rules"
)

// fact is an event of a session, in the order of the session. It contains no file contents and no output.
type fact struct {
	Kind    factKind `json:"kind"`
	Path    string   `json:"path,omitempty"`    // of a file, or of the folder of a test run
	Command string   `json:"command,omitempty"` // of a test run
	Outcome outcome  `json:"outcome,omitempty"` // of a test run
	// of a test run: the names of the failed tests, as far as the run printed them
	Failed []string `json:"failed,omitempty"`
}

type factKind string

const (
	fileRead   factKind = "read"
	fileEdited factKind = "edit"
	fileMade   factKind = "write"  // by a shell command, so that the session knows the contents
	changed    factKind = "change" // a shell command may have changed any file
	tested     factKind = "test"
	cut        factKind = "cut" // earlier facts of the kind in Path are missing
)

const maxCommand = 1000 // kept bytes of a test run's command

// facts returns the facts to record about an act that has ended.
func (a *act) facts() (all []fact) {
	if a.event == before {
		return nil
	}
	if !a.shell {
		if a.end == failed {
			return nil // the act read and changed nothing
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

// tests returns the test run of an act in the form that facts use.
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

// question is an act that is about to begin, in the form that the rules check.
type question struct {
	edits   []target
	run     *testRun
	commits bool
	unread  bool // the shell text has an unread part, which may commit
}

// target is a file that is about to be edited.
type target struct {
	path    string
	there   bool     // the file exists
	imports []string // names that the file imports, for scope_check
}

// question returns the question that the rules must answer about an act.
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

// paths returns the files whose history the rules need.
func (q question) paths() []string {
	paths := []string{}
	for _, t := range q.edits {
		paths = append(paths, t.path)
	}
	return paths
}

// applying returns the rules that are enabled and apply to the question, in order.
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
		case rules.NoEditUnread, rules.ScopeCheck: // a new file may be created without reading it
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

// verdict is the result of a rule that matches an act.
type verdict struct {
	rule   string
	action rules.Action
	text   string
}

// judge applies the enabled rules in order. unsure has the rules that depend on facts missing from the history.
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

// session has the facts of one session, in order.
type session struct {
	facts []fact
	cut   map[factKind]bool // kinds with missing earlier facts
	parts map[string][]part // of the commands of test runs, cached because each is compared with many others
}

// unsure reports whether missing facts may change the verdict of a rule. Rules that count back from now, or look at one
// file, have all the facts that they need.
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

// unread returns a message if the question edits files that the session has not read. A file that the session wrote
// counts as read.
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

// broken returns the last failed run of each command, unless a later run covers its tests. A failed run that named no
// test may have run none, for example because its runner is missing. A passing run of all tests of its folder settles
// it, whatever the runner.
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

// run returns the test run of a fact.
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

// regressed returns a message if tests passed, files were edited, and the tests failed. Until they pass again, only
// those files may be edited. A test that was edited itself does not count as broken. After a shell command that may
// have changed any file, the cause is unknown.
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

// causes returns the files edited between the last run in which a test did not fail and the first run in which it
// failed. name is empty for a run that named no test.
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
	return nil // the test never passed
}

// thrashed returns a message if a file was edited threshold times and tests failed after each edit.
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
			return fmt.Sprintf("`%s` was run before, and nothing was changed since: its result (%s) is still valid", f.Command,
				f.Outcome)
		}
	}
	return ""
}

// outOfScope returns a message if the question edits files outside the session's scope. New files are in scope, and so
// are files that import a file that the session edited.
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

// some joins the first n items of a list and the number of the others.
func some(all []string, n int) string {
	if len(all) <= n {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:n], ", "), len(all)-n)
}
