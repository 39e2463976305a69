package audit_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type object = map[string]any

// pruned returns a database that had calls of every kind, and the lines of an archive of the ended ones.
func pruned(t *testing.T) (*pgxpool.Pool, []string) {
	t.Helper()
	env := everyKind(t)
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	file, err := archive.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := archive.Prune(t.Context(), env.DB,
		archive.PruneOptions{OlderThan: time.Nanosecond, Archive: file, Batch: 7}); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Database(t.Context(), env.DB, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := reported(report); len(found) > 0 {
		t.Errorf("the database that was pruned: %v", found)
	}
	for _, c := range report.Checks {
		if c.Of == "finished calls" && c.LookedAt != 0 {
			t.Errorf("%d finished calls are left", c.LookedAt)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return env.DB, slices.Collect(strings.Lines(string(content)))
}

// file is an archive in memory.
type file struct {
	io.Reader
	name string
}

func (f file) Name() string { return f.name }

func auditLines(t *testing.T, db audit.Beginner, lines ...string) *audit.Report {
	t.Helper()
	f := file{strings.NewReader(strings.Join(lines, "")), "calls.jsonl"}
	report, err := audit.Archives(t.Context(), db, []audit.File{f}, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAnArchiveIsAsSoundAsItsDatabase(t *testing.T) {
	t.Parallel()
	db, lines := pruned(t)
	report := auditLines(t, db, lines...)
	if found := reported(report); len(found) > 0 {
		t.Errorf("%v", found)
	}
	looked := map[string]int64{}
	for _, c := range report.Checks {
		looked[c.Check] = c.LookedAt
	}
	if n := int64(len(lines)); looked["archive-line"] != n || looked["receipt-status"] != n ||
		looked["journal-order"] < 3*n-5 || looked["hit-source"] < 2 {
		t.Errorf("it looked at %v", looked)
	}
}

func TestEachCheckOfAnArchiveReportsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	db, lines := pruned(t)
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
	// The line of the call to no.such_tool, with its fields changed.
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
	call := func(column string, value any) func(*testing.T) []string {
		return edit(func(_, call, _ object, _ []any) { call[column] = value })
	}
	receipt := func(column string, value any) func(*testing.T) []string {
		return edit(func(_, _, receipt object, _ []any) { receipt[column] = value })
	}
	event := func(i int, column string, value any) func(*testing.T) []string {
		return edit(func(_, _, _ object, events []any) { events[i].(object)[column] = value })
	}
	const line = "archive-line"
	for _, b := range []struct {
		check, what string
		says        string
		lines       func(*testing.T) []string
		also        string // a check that finds the other side of it
	}{
		{line, "no JSON", `calls.jsonl:2: invalid input syntax for type json: Token "Dear" is invalid`,
			func(*testing.T) []string { return []string{lines[0], "Dear Jo,\n", lines[1]} }, ""},
		{line, "other JSON", "calls.jsonl:1: it is not a line of an archive",
			func(*testing.T) []string { return []string{"{}\n", lines[0]} }, ""},
		{line, "no object", "it is not a line of an archive", func(*testing.T) []string { return []string{"1\n"} }, ""},
		{line, "an empty line", "calls.jsonl:2: invalid input syntax for type json",
			func(*testing.T) []string { return []string{lines[0], "\n"} }, ""},
		{line, "no UTF-8", "invalid byte sequence", func(*testing.T) []string { return []string{"\xff\n"} }, ""},
		{line, "a NUL", "invalid byte sequence", func(*testing.T) []string { return []string{"{\x00}\n"} }, ""},
		{line, "the escape of a NUL", "unsupported Unicode escape sequence", call("tool_name", "\x00"), ""},
		{line, "a number that is too large", "out of range", change("no.such_tool", `"attempt": 1`, `"attempt": 1e100`), ""},
		{line, "a text for a number", "invalid input syntax for type integer", call("attempt", "x"), ""},
		{line, "a time that is none", "invalid input syntax for type timestamp", receipt("created_at", "never"), ""},
		{line, "a time that is none in an event's data", "invalid input syntax for type timestamp",
			event(0, "data", object{"run_at": "never"}), ""},
		{line, "a priority that is none", "invalid input syntax for type integer",
			event(0, "data", object{"priority": "high"}), ""},
		{line, "no id", "it is not a line of an archive", call("id", nil), ""},
		{line, "an id that is none", "invalid input syntax for type uuid", call("id", "x"), ""},
		{line, "events that are no list", "non-array", edit(func(line, _, _ object, _ []any) { line["events"] = object{} }),
			""},
		{line, "a number twice", "two of its events have the same number", event(2, "seq", 2), ""},
		{line, "deep nesting", "stack depth limit exceeded",
			func(*testing.T) []string { return []string{strings.Repeat("[", 1_000_000) + "\n"} }, ""},
		{line, "a later version", "it is not a line of an archive", change("", `"gem_archive": 1`, `"gem_archive": 2`), ""},
		{"archive-differs", "a call twice", "calls.jsonl:2 has the call again, and it differs from calls.jsonl:1",
			func(*testing.T) []string {
				return []string{lines[0], strings.Replace(lines[0], `"seq"`, `"sequel": 1, "seq"`, 1)}
			}, ""},
		{"archive-repeated", "an interrupted run", "calls.jsonl:3 repeats calls.jsonl:1",
			func(*testing.T) []string { return []string{lines[0], lines[1], lines[0]} }, ""},
		{"archive-torn", "an interrupted run", "calls.jsonl:2: the line ends after 50 bytes",
			func(*testing.T) []string { return []string{lines[0], lines[1][:50]} }, ""},
		{"archive-unfinished", "a call that runs", "the call is running, and was archived",
			edit(func(line, call, _ object, events []any) {
				line["events"] = events[:2]
				call["events"], call["status"], call["error"] = 2, "running", nil
				line["receipt"] = nil
			}), ""},
		{"archive-unfinished", "no status", "the call is , and was archived", call("status", nil),
			"journal-replay receipt-early"},
		{"receipt-missing", "null", "has no receipt", edit(func(line, _, _ object, _ []any) { line["receipt"] = nil }), ""},
		{"receipt-orphan", "another call's", "belongs to a call that does not exist", receipt("call_id", id),
			"receipt-missing"},
		{"receipt-second", "another call's, which has one", "the call has 2 receipts", func(t *testing.T) []string {
			t.Helper()
			var other struct{ Call struct{ ID string } }
			i := slices.IndexFunc(lines, func(l string) bool { return !strings.Contains(l, "no.such_tool") })
			if err := json.Unmarshal([]byte(lines[i]), &other); err != nil {
				t.Fatal(err)
			}
			return receipt("call_id", other.Call.ID)(t)
		}, "*"},
		{"receipt-status", "another status", "the call is failed, and its receipt is succeeded",
			receipt("status", "succeeded"), ""},
		{"receipt-status", "none", "the call is failed, and its receipt is ", receipt("status", nil), "receipt-result"},
		{"receipt-error", "another error", `"error_code": "x"`, call("error", object{"error_code": "x"}), ""},
		{"receipt-attempt", "another worker", "by nobody", receipt("worker_id", nil), ""},
		{"receipt-attempt", "no attempt", "and its receipt is attempt  of", receipt("attempt", nil), ""},
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
		}, ""},
		{"effects-form", "a list", "are []", receipt("effects", []any{}), ""},
		{"journal-gaps", "an event is missing", "there are 2 events, from 1 to 2, and the call counts 3",
			edit(func(line, _, _ object, events []any) { line["events"] = events[:2] }), ""},
		{"journal-gaps", "the numbers are wrong", "there are 3 events, from 1 to 4, and the call counts 3",
			event(2, "seq", 4), ""},
		{"journal-gaps", "there are none", "there is no journal, and the call counts 3 events",
			edit(func(line, _, _ object, _ []any) { line["events"] = nil }), ""},
		{"journal-gaps", "no count", "there are 3 events, from 1 to 3, and the call counts ", call("events", nil), ""},
		{"journal-order", "never claimed", "event 2 is woken, and the call was queued before", event(1, "event", "woken"),
			""},
		{"journal-order", "no event that exists", "event 2 is nonsense, and the call was queued before",
			event(1, "event", "nonsense"), ""},
		{"journal-holder", "another worker", "event 3 is failed of attempt 1 by w-x", event(2, "worker_id", "w-x"), ""},
		{"journal-replay", "the row", "retries is 4, and 0 by the journal", call("retries", 4), ""},
		{"journal-replay", "half a row", "losses is , and 0 by the journal", call("losses", nil), ""},
		{"journal-receipt", "another", "the last event names the receipt " + id, event(2, "data", object{"receipt_id": id}),
			""},
		{"journal-orphan", "another call's", "1 events belong to a call that does not exist", event(0, "call_id", id),
			"journal-gaps"},
		{"journal-orphan", "nobody's", "1 events belong to a call that does not exist", event(0, "call_id", nil),
			"journal-gaps"},
		{"answer-by", "another answer", `its receipt has the answer "red" by `,
			change("", `"answer": "blue"`, `"answer": "red"`), ""},
		{"child-called", "another name", "is called of x, the call ",
			change("", `"name": "one", "tool"`, `"name": "x", "tool"`), ""},
		{"child-called", "no event of a child", " whose journal has 0 events of this",
			change(`"name": "five"`, `"event": "called"`, `"event": "step"`), ""},
		{"child-returned", "another status", "is returned of five, the call ",
			change("", `"name": "five", "status": "succeeded"`, `"name": "five", "status": "failed"`), ""},
		{"child-returned", "a child of another name", "is returned of five, the call ",
			change("", `"parent_step": "five"`, `"parent_step": "x"`), "child-called"},
		{"hit-source", "another result", "its receipt repeats the receipt",
			change(`"hit": true, "mode": "keyed"`, `{"lead_id": "`, `{"lead_id": "x`), ""},
		{"hit-effects", "denied", "its receipt repeats ",
			change(`"hit": true, "mode": "keyed"`, `"hit": true`, `"hit": false`), ""},
		{"key-computed", "another input", `, and the call leads.create:phone="3"`,
			change(`"hit": false, "mode": "keyed"`, `"phone": "2"`, `"phone": "3"`), ""},
	} {
		t.Run(b.check+": "+b.what, func(t *testing.T) {
			t.Parallel()
			report := auditLines(t, db, b.lines(t)...)
			found := reported(report)
			checks := append([]string{b.check}, strings.Fields(b.also)...)
			slices.Sort(checks)
			if diff := cmp.Diff(checks, slices.Sorted(maps.Keys(found))); diff != "" && b.also != "*" {
				t.Fatalf("%s\n%v", diff, found)
			}
			if len(found[b.check]) == 0 {
				t.Fatalf("%v", found)
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

// A hit and its receipt may be in different archives, as may a child and its parent.
func TestSeveralArchivesAreCheckedTogether(t *testing.T) {
	t.Parallel()
	db, lines := pruned(t)
	i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"hit": true, "mode": "keyed"`) })
	hit, others := lines[i], slices.Delete(slices.Clone(lines), i, i+1)
	for name, c := range map[string]struct {
		hit   string
		check []string
	}{
		"sound":          {hit, nil},
		"another result": {strings.Replace(hit, `{"lead_id": "`, `{"lead_id": "x`, 1), []string{"hit-source"}},
		"no JSON":        {"x\n", []string{"archive-line"}},
	} {
		for _, order := range []bool{true, false} {
			files := []audit.File{file{strings.NewReader(strings.Join(others, "")), "a.jsonl"},
				file{strings.NewReader(c.hit), "b.jsonl"}}
			if order {
				slices.Reverse(files)
			}
			report, err := audit.Archives(t.Context(), db, files, audit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			found := reported(report)
			if diff := cmp.Diff(c.check, slices.Sorted(maps.Keys(found))); diff != "" {
				t.Errorf("%s: %s%v", name, diff, found)
			}
			if f := found["archive-line"]; f != nil && f[0].ID != "b.jsonl:1" {
				t.Errorf("%s: %v", name, f)
			}
		}
	}
}

// A child may be in another archive than its parent, or gone.
func TestAnArchiveMayLackChildrenOrParents(t *testing.T) {
	t.Parallel()
	db, lines := pruned(t)
	for with, without := range map[string]string{`"parent_step": "`: `"event": "called"`,
		`"event": "called"`: `"parent_step": "`} {
		some := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(l, without) })
		if len(some) == len(lines) || !slices.ContainsFunc(some, func(l string) bool { return strings.Contains(l, with) }) {
			t.Fatalf("%d of %d lines are without %s", len(some), len(lines), without)
		}
		if found := reported(auditLines(t, db, some...)); len(found) > 0 {
			t.Errorf("without %s: %v", without, found)
		}
	}
}

// Through a transaction pooler each transaction may have another connection, and a temporary table that outlives one
// would be in the way of the next.
func TestArchivesAreCheckedThroughATransactionPooler(t *testing.T) {
	testdb.Long(t, "TestAnArchiveIsAsSoundAsItsDatabase")
	t.Parallel()
	direct, lines := pruned(t)
	url := direct.Config().ConnString()
	pooler := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: 2})
	db, err := pgpool.Open(t.Context(), pooler.URL(url), pgpool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var audits sync.WaitGroup
	for range 4 {
		audits.Go(func() {
			for range 3 {
				if found := reported(auditLines(t, db, lines...)); len(found) > 0 {
					t.Errorf("%v", found)
				}
			}
		})
	}
	audits.Wait()
}

// An audit of archives needs no rights on GEM's tables, writes nothing that stays, and does not read the database's
// calls.
func TestARoleWithoutRightsMayAuditArchives(t *testing.T) {
	t.Parallel()
	owner, lines := pruned(t)
	role := "auditor_" + strings.ToLower(rand.Text())
	testdb.Exec(t, owner, "create role "+role)
	t.Cleanup(func() { testdb.Exec(t, owner, "drop role "+role) })
	before := catalog(t, owner)
	for _, c := range []struct {
		set, says string
	}{
		{"set default_transaction_read_only = on", ""},
		{"revoke temporary on database " + owner.Config().ConnConfig.Database + " from public",
			"this role cannot create them"},
	} {
		db, err := pgx.Connect(t.Context(), owner.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(context.Background())
		for _, sql := range []string{c.set, "set role " + role} {
			if _, err := db.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		report, err := audit.Archives(t.Context(), db, []audit.File{file{strings.NewReader(strings.Join(lines, "")), "a"}},
			audit.Options{})
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if found := reported(report); len(found) > 0 {
			t.Errorf("%v", found)
		}
	}
	if diff := cmp.Diff(before, catalog(t, owner)); diff != "" {
		t.Error(diff)
	}
}

// catalog names every relation and function of the database.
func catalog(t *testing.T, db *pgxpool.Pool) (names []string) {
	t.Helper()
	rows, err := db.Query(t.Context(), "select 'relation ' || oid::regclass from pg_class union all select 'function ' "+
		"|| oid::regprocedure from pg_proc order by 1")
	if err != nil {
		t.Fatal(err)
	}
	if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLoadingAnArchiveStopsWithItsContext(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	ctx, stop := context.WithCancel(t.Context())
	endless := readerFunc(func(p []byte) (int, error) {
		time.AfterFunc(200*time.Millisecond, stop)
		return copy(p, strings.Repeat("{}\n", 1000)), nil
	})
	if _, err := audit.Archives(ctx, db, []audit.File{file{endless, "endless"}}, audit.Options{}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	broken := readerFunc(func([]byte) (int, error) { return 0, errors.New("the disk is gone") })
	_, err := audit.Archives(t.Context(), db, []audit.File{file{broken, "calls.jsonl"}}, audit.Options{})
	if err == nil || !strings.Contains(err.Error(), "calls.jsonl: the disk is gone") {
		t.Errorf("got %v", err)
	}
}
