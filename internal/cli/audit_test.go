package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestAuditExitsWith1OnAnyFault(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	s.worker("w-1", 1)
	call := s.insert()
	s.claim("w-1")
	note := testdb.Value[string](t, s.db, "insert into notes (title, call_id) values ('x', $1) returning id::text", call)
	testdb.Exec(t, s.db, `select gem.finish($1, 1, 'w-1', 'succeeded', '{}', $2, '7')`, call,
		`{"db_writes": [{"table": "notes", "action": "insert", "id": "`+note+`"}]}`)

	sound := gemWith(t, env, "audit")
	sound.wantCode(t, exitDone)
	wants(t, sound.stdout, "receipt-missing             1 finished calls  ok\n",
		"journal-order               3 events          ok\n", "\nNo fault was found, in ")

	testdb.Exec(t, s.db, "insert into notes (title, call_id) select 'x', id from core_tool_calls")
	broken := gemWith(t, env, "audit")
	broken.wantCode(t, exitFailed)
	wants(t, broken.stdout, "effects-unlisted            1 receipts        1 fault\n    ", "notes ",
		"\n1 fault found, in ")
	if broken.stderr != "" {
		t.Errorf("stderr: %s", broken.stderr)
	}
	gemWith(t, env, "audit", "--skip", "guards,effects-unlisted").wantCode(t, exitDone)

	asJSON := gemWith(t, env, "audit", "--json")
	asJSON.wantCode(t, exitFailed)
	var report audit.Report
	if err := json.Unmarshal([]byte(asJSON.stdout), &report); err != nil || report.Faults != 1 || len(report.Checks) < 25 {
		t.Errorf("%v: %s", err, asJSON.stdout)
	}
}

func TestAuditRemarksAreNoFaults(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	s.worker("w-1", 1)
	s.insert()
	s.claim("w-1")
	testdb.Exec(t, s.db, "update core_workers set alive_until = now() - interval '5 minutes'")
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "audit")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "1 remark\n", "which was alive until", "\nNo fault was found, and 1 remark, in ")
}

func TestAuditOfWhatIsNoDatabaseOfGEM(t *testing.T) {
	t.Parallel()
	got := gemWith(t, []string{"DATABASE_URL=" + testdb.NewEmpty(t)}, "audit")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "the database has none of GEM's tables", "gem migrate")
}

func TestAuditByARoleThatSeesLessSaysWhoMay(t *testing.T) {
	t.Parallel()
	got := gemWith(t, []string{"DATABASE_URL=" + newDatabase(t) + "&options=-c%20role%3Dgem_worker"}, "audit")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "connect as the owner of the tables", "row-level security")
}

func TestAuditUsage(t *testing.T) {
	t.Parallel()
	got := inProcess(t.Context(), "audit", "--skip", "effects")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, `unknown check "effects"`)
	got = inProcess(t.Context(), "audit", "--archive", filepath.Join(t.TempDir(), "none.jsonl"))
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "none.jsonl")
	pipe, link := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink("audit_test.go", link)); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{pipe: "is not a regular file", link: "is a symbolic link",
		t.TempDir(): "is a folder"} {
		got = inProcess(t.Context(), "audit", "--archive", path)
		got.wantCode(t, exitFailed)
		wants(t, got.stderr, says)
	}
}

func TestAuditOfArchivesNeedsADatabase(t *testing.T) {
	t.Parallel()
	var args []string
	for _, name := range []string{"a.jsonl", "b.jsonl"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--archive", path)
	}
	args = append([]string{"audit"}, args...)

	none := gemWith(t, nil, args...)
	none.wantCode(t, exitUsage)
	wants(t, none.stderr, "checking an archive needs a database for temporary tables: DATABASE_URL is not set")
	empty := gemWith(t, []string{"DATABASE_URL=" + testdb.NewEmpty(t)}, args...)
	empty.wantCode(t, exitFailed)
	wants(t, empty.stderr, "which this database lacks", "run `gem migrate`")

	got := gemWith(t, []string{"DATABASE_URL=" + testdb.New(t)}, args...)
	got.wantCode(t, exitFailed)
	wants(t, got.stdout, "archive-line                2 lines           2 faults\n    ",
		"a.jsonl:1: it is not a line of an archive\n", "b.jsonl:1: it is not a line of an archive\n")
}
