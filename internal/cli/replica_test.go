package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
)

func TestListsAndAuditsAreReadFromTheReplica(t *testing.T) {
	testdb.Long(t, "TestListsAreReadFromTheReplica of package dashboard")
	t.Parallel()
	primary := testdb.Private(t, pgserver.Options{})
	url := primary.URL("postgres")
	if err := migrations.Up(t.Context(), url, migrations.Sources(builtin.Domains()...)...); err != nil {
		t.Fatal(err)
	}
	standby := testdb.Standby(t, primary, nil)
	s := scene{t, testdb.Pool(t, url)}
	s.worker("w-1", 4)
	s.insert()
	testdb.CaughtUp(t, url, standby.URL("postgres"))
	testdb.Exec(t, testdb.Pool(t, standby.URL("postgres")), "select pg_wal_replay_pause()")
	s.insert() // the standby never has it
	env := []string{"DATABASE_URL=" + url, "READ_DATABASE_URL=" + standby.URL("postgres")}

	const from = "Read from the standby, whose newest heartbeat is "
	list := gemWith(t, env, "list")
	list.wantCode(t, exitDone)
	wants(t, list.stderr, from)
	if strings.Count(list.stdout, "queued") != 1 {
		t.Errorf("it is not the replica's: %s", list.stdout)
	}
	audited := gemWith(t, env, "audit")
	audited.wantCode(t, exitDone)
	wants(t, audited.stderr, from)
	wants(t, audited.stdout, "journal-replay              1 calls           ok")
	for _, command := range []string{"list", "audit"} {
		got := gemWith(t, env, command, "--primary")
		got.wantCode(t, exitDone)
		if got.stderr != "" {
			t.Errorf("%s: %s", command, got.stderr)
		}
	}
	if status := gemWith(t, env, "status"); strings.Contains(status.stderr, "replica") {
		t.Errorf("what decides is read from the primary: %s", status.stderr)
	}

	alone := gemWith(t, []string{"DATABASE_URL=postgres://gem:secret@127.0.0.1:1/x", env[1]}, "list")
	alone.wantCode(t, exitDone)
	wants(t, alone.stderr, from)

	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	list = gemWith(t, env, "list")
	list.wantCode(t, exitDone)
	wants(t, list.stderr, "Read from the primary: the standby cannot be reached.")
	if strings.Count(list.stdout, "queued") != 2 {
		t.Errorf("it is not the primary's: %s", list.stdout)
	}
	audited = gemWith(t, env, "audit")
	audited.wantCode(t, exitDone)
	wants(t, audited.stderr, "Read from the primary: the standby cannot be reached.")
	wants(t, audited.stdout, "journal-replay              2 calls           ok")

	wrong := gemWith(t, []string{env[0], "READ_DATABASE_URL=mysql://gem:hunter2@host/x"}, "list")
	wrong.wantCode(t, exitUsage)
	wants(t, wrong.stderr, "READ_DATABASE_URL is not valid (its value is not shown)")
	if strings.Contains(wrong.stderr, "hunter2") {
		t.Error(wrong.stderr)
	}
}
