//go:build !windows

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// frontends is the number of connections that insert at once.
const frontends = 4

// insert inserts the plan in SQL as frontends do, spread evenly over the duration of the run. It inserts some calls
// alone and some together, and cancels some soon after. It repeats an insert without an answer, which is safe because
// it sets the ids of the calls.
func (h *harness) insert(ctx context.Context) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	batches := make(chan []call)
	var all sync.WaitGroup
	for range frontends {
		all.Go(func() {
			for batch := range batches {
				if err := h.untilAnswered(ctx, func(ctx context.Context) error { return h.insertBatch(ctx, batch) }); err != nil {
					giveUp(fmt.Errorf("insert calls: %w", err))
				}
				for _, c := range batch {
					if c.Cancelled {
						all.Go(func() { h.cancel(ctx, c) })
					}
				}
			}
		})
	}
	r, began := stream(h.Seed, insertStream), time.Now()
	for done := 0; done < len(h.plan) && ctx.Err() == nil; {
		size := min(1+r.IntN(5), len(h.plan)-done)
		batches <- h.plan[done : done+size]
		done += size
		due := began.Add(h.Duration * time.Duration(done) / time.Duration(len(h.plan)))
		sleep(ctx, time.Until(due))
	}
	close(batches)
	all.Wait()
	return context.Cause(ctx)
}

func (h *harness) insertBatch(ctx context.Context, batch []call) error {
	var ids, tools, inputs, keys, sessions []string
	var priorities []int
	var delays []float64
	for _, c := range batch {
		ids, tools, keys = append(ids, c.ID), append(tools, c.Tool), append(keys, c.ClientKey)
		inputs, sessions = append(inputs, c.input()), append(sessions, c.Session)
		priorities, delays = append(priorities, c.Priority), append(delays, c.Delay.Seconds())
	}
	_, err := h.server.pool.Exec(ctx, `
		insert into core_tool_calls (id, tool_name, input, idempotency_key, priority, run_at, session_id)
		select id, tool, input, nullif(key, ''), priority, clock_timestamp() + make_interval(secs => delay),
			nullif(session, '')
		from unnest($1::uuid[], $2::text[], $3::jsonb[], $4::text[], $5::int[], $6::float8[], $7::text[]) c (id, tool, input,
			key, priority, delay, session)
		on conflict (id) do nothing`, ids, tools, inputs, keys, priorities, delays, sessions)
	return err
}

// rightAnswer is the answer that the questions of flows expect.
const rightAnswer = "yes"

// answer answers the questions of flows, and approves and denies calls, until ctx ends. It does so late, wrongly,
// twice, and with a second answer that differs. It lets some approvals expire.
func (h *harness) answer(ctx context.Context) {
	r := stream(h.Seed, answerStream)
	for sleep(ctx, 50*time.Millisecond) {
		rows, err := h.server.pool.Query(ctx, "select id::text, tool from open_questions")
		if err != nil {
			continue // Postgres is away
		}
		open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Tool string }])
		if err != nil {
			continue
		}
		for _, q := range open {
			id, right, wrong := q.ID, encode(rightAnswer), `"no"`
			if q.Tool == "wait.approval" {
				if strings.HasSuffix(id, "0") {
					continue
				}
				if right, wrong = `{"approved": true}`, `{"approved": false, "reason": "too big"}`; r.IntN(3) == 0 {
					right, wrong = wrong, right
				}
			}
			say := func(answer string) (code string) {
				_, err := h.server.pool.Exec(ctx, "select answer_tool_call($1, $2)", id, answer)
				var pgErr *pgconn.PgError
				if errors.As(err, &pgErr) {
					code = pgErr.Code
				} else if err != nil {
					code = "?" // unknown
				}
				return code
			}
			if r.IntN(3) == 0 {
				continue // answered late
			}
			if code := say("7"); code == "" {
				h.fault("question %s took a number", id)
			}
			if r.IntN(2) == 0 {
				continue // the right answer comes later
			}
			first := say(right)
			h.count("answer: " + first)
			if first != "" {
				continue // the answer may not have arrived
			}
			if again := say(right); strings.HasPrefix(again, "PT") {
				h.fault("question %s refused the same answer: %s", id, again)
			}
			if other := say(wrong); other == "" {
				h.fault("question %s took another answer", id)
			}
		}
	}
}

// cancel requests the end of a call.
func (h *harness) cancel(ctx context.Context, c call) {
	if !sleep(ctx, c.After) {
		return
	}
	var came string
	err := h.untilAnswered(ctx, func(ctx context.Context) error {
		return h.server.pool.QueryRow(ctx, "select public.cancel_tool_call($1)", c.ID).Scan(&came)
	})
	if err != nil {
		h.fault("cancel call %s: %v", c.ID, err)
		return
	}
	h.count("cancel: " + came)
}

// untilAnswered repeats a statement for as long as Postgres is away.
func (h *harness) untilAnswered(ctx context.Context, statement func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := statement(try)
		cancel()
		if err == nil || isRefusal(err) || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}
