package progress_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/progress"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// bench is a database with a writer whose interval never ends: it writes when a stream is flushed.
type bench struct {
	*testing.T
	*pgxpool.Pool
	writer     *progress.Writer
	statements atomic.Int32
	trouble    atomic.Int32
}

// planted is a key of a provider.
const planted = "planted/key-0123456789abcdef"

// What troubles a statement.
const (
	away       = iota + 1 // it does not come to Postgres
	answerLost            // it does, and its answer does not come back
)

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, Pool: testdb.Pool(t, testdb.New(t))}
	b.writer = progress.NewWriter(b, time.Hour, zap.NewNop(), planted)
	b.run("select gem.start_worker('w', 1000, '', '', '1 year')")
	return b
}

// Query counts statements, and lets them fail.
func (b *bench) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b.statements.Add(1)
	trouble := b.trouble.Load()
	if trouble == answerLost {
		rows, _ := b.Pool.Query(ctx, sql, args...)
		rows.Close()
	}
	if trouble != 0 {
		broken, cancel := context.WithCancel(ctx)
		cancel()
		return b.Pool.Query(broken, sql, args...)
	}
	return b.Pool.Query(ctx, sql, args...)
}

func (b *bench) run(sql string, args ...any) {
	b.Helper()
	if _, err := b.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// calls returns so many that run in their first attempt.
func (b *bench) calls(n int) []string {
	b.Helper()
	rows, _ := b.Pool.Query(b.Context(), "insert into core_tool_calls (tool_name) select 'llm.chat' from "+
		"generate_series(1, $1) returning id::text", n)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.Fatal(err)
	}
	b.run("select gem.claim('w', 1000, true)")
	return ids
}

// open returns the stream of a call's first attempt.
func (b *bench) open(call string) *progress.Stream { return b.writer.Open(b.Context(), call, 1) }

// flush writes, as the end of an answer does.
func (b *bench) flush(s *progress.Stream) { s.Flush(b.Context()) }

// shown returns the texts of a call, and its last status.
func (b *bench) shown(call string) (text, status string, rows int) {
	b.Helper()
	err := b.QueryRow(b.Context(), `select coalesce(string_agg(data ->> 'text', '' order by seq), ''),
		coalesce(max(concat_ws(' ', data ->> 'state', data ->> 'why')), ''), count(*)
		from core_tool_progress where call_id = $1`, call).Scan(&text, &status, &rows)
	if err != nil {
		b.Fatal(err)
	}
	return text, status, rows
}

func (b *bench) wantShown(call, wantText, wantStatus string) {
	b.Helper()
	if text, status, _ := b.shown(call); text != wantText || status != wantStatus {
		b.Errorf("shown: %d bytes, %.60q and %q, want %d bytes, %.60q and %q", len(text), text, status, len(wantText),
			wantText, wantStatus)
	}
}

func text(delta string) *provider.Event {
	return &provider.Event{Kind: provider.TextDelta, Delta: delta}
}
func thinking(delta string) *provider.Event {
	return &provider.Event{Kind: provider.ThinkingDelta, Delta: delta}
}

func TestAllStreamsShareAStatement(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	calls := b.calls(200)
	var last *progress.Stream
	for round := range 3 {
		for i, call := range calls {
			last = b.open(call)
			for _, piece := range []string{"one ", "two ", fmt.Sprint(i), ". "} {
				last.Seen(text(piece))
			}
		}
		b.flush(last)
		if n := b.statements.Load(); n != int32(round+1) {
			t.Fatalf("%d statements after %d intervals", n, round+1)
		}
	}
	for i, call := range calls {
		b.wantShown(call, strings.Repeat(fmt.Sprintf("one two %d. ", i), 3), "")
		if _, _, rows := b.shown(call); rows != 3 {
			t.Errorf("the pieces of three intervals are in %d rows", rows)
		}
	}
	b.flush(last) // there is nothing
	if n := b.statements.Load(); n != 3 {
		t.Errorf("%d statements", n)
	}
}

func TestPiecesOfAKindAreJoined(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	s := b.open(call)
	s.Asked("main", "a")
	for _, e := range []*provider.Event{{Kind: provider.Began}, thinking("I "), thinking("think"),
		{Kind: provider.ThinkingDelta, Signature: "signed"}, {Kind: provider.ThinkingDelta, Delta: "secret", Redacted: true},
		text("a"), {Kind: provider.KeepAlive}, text("b"), {Kind: provider.CallBegan, Index: 0, ID: "x", Name: "f"},
		{Kind: provider.ArgumentsDelta, Delta: `{"a"`}, {Kind: provider.ArgumentsDelta, Delta: `:1}`},
		{Kind: provider.CallBegan, Index: 1, ID: "y", Name: "g"}, {Kind: provider.ArgumentsDelta, Index: 1, Delta: "{}"},
		{Kind: provider.UsageSeen}, {Kind: provider.Ended}} {
		s.Seen(e)
	}
	b.flush(s)
	var got string
	if err := b.QueryRow(t.Context(), "select string_agg(seq || ' ' || kind || ' ' || data, E'\n' order by seq) from "+
		"core_tool_progress").Scan(&got); err != nil {
		t.Fatal(err)
	}
	want := `1 status {"step": "main", "state": "asked", "target": "a"}
2 thinking {"text": "I think"}
3 text {"text": "ab"}
4 tool_call {"id": "x", "name": "f", "index": 0, "arguments": "{\"a\":1}"}
5 tool_call {"id": "y", "name": "g", "index": 1, "arguments": "{}"}`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestALongPieceIsCutBetweenLetters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	s := b.open(call)
	long := strings.Repeat("日本語", 6000) + "\x00 end"
	s.Seen(text(long))
	b.flush(s)
	b.wantShown(call, strings.ReplaceAll(long, "\x00", "\uFFFD"), "")
	var most int
	if err := b.QueryRow(t.Context(), "select max(octet_length(data ->> 'text')) from core_tool_progress").
		Scan(&most); err != nil || most > 8200 {
		t.Errorf("a row of %d bytes, %v", most, err)
	}
}

// A provider may repeat a key, in pieces of any size.
func TestAKeyIsCutOutOfWhatIsShown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const said = "the plan: " + planted + ", planted%2Fkey-0123456789abcdef, plant, and planted/key-0123"
	for size := range len(planted) + 3 {
		call := b.calls(1)[0]
		s := b.open(call)
		for rest := said; rest != ""; {
			n := min(size+1, len(rest))
			s.Seen(text(rest[:n]))
			rest = rest[n:]
		}
		s.Seen(&provider.Event{Kind: provider.CallBegan, ID: planted, Name: planted})
		b.flush(s)
		b.wantShown(call, "the plan: [cut], [cut], plant, and [cut]", "")
	}
	var n int
	if err := b.QueryRow(t.Context(), "select count(*) from core_tool_progress where data::text like '%0123456789%'").
		Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows have a key, %v", n, err)
	}
}

// A reader joins the rows of a kind, whatever is between them.
func TestAKeyIsCutOutThatIsSplitOverRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, between := range []*provider.Event{thinking("x"), {Kind: provider.CallBegan, ID: "c", Name: "look"}} {
		call := b.calls(1)[0]
		s := b.open(call)
		for _, e := range []*provider.Event{text("it is " + planted[:13]), between, text(planted[13:] + "."), between} {
			s.Seen(e)
		}
		b.flush(s)
		var shown string
		if err := b.QueryRow(t.Context(), `select string_agg(data ->> 'text', '' order by seq) from core_tool_progress
			where call_id = $1 and kind = 'text'`, call).Scan(&shown); err != nil || shown != "it is [cut]." {
			t.Errorf("with %s between: %q, %v", between.Kind, shown, err)
		}
	}
}

// Memory is bounded, and what is shown has no gap but at its end.
func TestWhilePostgresIsAwayABoundedPartIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	calls := b.calls(2)
	long, short := b.open(calls[0]), b.open(calls[1])
	b.trouble.Store(away)
	short.Seen(text("It was "))
	const piece = "a hundred bytes, or nearly so, of an answer that goes on and on while nobody can see any of it yet. "
	for range 2000 {
		long.Seen(text(piece))
	}
	b.flush(long)
	b.flush(short)
	short.Seen(text("short."))
	if n := b.statements.Load(); n > 5 {
		t.Errorf("%d statements while Postgres was away", n)
	}
	b.trouble.Store(0)
	for range 3 {
		b.flush(short)
		b.flush(long)
	}
	b.wantShown(calls[1], "It was short.", "")
	got, status, _ := b.shown(calls[0])
	if len(got) < 60_000 || len(got) > 70_000 || !strings.HasPrefix(strings.Repeat(piece, 2000), got) ||
		status != "stopped behind" {
		t.Errorf("%d bytes and %q", len(got), status)
	}
	long.Seen(text("more"))
	b.flush(long)
	if again, _, _ := b.shown(calls[0]); again != got {
		t.Error("more was shown after the end")
	}
}

func TestRowsWhoseAnswerWasLostAreWrittenOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	s := b.open(call)
	for _, piece := range []string{"one, ", "two, ", "three, ", "four, "} {
		s.Seen(text(piece))
		b.trouble.Store(answerLost)
		b.flush(s)
		b.flush(s)
		s.Seen(text("and "))
		b.trouble.Store(0)
		b.flush(s)
		b.flush(s)
	}
	b.wantShown(call, "one, and two, and three, and four, and ", "")
}

// A call that asks several models in a row, or runs for long, shows no more than its bound.
func TestACallShowsTwoThousandRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	s := b.open(call)
	for i := range 2100 {
		if i%2 == 0 {
			s.Seen(text("."))
		} else {
			s.Seen(thinking(","))
		}
		if i%100 == 0 {
			b.flush(s)
		}
	}
	b.flush(s)
	var rows, stopped int
	if err := b.QueryRow(t.Context(), "select count(*), max(seq) filter (where data = '{\"state\": \"stopped\", "+
		"\"why\": \"rows\"}' and kind = 'status') from core_tool_progress").Scan(&rows, &stopped); err != nil ||
		rows != 2000 || stopped != 2000 {
		t.Errorf("%d rows, stopped at %d, %v", rows, stopped, err)
	}
	n := b.statements.Load()
	s.Seen(text("more"))
	b.flush(s)
	if b.statements.Load() != n {
		t.Error("a statement for a call that is full")
	}
}

func TestAnAttemptThatHoldsItsCallNoMoreWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// lost
	for _, sql := range []string{"update core_tool_calls set status = 'queued', claimed_by = null, claimed_at = null " +
		"where id = $1",
		"select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1')"} {
		calls := b.calls(2)
		call, s, other := calls[0], b.open(calls[0]), b.open(calls[1])
		s.Seen(text("seen, "))
		b.flush(s)
		tx, err := b.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range []string{"set local session_replication_role = replica", sql} {
			args := []any{call}
			if one != sql {
				args = nil
			}
			if _, err := tx.Exec(t.Context(), one, args...); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Seen(text("and not this"))
		other.Seen(text("this. "))
		b.flush(s)
		b.wantShown(call, "seen, ", "")
		b.wantShown(calls[1], "this. ", "")
		n := b.statements.Load()
		s.Seen(text("nor this"))
		b.flush(s)
		if b.statements.Load() != n {
			t.Error("a statement for an attempt that is over")
		}
	}
}

// A frontend may have a call locked for as long as it likes, and keeps nobody else's progress.
func TestACallThatIsLockedIsShownLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	calls := b.calls(2)
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where id = $1 for update", calls[0]); err != nil {
		t.Fatal(err)
	}
	locked, free := b.open(calls[0]), b.open(calls[1])
	locked.Seen(text("one, "))
	free.Seen(text("free"))
	b.flush(free)
	b.wantShown(calls[0], "", "")
	b.wantShown(calls[1], "free", "")
	locked.Seen(text("two"))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.flush(locked)
	b.flush(locked)
	b.wantShown(calls[0], "one, two", "")
}

func TestWhatAnAttemptDidNotWriteIsForgottenWithIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	ctx, end := context.WithCancel(t.Context())
	s := b.writer.Open(ctx, call, 1)
	b.trouble.Store(away)
	s.Seen(text("never seen"))
	b.flush(s)
	end()
	b.trouble.Store(0)
	for try := 0; ; try++ { // the context's end comes to the stream by another goroutine
		n := b.statements.Load()
		b.flush(s)
		if b.statements.Load() == n {
			break
		}
		if try > 1000 {
			t.Fatal("it is still written")
		}
	}
	s.Seen(text("nor this"))
	b.flush(s)
	if got, _, _ := b.shown(call); strings.Contains(got, "nor this") {
		t.Errorf("shown: %q", got)
	}
}

// The next step of the same attempt continues after the first.
func TestTheStepsOfAnAttemptAreShownOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.calls(1)[0]
	for _, step := range []string{"one, ", "two, ", "three"} {
		s := b.open(call)
		s.Seen(text(step))
		b.flush(s)
	}
	b.wantShown(call, "one, two, three", "")
}

func TestNothingIsShownOfAStreamThatIsNone(t *testing.T) {
	t.Parallel()
	var s *progress.Stream
	s.Asked("main", "a")
	s.Seen(text("x"))
	s.Failed("main", "a", provider.Cut)
	s.Flush(t.Context())
}

// BenchmarkAnInterval writes what a thousand answers bring in a quarter of a second, at 50 tokens a second each.
func BenchmarkAnInterval(b *testing.B) {
	db := testdb.Pool(b, testdb.New(b))
	w := progress.NewWriter(db, time.Hour, zap.NewNop())
	var ids []string
	if _, err := db.Exec(b.Context(), "select gem.start_worker('w', 1000, '', '', '1 year')"); err != nil {
		b.Fatal(err)
	}
	if err := db.QueryRow(b.Context(), "with c as (insert into core_tool_calls (tool_name) select 'llm.chat' from "+
		"generate_series(1, 1000) returning id::text) select array_agg(id) from c").Scan(&ids); err != nil {
		b.Fatal(err)
	}
	if _, err := db.Exec(b.Context(), "select gem.claim('w', 1000, true)"); err != nil {
		b.Fatal(err)
	}
	piece := &provider.Event{Kind: provider.TextDelta, Delta: "word "}
	n := 0
	for b.Loop() {
		if n++; n%1900 == 0 {
			b.StopTimer()
			if _, err := db.Exec(b.Context(), "truncate core_tool_progress"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		var last *progress.Stream
		for _, id := range ids {
			last = w.Open(b.Context(), id, 1)
			for range 12 {
				last.Seen(piece)
			}
		}
		last.Flush(b.Context())
	}
}
