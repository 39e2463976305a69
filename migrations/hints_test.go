package migrations_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// While the queue of notifications is full, Postgres refuses every transaction that has one. gem.notify sends none
// then. A queue that is "full" at 0 % shows that everything else works.
func TestAFullQueueOfNotificationsCostsWakeUpsAndNothingElse(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	listening, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Release()
	if _, err := listening.Exec(t.Context(), "listen gem_calls"); err != nil {
		t.Fatal(err)
	}
	// notified reports whether a notification came before one that is sent now.
	notified := func() (yes bool) {
		testdb.Exec(t, db, "notify gem_calls, 'the test''s own'")
		for {
			n, err := listening.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.Payload == "the test's own" {
				return yes
			}
			yes = true
		}
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 10, '', '', '1 hour'), gem.want_wake('w', true)")
	const everything = `
		insert into core_tool_calls (tool_name) values ('a.b'), ('a.b'), ('a.b');
		select gem.release(c.id, c.attempt, 'w') from gem.claim('w', 1, true) c;
		select cancel_tool_call(c.id) from gem.claim('w', 1, true) c;
		select gem.heartbeat('w', '1 hour', '{}', '{}', true)`
	testdb.Exec(t, db, everything)
	if !notified() {
		t.Fatal("nobody is notified while there is room")
	}

	testdb.Exec(t, db, "do $$ begin execute replace(pg_get_functiondef('gem.notify(text, text)'::regprocedure), '< "+
		"0.5', '< "+
		"0'); end $$")
	testdb.Exec(t, db, everything)
	if notified() {
		t.Error("a notification was sent while the queue was full")
	}
}

// Every notification of the database goes through that function.
func TestNotificationsAreSentInOnePlace(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("functions/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	places := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		places += strings.Count(string(text), "pg_notify(")
	}
	if places != 1 {
		t.Errorf("pg_notify stands in %d places", places)
	}
}
