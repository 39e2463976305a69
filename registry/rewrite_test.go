package registry_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/registry"
)

func TestRewriteTouchesNothingElse(t *testing.T) {
	t.Parallel()
	file := gem.BuiltInRegistry
	r, err := registry.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	same, err := registry.Rewrite(file, r.FileVersion, nil)
	if err != nil || !bytes.Equal(same, file) {
		t.Fatalf("nothing to do changed the file: %v", err)
	}
	added := json.RawMessage(strings.Replace(entry(nil), "leads.create", "lab.new", 1))
	changed, _ := r.Tool("os.create_note")
	altered := json.RawMessage(strings.Replace(string(changed.JSON()), `"timeout_ms":12000`, `"timeout_ms":13000`, 1))
	text, err := registry.Rewrite(file, "9.0.0", []json.RawMessage{added, altered})
	if err != nil {
		t.Fatal(err)
	}
	after, err := registry.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(registry.Compare(r, after), "; "); got != "lab.new was added; os.create_note was changed "+
		"(timeout_ms)" || after.FileVersion != "9.0.0" {
		t.Errorf("version %s: %s", after.Version, got)
	}
	if tools := namesOf(after); tools[1] != "os.create_note" || tools[31] != "lab.new" {
		t.Error("the order has changed")
	}
	kept := 0
	for line := range strings.Lines(string(file)) {
		if strings.Contains(string(text), line) {
			kept++
		}
	}
	if lines := bytes.Count(file, []byte("\n")); kept < lines-20 {
		t.Errorf("%d of %d lines are kept", kept, lines)
	}
}

func TestRewriteTakesEveryForm(t *testing.T) {
	t.Parallel()
	added := json.RawMessage(entry(nil))
	for _, file := range []string{`{"version":"1","tools":[]}`,
		"{\n\t\"tools\": [\n\t],\n\t\"version\" : \"1\", \"x\": [{\"version\": 2}]}\n",
		"{\"version\": \"1\", \"tools\": [\n" + strings.Replace(entry(nil), "leads.create", "a.b", 1) + "\n]}"} {
		text, err := registry.Rewrite([]byte(file), "2", []json.RawMessage{added})
		if err != nil {
			t.Fatal(err)
		}
		after, err := registry.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if _, ok := after.Tool("leads.create"); !ok || after.Version != "2" {
			t.Errorf("%s", text)
		}
		again, err := registry.Rewrite(text, "2", []json.RawMessage{added})
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("a second time: %v\n%s\nafter\n%s", err, again, text)
		}
	}
	if _, err := registry.Rewrite([]byte(`{"version": "1"}`), "2", nil); err == nil {
		t.Error("a file without tools was taken")
	}
}

func TestTheNextVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"1.4.2": "1.5.0", "1": "2", "2026-01-09": "2026-01-10", "v1.2": "v1.3",
		"1.2.3-rc1": "1.2.3-rc2", "beta": "beta.2",
		"1.02.3": "1.02.4", "12345678901": "12345678901.2", "7b": "8b"} {
		if got := registry.NextVersion(version); got != want {
			t.Errorf("after %s comes %s, want %s", version, got, want)
		}
	}
}
