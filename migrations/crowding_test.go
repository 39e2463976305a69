package migrations_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// What a caller asks for beyond a quarter of all slots is background; nobody else's calls are.
func TestWhatACallerAsksForWhileItCrowdsIsBackground(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	levels := func(caller string) string {
		return fmt.Sprint(texts(t, db, "select level || '×' || count(*) from core_tool_calls where created_by is not "+
			"distinct from "+
			caller+" group by level order by level desc"))
	}
	testdb.Exec(t, db, `
		select gem.start_worker('a', 12, '', '', '1 hour'), gem.start_worker('b', 8, '', '', '1 hour'),
			gem.start_worker('dead', 100, '', '', '0 s');
		insert into core_tool_calls (tool_name, created_by, priority) select 'a.b', 'ada', case when n % 2 = 0 then 7
			else -3 end from generate_series(1, 9) n`)
	if got := levels("'ada'"); got != "[7×2 -3×3 -500×2 -503×2]" {
		t.Errorf("the calls of one caller: %s", got)
	}
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'grace')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 9)")
	if got := levels("'grace'") + levels("null"); got != "[0×1][0×9]" {
		t.Errorf("the calls of others: %s", got)
	}
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls where created_by = 'ada'")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada')")
	if got := levels("'ada'"); got != "[7×2 0×1 -3×3 -500×2 -503×2]" {
		t.Errorf("when the others have ended: %s", got)
	}
}

func TestAClaimTakesNoMoreBackgroundCallsThanItMay(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('w', 10, '', '', '1 hour');
		insert into core_tool_calls (tool_name, priority) select 'a.b', p from unnest(array[-600, -500, -500, -499, 0]) p`)
	claim := func(limit, background int) string {
		return fmt.Sprint(texts(t, db, fmt.Sprintf("select c.level::text from gem.claim('w', %d, true, '{}', %d) c order "+
			"by c.level desc", limit, background)))
	}
	for _, c := range []struct {
		limit, background int
		want              string
	}{{1, 9, "[0]"}, {9, 0, "[-499]"}, {9, 1, "[-500]"}, {9, 9, "[-500 -600]"}} {
		if got := claim(c.limit, c.background); got != c.want {
			t.Errorf("a claim of %d, at most %d background: %s, not %s", c.limit, c.background, got, c.want)
		}
	}
}

// Requests of one caller that come at the same moment do not each count without the others.
func TestRequestsAtTheSameMomentCrowdTogether(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "select gem.start_worker('w', 8, '', '', '1 hour')")
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if _, err := request(t, db, "authenticated", "ada",
				"insert into core_tool_calls (tool_name) values ('a.b')"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := number(t, db, "select count(*) from core_tool_calls where level = 0"); n != 2 {
		t.Errorf("%v of the caller's calls run as anyone's, not two", n)
	}
}
