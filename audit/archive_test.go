package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

// pruned is an archive of all that has ended in a database with calls of every kind, as its lines.
func pruned(t *testing.T) []string {
	t.Helper()
	env := everyKind(t)
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	file, err := receipts.OpenArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := (receipts.Pruning{OlderThan: time.Nanosecond, Archive: file, Batch: 7}).Run(t.Context(), env.DB); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Database(t.Context(), env.DB, 0, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := reported(report); len(found) > 0 {
		t.Errorf("the database that was pruned: %v", found)
	}
	if report.Checks[1].LookedAt != 0 {
		t.Errorf("%d finished calls are left", report.Checks[1].LookedAt)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(content)))
}

func auditLines(t *testing.T, lines ...string) *audit.Report {
	t.Helper()
	report, err := audit.Archive(t.Context(), strings.NewReader(strings.Join(lines, "")), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAnArchiveIsAsSoundAsItsDatabase(t *testing.T) {
	t.Parallel()
	lines := pruned(t)
	report := auditLines(t, lines...)
	if found := reported(report); len(found) > 0 {
		t.Errorf("%v", found)
	}
	looked := map[string]int64{}
	for _, c := range report.Checks {
		looked[c.Check] = c.LookedAt
	}
	if n := int64(len(lines)); looked["archive-line"] != n || looked["receipt-status"] != n || looked["journal-order"] < 3*n-5 || looked["hit-source"] < 2 {
		t.Errorf("it looked at %v", looked)
	}
}

func TestEachCheckOfAnArchiveReportsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	lines := pruned(t)
	// The line that has a text, changed.
	change := func(with, old, by string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			t.Helper()
			changed := slices.Clone(lines)
			for i, line := range changed {
				if strings.Contains(line, with) && strings.Contains(line, old) {
					changed[i] = strings.Replace(line, old, by, 1)
					return changed
				}
			}
			t.Fatalf("no line has %s and %s", with, old)
			return nil
		}
	}
	// The line of the call of no.such_tool, with its fields changed.
	edit := func(edit func(line, call, receipt object, events []any)) func(*testing.T) []string {
		return func(t *testing.T) []string {
			t.Helper()
			changed := slices.Clone(lines)
			for i, text := range changed {
				if !strings.Contains(text, `"tool_name": "no.such_tool"`) {
					continue
				}
				var line object
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatal(err)
				}
				edit(line, line["call"].(object), line["receipt"].(object), line["events"].([]any))
				encoded, err := json.Marshal(line)
				if err != nil {
					t.Fatal(err)
				}
				changed[i] = string(encoded) + "\n"
			}
			return changed
		}
	}
	const id = "00000000-0000-4000-8000-000000000000"
	for _, b := range []struct {
		check, what string
		says        string
		lines       func(*testing.T) []string
	}{
		{"archive-line", "no JSON", "line 2: invalid character", func(*testing.T) []string { return []string{lines[0], "Dear Jo,\n", lines[1]} }},
		{"archive-line", "other JSON", "line 1: it is no line of an archive", func(*testing.T) []string { return []string{"{}\n", lines[0]} }},
		{"archive-line", "a later version", "it is no line of an archive", change("", `"gem_archive": 1`, `"gem_archive": 2`)},
		{"archive-differs", "a call twice", "has the call once more, and not as it was",
			func(*testing.T) []string {
				return []string{lines[0], strings.Replace(lines[0], `"seq"`, `"sequel": 1, "seq"`, 1)}
			}},
		{"archive-repeated", "an interrupted run", "line 3 repeats the call", func(*testing.T) []string { return []string{lines[0], lines[1], lines[0]} }},
		{"archive-torn", "an interrupted run", "line 2: the line ends after", func(*testing.T) []string { return []string{lines[0], lines[1][:50]} }},
		{"receipt-missing", "null", "has no receipt", edit(func(line, _, _ object, _ []any) { line["receipt"] = nil })},
		{"receipt-early", "a call that runs", "the call is running, and was archived", edit(func(line, call, _ object, events []any) {
			line["events"] = events[:2]
			call["events"], call["status"], call["error"] = 2, "running", nil
			line["receipt"] = nil
		})},
		{"receipt-orphan", "another call's", "is of the call " + id, edit(func(_, _, receipt object, _ []any) { receipt["call_id"] = id })},
		{"receipt-status", "another status", "the call is failed, and its receipt is succeeded", edit(func(_, _, receipt object, _ []any) { receipt["status"] = "succeeded" })},
		{"receipt-error", "another error", `"error_code":"x"`, edit(func(_, call, _ object, _ []any) { call["error"] = object{"error_code": "x"} })},
		{"receipt-attempt", "another worker", "by nobody", edit(func(_, _, receipt object, _ []any) { receipt["worker_id"] = nil })},
		{"receipt-result", "no reason", "the result of its receipt, not_configured, is {}", func(t *testing.T) []string {
			t.Helper()
			i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"tool_name": "comms.send_email"`) })
			var line object
			if err := json.Unmarshal([]byte(lines[i]), &line); err != nil {
				t.Fatal(err)
			}
			line["receipt"].(object)["result"] = object{}
			encoded, err := json.Marshal(line)
			if err != nil {
				t.Fatal(err)
			}
			return []string{string(encoded) + "\n"}
		}},
		{"effects-form", "a list", "are []", edit(func(_, _, receipt object, _ []any) { receipt["effects"] = []any{} })},
		{"journal-gaps", "an event is missing", "there are 2 events, and the call counts 3", edit(func(line, _, _ object, events []any) { line["events"] = events[:2] })},
		{"journal-gaps", "the numbers are wrong", "event 2 of the journal is numbered 3",
			edit(func(line, _, _ object, events []any) { line["events"] = []any{events[0], events[2], events[1]} })},
		{"journal-order", "never claimed", "event 2 is woken, and the call was queued before", edit(func(_, _, _ object, events []any) { events[1].(object)["event"] = "woken" })},
		{"journal-holder", "another worker", "event 3 is failed of attempt 1 by w-x", edit(func(_, _, _ object, events []any) { events[2].(object)["worker_id"] = "w-x" })},
		{"journal-replay", "the row", "retries is 4, and 0 by the journal", edit(func(_, call, _ object, _ []any) { call["retries"] = 4 })},
		{"journal-receipt", "another", "the last event names the receipt " + id,
			edit(func(_, _, _ object, events []any) { events[2].(object)["data"] = object{"receipt_id": id} })},
		{"journal-orphan", "another call's", "event 1 is of the call " + id, edit(func(_, _, _ object, events []any) { events[0].(object)["call_id"] = id })},
		{"hit-source", "another result", "its receipt repeats the receipt", change(`"hit": true, "mode": "keyed"`, `{"lead_id": "`, `{"lead_id": "x`)},
		{"hit-effects", "denied", "its receipt repeats ", change(`"hit": true, "mode": "keyed"`, `"hit": true`, `"hit": false`)},
		{"key-computed", "another input", `should have leads.create:phone="3"`, change(`"hit": false, "mode": "keyed"`, `"phone": "2"`, `"phone": "3"`)},
	} {
		t.Run(b.check+": "+b.what, func(t *testing.T) {
			t.Parallel()
			text := strings.Join(b.lines(t), "")
			report, err := audit.Archive(t.Context(), strings.NewReader(text), audit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			found := reported(report)
			if diff := cmp.Diff([]string{b.check}, slices.Sorted(maps.Keys(found))); diff != "" {
				t.Fatalf("%s\n%v", diff, found)
			}
			if said := found[b.check][0]; !strings.Contains(said.ID+": "+said.What, b.says) {
				t.Errorf("got %q, want %q", said, b.says)
			}
			if remark := b.check == "archive-repeated" || b.check == "archive-torn"; (report.Faults == 0) != remark {
				t.Errorf("%d faults", report.Faults)
			}
		})
	}
}

func TestReadingAnArchiveStopsWhenToldTo(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := audit.Archive(ctx, strings.NewReader("{}\n"), audit.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
