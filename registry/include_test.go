package registry_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/registry"
)

// ours lists the entries of a program: two tools of one domain, one of another, and the tools of every registry.
var ours = []string{
	entry(fields{"name": `"agent.run"`, "calls": `["os.*"]`}),
	entry(fields{"name": `"llm.chat"`, "permissions": `["net:llm"]`}),
	entry(fields{"name": `"llm.models"`}), entry(fields{"name": `"wait.answer"`}),
	entry(fields{"name": `"wait.approval"`}),
	entry(fields{"name": `"wait.event"`}),
}

func resolve(t testing.TB, text string, own ...string) *registry.Registry {
	t.Helper()
	r, err := registry.Resolve([]byte(text), []byte(file(own...)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// with is a registry file with one tool of its own and more fields at the top.
func with(top string, entries ...string) string {
	return `{"version": "4", ` + top + `"tools": [` + strings.Join(append(entries, entry(nil)), ", ") + `]}`
}

func namesOf(r *registry.Registry) (names []string) {
	for _, t := range r.Tools() {
		names = append(names, t.Name)
	}
	return names
}

// hashOf is the end of the version of a registry that includes these entries.
func hashOf(t testing.TB, entries ...string) string {
	t.Helper()
	var all []any
	for _, text := range entries {
		all = append(all, decode(t, text))
	}
	canonical, err := json.Marshal(all) // sorts keys, and the entries have no number that can be written in two ways
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("+%x", sha256.Sum256(canonical))[:9]
}

func TestAFileIncludesDomainsAndTools(t *testing.T) {
	t.Parallel()
	for include, want := range map[string][]string{
		``:                                   {"leads.create", "wait.answer", "wait.approval"},
		`"include": [], `:                    {"leads.create", "wait.answer", "wait.approval"},
		`"include": ["llm.chat"], `:          {"leads.create", "llm.chat", "wait.answer", "wait.approval"},
		`"include": ["llm"], `:               {"leads.create", "llm.chat", "llm.models", "wait.answer", "wait.approval"},
		`"include": ["llm", "llm.chat"], `:   {"leads.create", "llm.chat", "llm.models", "wait.answer", "wait.approval"},
		`"include": ["wait", "agent.run"], `: {"leads.create", "agent.run", "wait.answer", "wait.approval", "wait.event"},
	} {
		r := resolve(t, with(include), ours...)
		if diff := cmp.Diff(want, namesOf(r)); diff != "" {
			t.Errorf("%s: %s", include, diff)
		}
		for _, tool := range r.Tools() {
			if tool.Included != (tool.Name != "leads.create") {
				t.Errorf("%s: included: %t", tool.Name, tool.Included)
			}
		}
	}
}

func TestTheVersionNamesTheIncludedEntries(t *testing.T) {
	t.Parallel()
	chat := resolve(t, with(`"include": ["llm.chat"], `), ours...)
	if want := "4" + hashOf(t, ours[1], ours[3], ours[4]); chat.Version != want || chat.FileVersion != "4" {
		t.Errorf("version %s of %s, want %s", chat.Version, chat.FileVersion, want)
	}
	overridden := resolve(t, with(`"include": ["llm.chat"], "overrides": {"llm.chat": {"frontends": true}}, `), ours...)
	if overridden.Version != chat.Version {
		t.Errorf("an override changed the version from %s to %s", chat.Version, overridden.Version)
	}
	err := registry.CheckUpgrade(chat, overridden)
	if err == nil || !strings.Contains(err.Error(), "llm.chat was changed (frontends)") {
		t.Errorf("another override under one version: %v", err)
	}
	again := resolve(t, with(`"include": ["llm.chat", "llm.chat"], `), ours...)
	if again.Version != chat.Version || again.SHA256() != chat.SHA256() {
		t.Error("the way to write include counts")
	}
	newer := slices.Clone(ours)
	newer[1] = entry(fields{"name": `"llm.chat"`, "description": `"new"`})
	if r := resolve(t, with(`"include": ["llm.chat"], `), newer...); r.Version == chat.Version {
		t.Errorf("a program with other entries has the version %s, too", r.Version)
	}
	models := with(`"include": ["llm.models"], `)
	if resolve(t, models, newer...).Version != resolve(t, models, ours...).Version {
		t.Error("an entry that is not included counts")
	}
}

// The program owns what it adds: another program with the same file must not be refused.
func TestWithoutIncludeTheVersionIsThatOfTheFile(t *testing.T) {
	t.Parallel()
	newer := slices.Clone(ours)
	newer[3] = entry(fields{"name": `"wait.answer"`, "description": `"new"`})
	one, two, without := resolve(t, with(""), ours...), resolve(t, with(""), newer...), resolve(t, with(""))
	if one.Version != "4" || one.SHA256() != two.SHA256() || one.SHA256() != without.SHA256() {
		t.Errorf("version %s, %s, %s, %s", one.Version, one.SHA256(), two.SHA256(), without.SHA256())
	}
	if err := errors.Join(registry.CheckUpgrade(one, two), registry.CheckUpgrade(without, two)); err != nil {
		t.Error(err)
	}
	if got := registry.Compare(one, two); !slices.Equal(got, []string{"wait.answer was changed (description)"}) {
		t.Errorf("compared: %v", got)
	}
	copied := resolve(t, with("", ours[3]), newer...)
	if err := registry.CheckUpgrade(one, copied); err == nil {
		t.Error("a copied entry is part of the file, and its version was not raised")
	}
}

// The version and the hash of a file with the field "added" would not cover the entries that it names.
func TestOnlyARecordedRegistryHasTheFieldAdded(t *testing.T) {
	t.Parallel()
	hides := with(`"added": ["wait.approval"], `, entry(fields{"name": `"wait.approval"`, "frontends": `true`}))
	_, err := registry.Parse([]byte(hides))
	if err == nil || !strings.Contains(err.Error(),
		"added: is written only by GEM, into the registries that it records: remove it") {
		t.Errorf("the file is accepted, or it says: %v", err)
	}
	given, err := registry.Parse([]byte(with("")))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(given.JSON()), `"added":["wait.answer","wait.approval"]`) {
		t.Errorf("the record does not name the tools that its version does not cover: %s", given.JSON())
	}
	if read, err := registry.ParseRecorded(given.JSON()); err != nil || read.SHA256() != given.SHA256() {
		t.Errorf("the record is not the registry that was recorded: %v", err)
	}
}

func TestACopiedEntryStaysAsItIs(t *testing.T) {
	t.Parallel()
	copied := entry(fields{"name": `"llm.chat"`, "description": `"mine"`})
	r := resolve(t, with(`"include": ["llm"], `, copied), ours...)
	if want := "4" + hashOf(t, ours[2], ours[3], ours[4]); r.Version != want {
		t.Errorf("version %s, want %s without the entry that it does not include", r.Version, want)
	}
	tool, _ := r.Tool("llm.chat")
	if tool.Description != "mine" || tool.Included {
		t.Errorf("%+v", tool)
	}
	if diff := cmp.Diff([]string{"llm.chat", "leads.create", "llm.models", "wait.answer", "wait.approval"},
		namesOf(r)); diff != "" {
		t.Error(diff)
	}
	asks := resolve(t, with("", entry(fields{"name": `"wait.approval"`, "description": `"mine"`})), ours...)
	if tool, _ := asks.Tool("wait.approval"); tool.Description != "mine" || len(asks.Tools()) != 3 {
		t.Errorf("%v: %+v", namesOf(asks), tool)
	}
}

func TestOverridesReplaceFieldsOfIncludedEntries(t *testing.T) {
	t.Parallel()
	r := resolve(t, with(`"include": ["llm", "agent.run", "wait.answer"], "overrides": {
		"llm.chat": {"frontends": true, "timeout_ms": 7, "retry": {"max_attempts": 2}},
		"agent.run": {"calls": ["shop.*"]}, "wait.answer": {"frontends": false}}, `), ours...)
	chat, _ := r.Tool("llm.chat")
	if !chat.Frontends || chat.Timeout.Milliseconds() != 7 || chat.Retry(true).MaxAttempts != 2 {
		t.Errorf("%+v", chat)
	}
	if !strings.Contains(string(chat.JSON()), `"timeout_ms":7`) {
		t.Errorf("%s", chat.JSON())
	}
	agent, _ := r.Tool("agent.run")
	answer, _ := r.Tool("wait.answer")
	if !agent.MayCall("shop.refund") || agent.MayCall("os.note") || answer.Frontends {
		t.Errorf("%+v, %+v", agent, answer)
	}
	if models, _ := r.Tool("llm.models"); models.Timeout.Milliseconds() != 15000 {
		t.Errorf("%+v", models)
	}
	// The program's own entries stay as they are.
	if chat, _ := resolve(t, with(`"include": ["llm"], `), ours...).Tool("llm.chat"); chat.Frontends {
		t.Error("an override of one file counts for another")
	}
}

func TestAFaultyIncludeSaysWhatThereIs(t *testing.T) {
	t.Parallel()
	const have = "; it has agent.run, llm.chat, llm.models, wait.answer, wait.approval, wait.event"
	for top, want := range map[string]string{
		`"include": ["llm.chats"]`: `include[0]: "llm.chats" does not come with this program: did you mean llm.chat` +
			have,
		`"include": ["llm", "shop"]`:   "include[1]: shop does not come with this program" + have,
		`"include": ["llm.*"]`:         "include[0]: ",
		`"include": "llm"`:             "include: must be a list but is a string",
		`"include": [1]`:               "include[0]: must be a string but is a number",
		`"include": ["llm.Chat"]`:      "A domain or a tool that comes with GEM: `gem registry show TOOL` prints its entry.",
		`"overrides": []`:              "overrides: must be an object but is a list",
		override("leads.create", `{}`): `overrides."leads.create": is in "tools": change its entry there`,
		override("agent.run", `{}`):    `overrides."agent.run": is not included: add "agent.run" to "include"`,
		override("wait.answer", `{}`):  `overrides."wait.answer": is not included: add "wait.answer" to "include"`,
		override("llm.chet", `{}`):     `overrides."llm.chet": is not an included tool: did you mean llm.chat?`,
		override("llm", `{}`):          `overrides.llm: is not an included tool`,
		override("shop.x",
			`{}`): `overrides."shop.x": is not an included tool: name a tool that "include" adds, or remove it`,
		override("llm.chat", `3`):     `overrides."llm.chat": must be an object but is a number`,
		change(`"frontend": true`):    `overrides."llm.chat".frontend: unknown field: did you mean frontends?`,
		change(`"input_schema": {}`):  "known fields are calls, frontends, retry, timeout_ms",
		change(`"timeout_ms": 0`):     `overrides."llm.chat".timeout_ms: must be at least 1; it is 0. The number of milliseconds`,
		change(`"retry": {"max": 2}`): `overrides."llm.chat".retry.max: unknown field`,
		change(`"calls": ["shop"]`):   `overrides."llm.chat".calls[0]: does not match the pattern`,
		change(`"frontends": "no"`):   `overrides."llm.chat".frontends: must be a boolean but is a string`,
	} {
		_, err := registry.Resolve([]byte(with(top+", ")), []byte(file(ours...)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", top, err, want)
		}
	}
	long := strings.Replace(with(`"include": ["llm"], `), `"4"`, `"`+strings.Repeat("v", 56)+`"`, 1)
	_, err := registry.Resolve([]byte(long), []byte(file(ours...)))
	if err == nil || err.Error() != `version: has 56 characters, and "include" adds 9 to it: shorten it to 55` {
		t.Error(err)
	}
}

// override includes the tools of llm, and overrides a tool.
func override(tool, fields string) string {
	return `"include": ["llm"], "overrides": {"` + tool + `": ` + fields + `}`
}

// change overrides a field of a tool that is included.
func change(field string) string { return override("llm.chat", "{"+field+"}") }

func TestAnIncludedToolNeedsANameOfItsOwn(t *testing.T) {
	t.Parallel()
	text, own := with(`"include": ["llm"], `, entry(fields{"name": `"llm.add.model"`})),
		file(entry(fields{"name": `"llm.add_model"`}))
	_, err := registry.Resolve([]byte(text), []byte(own))
	want := "llm.add.model and llm.add_model are both called llm_add_model by agents"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

func TestTheCanonicalFormHasTheIncludedEntries(t *testing.T) {
	t.Parallel()
	overridden := `"include": ["wait", "llm.chat"], "overrides": {"wait.answer": {"frontends": false}}, `
	for _, top := range []string{``, `"include": ["llm"], `, overridden} {
		r := resolve(t, with(top), ours...)
		// Another program reads the same entries.
		again, err := registry.ResolveRecorded(r.JSON(),
			[]byte(file(entry(fields{"name": `"wait.answer"`, "description": `"another"`}))))
		if err != nil {
			t.Fatal(err)
		}
		if r.Version != again.Version || r.SHA256() != again.SHA256() || string(r.JSON()) != string(again.JSON()) {
			t.Errorf("%s\nbecame %s", r.JSON(), again.JSON())
		}
		if strings.Contains(string(r.JSON()), `"include"`) || strings.Contains(string(r.JSON()), `"overrides"`) {
			t.Errorf("%s", r.JSON())
		}
	}
}

func TestAnUnknownToolOfGEMIsToBeIncluded(t *testing.T) {
	t.Parallel()
	r := resolve(t, with(`"include": ["llm.chat"], `), ours...)
	for name, want := range map[string]string{
		"agent.run":   `: it comes with GEM, so add "agent.run" to "include".`,
		"agent.*":     `: it comes with GEM, so add "agent" to "include".`,
		"leads.creat": ": did you mean leads.create?",
		"shop.x":      "",
	} {
		if got := r.DidYouMean(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// The schemas of these files are compiled only when they are used, so a test checks them all.
func TestTheFilesInTheProgramAreValid(t *testing.T) {
	t.Parallel()
	builtIn, err := os.ReadFile("../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range [][]byte{registry.OwnText, builtIn} {
		if _, err := registry.Parse(append(file, ' ')); err != nil { // another hash, so everything is compiled
			t.Error(err)
		}
	}
	if sum := fmt.Sprintf("%x\n", sha256.Sum256(builtIn)); sum != registry.CheckedSum {
		t.Errorf("tools.registry.json has changed: write %sinto checked.sha256", sum)
	}
}

func TestOwnHasTheToolsOfGEM(t *testing.T) {
	t.Parallel()
	want := []string{"agent.run", "extract.add_document", "extract.run", "extract.shard", "llm.chat", "llm.ensemble",
		"llm.models",
		"llm.structured", "llm.usage", "wait.answer", "wait.approval", "wait.event"}
	if diff := cmp.Diff(want, namesOf(registry.Own())); diff != "" {
		t.Error(diff)
	}
}
