package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// A parked call ends only the waits that asked for it. A later wait is notified too.
func TestAWaitMayEndWhenItsCallIsParked(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	inBothWays(t, url, func(t *testing.T, w *client.Waiter) {
		ids := calls(t, db, 3, true)
		end := begin(t, w, ids[:1])
		parked := make(chan error)
		for _, id := range ids {
			go func() { parked <- w.EndedOrParked(t.Context(), id) }()
		}
		testdb.Eventually(t, "three waits", func() bool { return w.Waits() == 3 })
		testdb.Exec(t, db, "begin; set local session_replication_role = replica; update core_tool_calls set status = "+
			"'waiting', "+
			"waits_for = 'call' where id = '"+ids[0]+"'; "+
			"update core_tool_calls set status = 'waiting', waits_for = 'answer' where id = '"+ids[1]+"'; "+
			"update core_tool_calls set status = 'waiting', waits_for = 'time' where id = '"+ids[2]+"'; commit")
		for range 2 {
			if err := <-parked; err != nil {
				t.Error(err)
			}
		}
		if err := w.EndedOrParked(t.Context(), ids[0]); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := w.Ended(ctx, ids[0]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for the end: %v", err)
		}
		testdb.Exec(t, db, "select cancel_tool_call(id) from unnest($1::uuid[]) id", []string{ids[0], ids[2]})
		end()
		if err := <-parked; err != nil {
			t.Error(err)
		}
		testdb.Eventually(t, "no wait is left", func() bool { return w.Waits() == 0 })
	})
}
