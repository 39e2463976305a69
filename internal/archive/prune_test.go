package archive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// queue is a database with a worker of the test's own.
type queue struct {
	*testing.T
	db *pgxpool.Pool
}

func newQueue(t *testing.T) queue {
	t.Helper()
	q := queue{t, testdb.Pool(t, testdb.New(t, migrations.Sources(builtin.Domains()...)...))}
	q.run("select gem.start_worker('w', 100, '', '', '1 hour')")
	return q
}

func (q queue) run(sql string, args ...any) {
	q.Helper()
	if _, err := q.db.Exec(context.Background(), sql, args...); err != nil {
		q.Fatalf("%s: %v", sql, err)
	}
}

func (q queue) count(sql string, args ...any) (n int) {
	q.Helper()
	if err := q.db.QueryRow(context.Background(), "select count(*) from "+sql, args...).Scan(&n); err != nil {
		q.Fatalf("%s: %v", sql, err)
	}
	return n
}

// insert makes a call; parent may be empty.
func (q queue) insert(parent string) (id string) {
	q.Helper()
	err := q.db.QueryRow(context.Background(), "insert into core_tool_calls (tool_name, parent_call_id) values ('a.b', "+
		"nullif($1, '')::uuid) returning id::text", parent).Scan(&id)
	if err != nil {
		q.Fatal(err)
	}
	return id
}

// claim claims all that is queued.
func (q queue) claim() { q.Helper(); q.run("select gem.claim('w', 1000, true)") }

// finish ends a call that runs, with a key if there is one, and returns the receipt's id.
func (q queue) finish(id, key string) (receipt string) {
	q.Helper()
	ctx := context.Background()
	var source *string
	if key != "" {
		var verdict string
		if err := q.db.QueryRow(ctx, "select verdict, receipt_id::text from gem.hold_key($1, 1, 'w', $2)", id,
			key).Scan(&verdict, &source); err != nil {
			q.Fatal(err)
		}
	}
	err := q.db.QueryRow(ctx, "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1', $2)::text", id,
		source).Scan(&receipt)
	if err != nil {
		q.Fatal(err)
	}
	return receipt
}

// ended is a call that has ended.
func (q queue) ended(key string) string {
	q.Helper()
	id := q.insert("")
	q.claim()
	q.finish(id, key)
	return id
}

// age makes calls look as if they had ended some hours ago.
func (q queue) age(hours int, ids ...string) {
	q.Helper()
	tx, err := q.db.Begin(context.Background())
	if err != nil {
		q.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range []string{
		"update core_tool_receipts set created_at = created_at - make_interval(hours => $1) where call_id = any ($2)",
		"update core_tool_events set at = at - make_interval(hours => $1) where call_id = any ($2)",
	} {
		if _, err := tx.Exec(context.Background(), "set local session_replication_role = replica"); err != nil {
			q.Fatal(err)
		}
		if _, err := tx.Exec(context.Background(), sql, hours, ids); err != nil {
			q.Fatal(err)
		}
	}
	if err := tx.Commit(context.Background()); err != nil {
		q.Fatal(err)
	}
}

// lines is an archive in memory. sync, when set, is what happens when lines are to be made safe.
type lines struct {
	all    []string
	synced int
	sync   func() error
}

func (l *lines) Add(_ context.Context, line string) error { l.all = append(l.all, line); return nil }

func (l *lines) Sync(context.Context) error {
	l.synced = len(l.all)
	if l.sync != nil {
		return l.sync()
	}
	return nil
}

// calls are the ids of the archived calls, in order.
func (l *lines) calls(t *testing.T) (ids []string) {
	t.Helper()
	for _, text := range l.all {
		var line struct{ Call struct{ ID string } }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, line.Call.ID)
	}
	return ids
}

// prune removes what ended over an hour ago.
func (q queue) prune(p archive.PruneOptions) archive.Pruned {
	q.Helper()
	p.OlderThan = time.Hour
	done, err := archive.Prune(q.Context(), q.db, p)
	if err != nil {
		q.Fatal(err)
	}
	return done
}

// there are those of the calls that are in the database.
func (q queue) there(ids ...string) (found []string) {
	q.Helper()
	for _, id := range ids {
		if q.count("core_tool_calls where id = $1", id) == 1 {
			found = append(found, id)
		}
	}
	return found
}

func TestPruningRemovesOldCallsWhole(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	old, young := q.ended("k"), q.ended("")
	cancelled := q.insert("")
	q.run("select cancel_tool_call($1)", cancelled)
	q.age(2, old, cancelled)
	waiting := q.insert("")
	q.run("insert into tasks (title, call_id) values ('made by the call', $1)", old)

	out := &lines{}
	if done := q.prune(archive.PruneOptions{Archive: out}); done.Removed != 2 || done.Kept != 0 {
		t.Errorf("%+v", done)
	}
	if diff := cmp.Diff([]string{young, waiting}, q.there(old, cancelled, young, waiting)); diff != "" {
		t.Error(diff)
	}
	if n := q.count("core_tool_events"); n != 4 {
		t.Errorf("%d events are left, want those of the two calls", n)
	}
	if q.count("core_tool_receipts") != 1 || q.count("tasks") != 1 {
		t.Error("a receipt or a handler's row too many or too few")
	}
	archived := out.calls(t)
	slices.Sort(archived)
	want := []string{old, cancelled}
	slices.Sort(want)
	if diff := cmp.Diff(want, archived); diff != "" || out.synced != 2 {
		t.Error(diff, out.synced)
	}
	for _, text := range out.all {
		var line struct {
			Version int `json:"gem_archive"`
			Call    map[string]any
			Receipt map[string]any
			Events  []map[string]any
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil || strings.Contains(text, "\n") {
			t.Fatalf("%v: %s", err, text)
		}
		if line.Version != 1 || line.Receipt["call_id"] != line.Call["id"] ||
			float64(len(line.Events)) != line.Call["events"] || len(line.Call) < 19 {
			t.Errorf("not whole: %s", text)
		}
	}
	if done := q.prune(archive.PruneOptions{Archive: out}); done.Removed != 0 {
		t.Errorf("the second time: %+v", done)
	}
}

// Otherwise the next call with the key would run instead of repeating the result.
func TestAKeyIsKeptAsLongAsWanted(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const hit = `core_tool_receipts r where r.call_id = $1 and r.replay_of is not null`
	old, forgotten := q.ended("k"), q.ended("no longer")
	q.age(3, old, forgotten)
	keeping := archive.PruneOptions{KeepKeys: 4 * time.Hour}
	if done := q.prune(keeping); done.Removed != 2 || q.count("gem.kept_keys") != 2 {
		t.Errorf("%+v, and %d keys", done, q.count("gem.kept_keys"))
	}
	again := q.ended("k")
	if q.count(hit, again) != 1 {
		t.Error("the key of a pruned call was forgotten")
	}
	keeping.KeepKeys = 2 * time.Hour
	q.prune(keeping)
	if n := q.count("gem.kept_keys where key = 'k'"); n != 1 {
		t.Error("a key whose receipt is still repeated is gone")
	}
	if n := q.count("gem.kept_keys where key = 'no longer'"); n != 0 {
		t.Error("an old key is still there")
	}
	q.age(3, again)
	q.prune(keeping)
	if n := q.count("gem.kept_keys"); n != 0 {
		t.Errorf("%d keys are kept although no receipt repeats them", n)
	}
	if later := q.ended("k"); q.count(hit, later) != 0 {
		t.Error("a forgotten key was hit")
	}
}

// A kept key may be removed after a call decided to repeat its receipt, and before that call's own receipt is written.
func TestAKeyThatIsForgottenMeanwhileIsNotRepeated(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	old := q.ended("k")
	q.age(3, old)
	q.prune(archive.PruneOptions{KeepKeys: 4 * time.Hour})
	id := q.insert("")
	q.claim()
	var source string
	if err := q.db.QueryRow(t.Context(), "select receipt_id::text from gem.hold_key($1, 1, 'w', 'k')", id).
		Scan(&source); err != nil {
		t.Fatal(err)
	}
	q.prune(archive.PruneOptions{KeepKeys: 2 * time.Hour})
	_, err := q.db.Exec(t.Context(), "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1', $2)", id, source)
	if err == nil || !strings.Contains(err.Error(), "there is no receipt") {
		t.Errorf("got %v", err)
	}
	q.finish(id, "k")
}

func TestLookBackIsThatOfCurrentRules(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	back := func() string {
		d, version, err := archive.LookBack(t.Context(), q.db)
		if err != nil {
			t.Fatal(err)
		}
		return d.String() + " " + version
	}
	if got := back(); got != "0s " {
		t.Errorf("without rules: %s", got)
	}
	for version, longest := range map[string]string{"forgotten": "99 days", "of a worker": "2 days"} {
		q.run("insert into core_rules_versions (version, sha256, rules, longest, recorded_at) values ($1, repeat('0', 64), "+
			"'{}', $2::text::interval, now() - interval '1 day')", version, longest)
	}
	q.run("insert into core_rules_versions (version, sha256, rules, longest, recorded_at) values ('last', repeat('0', " +
		"64), " +
		"'{}', '1 hour', now())")
	if got := back(); got != "1h0m0s last" {
		t.Errorf("without workers: %s", got)
	}
	q.run("update core_workers set rules_version = 'of a worker'")
	if got := back(); got != "48h0m0s of a worker" {
		t.Errorf("with a worker: %s", got)
	}
}

func TestADryRunOnlyCounts(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a, b, source := q.ended(""), q.ended(""), q.ended("k")
	q.age(2, a, b, source)
	q.ended("k") // repeats it
	if done := q.prune(archive.PruneOptions{DryRun: true}); done.Removed != 2 || done.Kept != 1 {
		t.Errorf("%+v", done)
	}
	if q.count("core_tool_calls") != 4 {
		t.Error("calls are gone")
	}
}

// Before a batch is gone, its lines are safe.
func TestABatchIsSyncedBeforeItIsGone(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var ids []string
	for range 7 {
		ids = append(ids, q.ended(""))
	}
	q.age(2, ids...)
	out := &lines{}
	var there []int
	out.sync = func() error {
		there = append(there, len(q.there(ids...)))
		for _, id := range out.calls(t) {
			if !slices.Contains(ids, id) {
				t.Errorf("%s was archived", id)
			}
		}
		return nil
	}
	if done := q.prune(archive.PruneOptions{Archive: out, Batch: 3}); done.Removed != 7 {
		t.Errorf("%+v", done)
	}
	if diff := cmp.Diff([]int{7, 4, 1}, there); diff != "" {
		t.Errorf("calls that are there at each sync: %s", diff)
	}
}

// A call whose line Postgres cannot write, since its text would take more than a gigabyte, keeps no other from leaving.
func TestACallWhoseLineIsTooLongStaysAlone(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a, long, b := q.ended(""), q.ended(""), q.ended("")
	q.age(2, a, long, b)
	q.run(`create function long() returns trigger language plpgsql as $$ begin
			raise program_limit_exceeded using message = 'out of memory'; end $$`)
	q.run("create trigger long before delete on core_tool_calls for each row when (old.id = '" + long +
		"') execute function long()")
	out := &lines{}
	done := q.prune(archive.PruneOptions{Archive: out})
	if diff := cmp.Diff([]string{long}, done.TooLong); diff != "" || done.Removed != 2 {
		t.Errorf("%+v", done)
	}
	if diff := cmp.Diff([]string{long}, q.there(a, long, b)); diff != "" {
		t.Error(diff)
	}
}

// Whatever happens between the archive and the removal, no call is lost; a line may come twice.
func TestAnInterruptedRunLosesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"the disk is full", "the process is told to stop", "the connection breaks"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			var ids []string
			for range 5 {
				ids = append(ids, q.ended(""))
			}
			q.age(2, ids...)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			out := &lines{}
			syncs := 0
			out.sync = func() error {
				if syncs++; syncs != 2 {
					return nil
				}
				switch how {
				case "the disk is full":
					return errors.New("no space left")
				case "the process is told to stop":
					stop()
				default:
					q.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like " +
						"'%gem.prune%' and pid <> pg_backend_pid()")
				}
				return nil
			}
			p := archive.PruneOptions{OlderThan: time.Hour, Batch: 2, Archive: out}
			if _, err := archive.Prune(ctx, q.db, p); err == nil {
				t.Fatal("nothing was interrupted")
			}
			if n := len(q.there(ids...)); n != 3 {
				t.Errorf("%d calls are there, want all but the first batch", n)
			}
			// The interrupted transaction's locks go when Postgres has noticed; until then its calls are passed over.
			for deadline := time.Now().Add(time.Minute); q.count(`pg_stat_activity where datname = current_database()
				and xact_start is not null and pid <> pg_backend_pid()`) > 0; time.Sleep(2 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the interrupted transaction does not end")
				}
			}
			if done := q.prune(archive.PruneOptions{Batch: 2, Archive: out}); done.Removed != 3 {
				t.Errorf("%+v", done)
			}
			archived := out.calls(t)
			slices.Sort(archived)
			slices.Sort(ids)
			if diff := cmp.Diff(ids, slices.Compact(archived)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatIsStillNeededStays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(q queue) (old []string) // all that ended long ago
		kept int                          // of these, from the first
	}{
		"a receipt that a young one repeats": {func(q queue) []string {
			source := q.ended("k")
			q.ended("k")
			return []string{source}
		}, 1},
		"a receipt that an old one repeats": {func(q queue) []string {
			return []string{q.ended("k"), q.ended("k"), q.ended("k")}
		}, 0},
		"the parent of a call that is queued": {func(q queue) []string {
			parent := q.ended("")
			q.insert(parent)
			return []string{parent}
		}, 1},
		"the parent of a young call": {func(q queue) []string {
			parent := q.ended("")
			child := q.insert(parent)
			q.claim()
			q.finish(child, "")
			return []string{parent}
		}, 1},
		"the parent of an old call": {func(q queue) []string {
			parent := q.ended("")
			child := q.insert(parent)
			q.claim()
			q.finish(child, "")
			return []string{parent, child}
		}, 0},
		"the source of the parent of a call that is queued": {func(q queue) []string {
			source, hit := q.ended("k"), q.ended("k")
			q.insert(hit)
			return []string{source, hit, q.ended("")}
		}, 2},
		"a call without a receipt": {func(q queue) []string {
			id := q.ended("")
			q.run("alter table core_tool_receipts disable trigger gem_written_once")
			q.run("delete from core_tool_receipts")
			return []string{id}
		}, 1},
	} {
		// As one batch, and one by one.
		for _, batch := range []int{100, 1} {
			t.Run(fmt.Sprintf("%s, %d a batch", name, batch), func(t *testing.T) {
				t.Parallel()
				q := newQueue(t)
				old := c.set(q)
				q.age(2, old...)
				done := q.prune(archive.PruneOptions{Batch: batch})
				if diff := cmp.Diff(old[:c.kept], q.there(old...),
					cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
					t.Error(diff)
				}
				if done.Removed != int64(len(old)-c.kept) {
					t.Errorf("%+v", done)
				}
			})
		}
	}
}

// A call that another transaction looks at stays, and nobody waits.
func TestPruningWaitsForNobody(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a, b := q.ended(""), q.ended("")
	q.age(2, a, b)
	other, err := q.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	// As the check of a foreign key does: a call is inserted on behalf of this one.
	if _, err := other.Exec(t.Context(), "select from core_tool_calls where id = $1 for key share", a); err != nil {
		t.Fatal(err)
	}
	if done := q.prune(archive.PruneOptions{}); done.Removed != 1 || done.Kept != 1 {
		t.Errorf("%+v", done)
	}
	if diff := cmp.Diff([]string{a}, q.there(a, b)); diff != "" {
		t.Error(diff)
	}
}

func TestAPrunedKeyIsForgotten(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.age(2, q.ended("k"))
	q.prune(archive.PruneOptions{})
	next := q.insert("")
	q.claim()
	var verdict string
	if err := q.db.QueryRow(t.Context(), "select verdict from gem.hold_key($1, 1, 'w', 'k')",
		next).Scan(&verdict); err != nil || verdict != "run" {
		t.Errorf("%s %v", verdict, err)
	}
}

// Calls of an earlier GEM that ended long ago are old, though their journal began when they were taken over.
func TestImportedCallsArePrunedByWhenTheyEnded(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	q := queue{t, testdb.Pool(t, url)}
	q.run(`
		create table core_tool_calls (id uuid primary key default gen_random_uuid(), tool_name text not null,
			input jsonb not null default '{}',
			status text not null, error jsonb, claimed_at timestamptz, claimed_by text, created_at timestamptz,
				updated_at timestamptz);
		create table core_tool_receipts (id uuid primary key default gen_random_uuid(), call_id uuid, tool_name text,
			status text, result jsonb, effects jsonb, created_at timestamptz);
		insert into core_tool_calls (tool_name, status, created_at, updated_at) select 'old', 'succeeded',
			now() - interval '2 years', now() - interval '1 year' from generate_series(1, 50);
		insert into core_tool_calls (tool_name, status, created_at, updated_at) select 'young', 'succeeded', now(), now()
			from generate_series(1, 50);
		insert into core_tool_receipts (call_id, tool_name, status, result, created_at) select id, tool_name, n, '{}',
			updated_at from core_tool_calls, unnest(array['succeeded', 'failed']) n;`)
	if _, err := migrations.Apply(t.Context(), url,
		migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts"}},
		migrations.Sources(builtin.Domains()...)...); err != nil {
		t.Fatal(err)
	}
	out := &lines{}
	if done := q.prune(archive.PruneOptions{Archive: out, Batch: 20}); done.Removed != 50 {
		t.Errorf("%+v", done)
	}
	if q.count("core_tool_calls where tool_name = 'old'") != 0 ||
		q.count("core_tool_calls where tool_name = 'young'") != 50 {
		t.Error("not the old ones")
	}
	if n := q.count("gem.imported_second_receipts"); n != 50 || !strings.Contains(out.all[0], `"second_receipts": [{`) {
		t.Errorf("%d second receipts are left, want 50; and the archive has: %s", n, out.all[0])
	}
}

// Only gem.prune removes: not its owner, by hand, and no other role, whatever it sets.
func TestOnlyPruningRemoves(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.ended("")
	role := "pruner_" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "_")) + fmt.Sprint(time.Now().UnixNano())
	q.run("create role " + role)
	t.Cleanup(func() { q.run("drop owned by " + role + "; drop role " + role) })
	q.run("grant usage on schema public, gem to " + role + "; grant all on all tables in schema public, gem to " + role)

	const owner = ""
	for _, c := range []struct{ as, set, sql string }{
		{owner, "", "delete from core_tool_events"},
		{owner, "", "delete from core_tool_receipts"},
		{owner, "set local gem.pruning = 'on'", "update core_tool_receipts set result = '{}'"},
		{owner, "set local gem.pruning = 'on'", "update core_tool_events set attempt = 1"},
		{owner, "set local gem.pruning = 'on'", "update core_tool_calls set error = '{}'"},
		{owner, "set local gem.pruning = 'on'", "truncate core_tool_events"},
		{owner, "select gem.prune('{}')", "delete from core_tool_events"},
		{role, "set local gem.pruning = 'on'", "delete from core_tool_events"},
		{role, "set local gem.pruning = 'on'", "delete from core_tool_receipts"},
		{role, "", "select gem.prune(array(select id from core_tool_calls))"},
	} {
		tx, err := q.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"alter table core_tool_events no force row level security",
			"create policy p on core_tool_events for all using (true)",
			"create policy p on core_tool_receipts for all using (true)",
			map[bool]string{true: "select", false: "set local role " + c.as}[c.as == owner], c.set} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		_, err = tx.Exec(t.Context(), c.sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
			t.Errorf("as %q, %s; %s: %v", c.as, c.set, c.sql, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// What limits counted is not a call's, and leaves when no recorded rules look back at it: the last row of a counter
// when its call is gone, as here.
func TestOldRowsOfLimitsLeaveWithPrune(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.run(`insert into gem.rule_runs (counter, n, at, call_id, rules_version)
		select 'a/calls', n, now() - interval '1 day' + n * interval '1 second', gen_random_uuid(), '1'
			from generate_series(1, 7) n`)
	q.run("select gem.record_rules('1', repeat('a', 64), '{}', '1 hour')")
	for _, step := range []struct {
		dry           bool
		removed, left int
	}{{true, 0, 7}, {false, 7, 0}, {false, 0, 0}} {
		done, err := archive.Prune(t.Context(), q.db, archive.PruneOptions{OlderThan: time.Hour, Batch: 2, DryRun: step.dry})
		if left := q.count("gem.rule_runs"); err != nil || done.Counted != int64(step.removed) || left != step.left {
			t.Errorf("%+v: removed %d rows, %d are left, %v", step, done.Counted, left, err)
		}
	}
}

// A domain says itself what of its own is old.
func TestOldDocumentsThatNoOpenCallNamesLeave(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const old, named, extended, waited, fresh = "00000000-0000-4000-8000-00000000000a",
		"00000000-0000-4000-8000-00000000000b", "00000000-0000-4000-8000-00000000000c",
		"00000000-0000-4000-8000-00000000000d", "00000000-0000-4000-8000-00000000000e"
	for _, id := range []string{old, named, extended, waited, fresh} {
		q.run("insert into extract_documents (id) values ($1)", id)
		q.run("insert into extract_document_parts (document_id, text) select $1::uuid, 'x' from generate_series(1, 3)", id)
	}
	past := func(what string) { q.run("set local session_replication_role = replica; update " + what) }
	past("extract_documents set created_at = created_at - interval '2 hours' where id <> '" + fresh + "'")
	past("extract_document_parts set created_at = created_at - interval '2 hours' where document_id <> '" + fresh +
		"' and (seq < 3 or document_id <> '" + extended + "')")
	q.run(`insert into core_tool_calls (tool_name, input) values ('extract.run', '{"document_id": "` +
		strings.ToUpper(named) + `"}')`)
	q.run(`insert into core_tool_calls (tool_name, input) values ('extract.run', '{"document_id": "` + old + `"}')`)
	q.run("select gem.claim('w', 9, true)")
	q.run("select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls where input ->> "+
		"'document_id' = $1", old)

	// One that is added to at this moment stays, and prune does not wait. A function of somebody else's is not called.
	tx, err := q.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "insert into extract_document_parts (document_id, text) values ($1, 'x')",
		waited); err != nil {
		t.Fatal(err)
	}
	role := "pruner_" + fmt.Sprint(time.Now().UnixNano())
	q.run("create role " + role)
	t.Cleanup(func() { q.run("drop owned by " + role + "; drop role " + role) })
	q.run("create schema gem_lab authorization " + role)
	q.run("create function gem_lab.prune(timestamptz, integer) returns integer language plpgsql as 'begin raise " +
		"exception ''called''; end'")
	q.run("alter function gem_lab.prune owner to " + role)

	if done := q.prune(archive.PruneOptions{DryRun: true}); done.Forgotten != nil || q.count("extract_documents") != 5 {
		t.Errorf("a dry run: %+v", done)
	}
	for _, step := range []struct{ removed, documents, parts int }{{1, 4, 12}, {0, 4, 12}} {
		if done := q.prune(archive.PruneOptions{}); done.Forgotten["extract"] != int64(step.removed) {
			t.Errorf("%+v, want %+v", done, step)
		}
		if n, parts := q.count("extract_documents"), q.count("extract_document_parts"); n != step.documents ||
			parts != step.parts {
			t.Errorf("%d documents and %d parts are left, want %+v", n, parts, step)
		}
	}
	if q.count("extract_documents where id = $1", old) != 0 {
		t.Error("another document was removed than the old one")
	}
}
