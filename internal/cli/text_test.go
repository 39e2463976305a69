package cli

import (
	"strings"
	"testing"
)

func TestATableAlignsRowsWhoseLastCellsAreEmpty(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	rows := [][]string{{"STATE", "TOOL", "NOTE"}, {"waiting", "wait.answer", ""}, {"failed", "x", "why"}}
	if err := table(&b, rows); err != nil {
		t.Fatal(err)
	}
	const want = "STATE    TOOL         NOTE\nwaiting  wait.answer\nfailed   x            why\n"
	if got := b.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	b.Reset()
	if err := table(&b, [][]string{{"TOOL", "NOTE"}, {"wait.answer", ""}}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != "TOOL         NOTE\nwait.answer\n" {
		t.Errorf("got:\n%s", got)
	}
}

func TestPrintedJSONHasNoCharacterThatDrawsOnATerminal(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	of := map[string]string{"key": "a\u009b2J\u202e\u2066\x1b[1m\x7f é"}
	if err := printJSON(&text, of); err != nil {
		t.Fatal(err)
	}
	watched := report[map[string]string]{asJSON: true, watch: true}
	if err := watched.show(&text, of); err != nil {
		t.Fatal(err)
	}
	const escaped = `"key": "a\u009b2J\u202e\u2066\u001b[1m\u007f é"`
	want := "{\n  " + escaped + "\n}\n{" + strings.Replace(escaped, ": ", ":", 1) + "}\n"
	if text.String() != want {
		t.Errorf("got %q, want %q", text.String(), want)
	}
}
