package worker

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgtype"
)

// claimed is a call that this worker holds.
type claimed struct {
	store.Attempt
	Tool      string
	Input     json.RawMessage
	ClientKey string
	SessionID string
	CreatedBy string
	Priority  int
	RunAt     time.Time
	seq       int64
	Retries   int   // attempts that ended with a transient error
	Losses    int   // attempts whose worker died
	Cancelled bool  // someone asked for its end
	told      *told // nil when telemetry is off
}

// told is what telemetry wants to know of a call that was claimed.
type told struct {
	traceparent pgtype.Text   // the W3C trace context in which the frontend made the call, if it said one
	waited      time.Duration // how long the call had been due, by Postgres's clock
	claimedAt   time.Time     // by this process's
}

// spent counts the attempts that are gone, of the tool's retry.max_attempts.
func (c *claimed) spent() int { return c.Retries + c.Losses }

// suspect says that the call lost two workers, and may be what killed them: see gem.claim.
func (c *claimed) suspect() bool { return c.Losses >= 2 }

// marks remembers, for each priority, from which run_at on the queue was not yet looked at. A claim that begins there
// need not walk over the index entries of calls that were claimed before, which stay as long as any old snapshot does.
type marks struct {
	from     map[int]time.Time
	fullLook time.Time     // the last one
	every    time.Duration // until the next
}

const (
	// A transaction that inserted before others and commits after them lies behind the mark: the mark keeps this distance.
	markDistance = time.Second
	// What lies behind it all the same is found by a look without marks: every two seconds, or so seldom that it takes a
	// fortieth of the time, where an old snapshot has made it slow.
	fullLookEvery = 2 * time.Second
	fullLookShare = 40
)

// next returns the marks for the next claim as JSON; none for a full look.
func (m *marks) next(now time.Time) (encoded string, full bool) {
	if now.Sub(m.fullLook) >= max(m.every, fullLookEvery) {
		m.fullLook = now
		return "{}", true
	}
	from, err := json.Marshal(m.from)
	if err != nil || len(m.from) == 0 {
		return "{}", false
	}
	return string(from), false
}

// looked says how long a full look took.
func (m *marks) looked(took time.Duration) { m.every = took * fullLookShare }

// forget makes the next claim a full look: some call came back to the place that it had before.
func (m *marks) forget() { m.fullLook = time.Time{} }

func (m *marks) learn(calls []claimed) {
	if m.from == nil {
		m.from = map[int]time.Time{}
	}
	for _, c := range calls {
		switch at := c.RunAt.Add(-markDistance); {
		case at.After(m.from[c.Priority]):
			m.from[c.Priority] = at
		case c.RunAt.Before(m.from[c.Priority]):
			m.forget() // it had come back, and there may be more where it was
		}
	}
}

// claim takes up to limit calls from the queue, in the order in which they are to run.
func (w *Worker) claim(ctx context.Context, limit int) (calls []claimed, err error) {
	// Not ended by the order to stop, which could lose the answer, and with it calls that would count as run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlDeadline)
	defer cancel()
	from, full := w.marks.next(time.Now())
	began := time.Now()
	defer func() { w.telemetry.claim(began, len(calls), err) }()
	also := ""
	if w.telemetry != nil {
		also = ", traceparent, waited"
	}
	rows, err := w.control.Query(ctx, `
		select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, priority, run_at, seq, retries, losses, cancel_requested`+also+`
		from gem.claim($1, $2, $3, $4)`, w.id, limit, !w.holdsSuspect(), from)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		c := claimed{Attempt: store.Attempt{WorkerID: w.id}}
		var key, session, creator pgtype.Text
		into := []any{&c.CallID, &c.Number, &c.Tool, &c.Input, &key, &session, &creator, &c.Priority, &c.RunAt, &c.seq,
			&c.Retries, &c.Losses, &c.Cancelled}
		if w.telemetry != nil {
			c.told = &told{claimedAt: time.Now()}
			into = append(into, &c.told.traceparent, &c.told.waited)
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		c.ClientKey, c.SessionID, c.CreatedBy = key.String, session.String, creator.String
		calls = append(calls, c)
	}
	// Only now are they ours: the rows stream before the statement has ended.
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if full {
		w.marks.looked(time.Since(began))
	}
	w.marks.learn(calls)
	slices.SortFunc(calls, func(a, b claimed) int {
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		if order := a.RunAt.Compare(b.RunAt); order != 0 {
			return order
		}
		return int(a.seq - b.seq)
	})
	return calls, nil
}
