package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
)

// Two programs migrate at once, and one loses its connection in the middle of a file: the other does the rest, and the
// database is the same as after one undisturbed run.
func TestAMigrationThatIsCutOffIsFinishedByAnother(t *testing.T) {
	t.Parallel()
	ledger := func(url string) []string {
		return texts(t, testdb.Pool(t, url), "select concat_ws(' ', source, version, file, sha256, objects) from "+
			"gem.migrations order by 1")
	}
	whole := testdb.NewEmpty(t)
	if err := migrations.Up(t.Context(), whole, all()...); err != nil {
		t.Fatal(err)
	}
	rounds := 1
	if testdb.IsLong() {
		rounds = 20
	}
	for round := range rounds {
		url := testdb.NewEmpty(t)
		db := testdb.Pool(t, url)
		failed := make(chan error, 2)
		for range 2 {
			go func() { failed <- migrations.Up(context.WithoutCancel(t.Context()), url, all()...) }()
		}
		for cut := false; !cut; time.Sleep(time.Millisecond) { // the holder of the lock, once some files have been applied
			err := db.QueryRow(t.Context(), `select coalesce(bool_or(pg_terminate_backend(l.pid)), false) from pg_locks l
				where l.locktype = 'advisory' and l.granted and l.database = (select oid from pg_database
					where datname = current_database())
					and case when $1::integer = 0 then true else to_regclass('gem.migrations') is not null end`, round%2).Scan(&cut)
			if err != nil {
				t.Fatal(err)
			}
		}
		errs := 0
		for range 2 {
			if err := <-failed; err != nil {
				errs++
			}
		}
		if errs > 1 {
			t.Errorf("round %d: %d programs failed, and one was cut off", round, errs)
		}
		if diff := cmp.Diff(ledger(whole), ledger(url)); diff != "" {
			t.Errorf("round %d: the database differs: %s", round, diff)
		}
		if done, err := migrations.Apply(t.Context(), url, migrations.Options{}, all()...); err != nil ||
			len(done.Applied) > 0 {
			t.Errorf("round %d: %v was left to do, %v", round, done.Applied, err)
		}
	}
}
