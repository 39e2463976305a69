package testdb

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/jackc/pgx/v5"
)

// Standby starts an asynchronous standby of a server, and stops it at the end of the test.
func Standby(t testing.TB, primary *pgserver.Server, settings map[string]string) *pgserver.Server {
	t.Helper()
	s, stop, err := StartStandby(t.Context(), primary, settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return s
}

// StartStandby is Standby without a test: the caller stops the server.
func StartStandby(ctx context.Context, primary *pgserver.Server, settings map[string]string) (_ *pgserver.Server,
	stop func(), err error) {
	folder, err := os.MkdirTemp("/tmp", "gem-standby-")
	if err != nil {
		return nil, nil, err
	}
	remove := func() { _ = os.RemoveAll(folder) }
	at, err := url.Parse(primary.URL("postgres"))
	if err != nil {
		remove()
		return nil, nil, err
	}
	password, _ := at.User.Password()
	// the files that pgserver expects next to the data of an existing server
	err = errors.Join(os.Chmod(folder, 0o777), //nolint:gosec // the server has a user of its own
		os.WriteFile(filepath.Join(folder, "lock"), nil, 0o600),
		os.WriteFile(filepath.Join(folder, "password"), []byte(password), 0o600))
	if err == nil {
		err = copyServer(ctx, primary, filepath.Join(folder, "data"))
	}
	var s *pgserver.Server
	if err == nil {
		s, err = pgserver.Start(ctx, pgserver.Options{DataDir: folder, Settings: settings})
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return s, func() { _ = s.Stop(); remove() }, nil
}

// copyServer copies the data of a running server to a folder, with the settings of a standby. It does not use
// pg_basebackup, which some packages of Postgres lack.
func copyServer(ctx context.Context, primary *pgserver.Server, folder string) error {
	conn, err := pgx.Connect(ctx, primary.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var data, label string
	err = conn.QueryRow(ctx, "select current_setting('data_directory') from pg_backup_start('standby', true)").Scan(&data)
	if err != nil {
		return err
	}
	if err := copyChanging(data, folder); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, "select labelfile from pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	slots, err := filepath.Glob(filepath.Join(folder, "pg_replslot", "*"))
	for _, name := range append(slots, filepath.Join(folder, "postmaster.pid")) {
		err = errors.Join(err, os.RemoveAll(name))
	}
	for name, text := range map[string]string{"backup_label": label, "standby.signal": "",
		"postgresql.auto.conf": "primary_conninfo = '" + primary.URL("postgres") + "'\n"} {
		file := filepath.Join(folder, name)
		//nolint:gosec // the server has a user of its own
		err = errors.Join(err, os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, 0o666))
	}
	return err
}

// copyChanging copies a folder, as the servers' user. Files may disappear from it meanwhile.
func copyChanging(from, to string) error {
	cmd, err := pgserver.Command("cp", "-pR", from, to)
	if err != nil {
		return err
	}
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasSuffix(line, "No such file or directory\n") {
			return fmt.Errorf("%w: %s", err, line)
		}
	}
	return nil
}

// CaughtUp waits until a standby has what the primary has now. The URLs may name any database of the two servers.
func CaughtUp(t testing.TB, primary, standby string) {
	t.Helper()
	ask := func(at, sql string) (value string) {
		ctx := context.WithoutCancel(t.Context())
		config, err := pgx.ParseConfig(at)
		if err != nil {
			t.Fatal(err)
		}
		config.Database = "postgres" // the standby may not have the other one yet
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if err := conn.QueryRow(ctx, sql).Scan(&value); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return value
	}
	// This commit waits until it is on disk, with all earlier commits.
	at := ask(primary, "with waits as materialized (select set_config('synchronous_commit', 'local', false)) "+
		"select pg_logical_emit_message(true, 'gem', '')::text from waits")
	Eventually(t, "the standby has caught up", func() bool {
		return ask(standby, "select coalesce(pg_last_wal_replay_lsn() >= '"+at+"', false)::text") == "true"
	})
}

// shared is the standby of the server that this test binary uses.
var shared struct {
	sync.Once
	server *pgserver.Server
	stop   func()
	err    error
}

// Replica returns the URL of the same database on a standby of this test binary's server. The first call starts the
// standby.
func Replica(t testing.TB, database string) string {
	t.Helper()
	s := started(t, nil)
	shared.Do(func() {
		shared.server, shared.stop, shared.err = StartStandby(context.Background(), s.private, nil)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	at, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return shared.server.URL(at.Path[1:])
}
