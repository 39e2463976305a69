//go:build !windows

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// recovery measures the time from a kill -9 until the calls of the dead worker run elsewhere. It ends with the event
// after `lost` in the journal of the last of these calls, which is a claim or the call's end.
//
// The limit applies to a kill only if, from the kill on, Postgres answered and at least one other worker had heartbeats
// at most three seconds apart. Only such a worker can take over the calls. The killed worker must also have had
// heartbeats until the kill, otherwise it was dead before. The heartbeats are those in core_workers.
type recovery struct {
	mu      sync.Mutex
	kills   []killing
	beats   map[string][]time.Time // by worker id
	answers []time.Time            // when Postgres answered a query for the heartbeats
}

type killing struct {
	name string
	at   time.Time
}

const (
	beatGap   = 3 * time.Second // two intervals of a heartbeat
	answerGap = time.Second
	askEvery  = 200 * time.Millisecond
)

func (r *recovery) killed(name string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kills = append(r.kills, killing{name, at})
}

// watch records the heartbeats of the workers until ctx ends.
func (r *recovery) watch(ctx context.Context, s *server) {
	for sleep(ctx, askEvery) {
		asking, cancel := context.WithTimeout(ctx, answerGap)
		var workers []string
		var beats []time.Time
		var now time.Time
		err := s.pool.QueryRow(asking, `
			select coalesce(array_agg(worker_id), '{}'), coalesce(array_agg(heartbeat_at), '{}'), clock_timestamp()
			from core_workers where stopped_at is null and alive_until > clock_timestamp()`).Scan(&workers, &beats, &now)
		cancel()
		if err == nil {
			r.note(now, workers, beats)
		}
	}
}

func (r *recovery) note(now time.Time, workers []string, beats []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, now)
	for i, w := range workers {
		if known := r.beats[w]; len(known) == 0 || !known[len(known)-1].Equal(beats[i]) {
			r.beats[w] = append(known, beats[i])
		}
	}
}

// times has the measured times of a run.
type times struct {
	kills    int           // kills that left calls behind
	counted  int           // kills to which the limit applies
	median   time.Duration // of the counted kills
	worst    time.Duration // of the counted kills
	worstAll time.Duration // of all kills, whatever else failed at the time
	late     []string      // counted kills that took longer than the limit
}

func (t times) String() string {
	if t.kills == 0 {
		return "no kill left calls behind"
	}
	said := fmt.Sprintf("%d kills left calls behind, which ran again within %s; %d of them while Postgres answered and "+
		"another worker beat",
		t.kills, short(t.worstAll), t.counted)
	if t.counted == 0 {
		return said
	}
	return said + fmt.Sprintf(": median %s, worst %s", short(t.median), short(t.worst))
}

// measure computes the times after the run.
func (r *recovery) measure(ctx context.Context, s *server, limit time.Duration) (times, error) {
	rows, err := s.pool.Query(ctx, `
		select e.data ->> 'lost_worker', e.at, coalesce(n.at, clock_timestamp()), e.call_id::text
		from core_tool_events e left join core_tool_events n on n.call_id = e.call_id and n.seq = e.seq + 1
			where e.event = 'lost'`)
	if err != nil {
		return times{}, err
	}
	defer rows.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	last := make([]time.Time, len(r.kills)) // when the last call of each kill was taken over
	which := make([]string, len(r.kills))
	var worker, call string
	var lostAt, again time.Time
	for rows.Next() {
		if err := rows.Scan(&worker, &lostAt, &again, &call); err != nil {
			return times{}, err
		}
		for i, k := range r.kills {
			if strings.HasPrefix(worker, k.name+"-") && lostAt.After(k.at) && again.After(last[i]) {
				last[i], which[i] = again, call
			}
		}
	}
	if err := rows.Err(); err != nil {
		return times{}, err
	}

	var t times
	var took []time.Duration
	for i, k := range r.kills {
		if last[i].IsZero() {
			continue
		}
		t.kills++
		d := last[i].Sub(k.at)
		t.worstAll = max(t.worstAll, d)
		until := last[i]
		if limit > 0 && d > limit {
			until = k.at.Add(limit)
		}
		if !r.counts(k, until) {
			continue
		}
		took = append(took, d)
		if limit > 0 && d > limit {
			var journal string
			if err := s.pool.QueryRow(ctx, `
				select string_agg(format('%s %s %s', to_char(e.at, 'HH24:MI:SS.MS'), e.event, e.worker_id), ', ' order by e.seq)
				from core_tool_events e where e.call_id = $1`, which[i]).Scan(&journal); err != nil {
				return times{}, err
			}
			t.late = append(t.late, fmt.Sprintf("%s was killed at %s, and its call %s ran again only %s later: %s", k.name,
				k.at.UTC().Format("15:04:05.000"), which[i], d.Round(time.Millisecond), journal))
		}
	}
	slices.Sort(took)
	if t.counted = len(took); t.counted > 0 {
		t.median, t.worst = took[len(took)/2], took[len(took)-1]
	}
	return t, nil
}

// counts reports whether a worker could have taken over the calls of the kill.
func (r *recovery) counts(k killing, until time.Time) bool {
	if !unbroken(r.answers, k.at, until, answerGap) {
		return false
	}
	own, others := false, false
	for worker, beats := range r.beats {
		if strings.HasPrefix(worker, k.name+"-") {
			own = unbroken(beats, k.at, k.at, beatGap)
		} else {
			others = others || unbroken(beats, k.at, until, beatGap)
		}
	}
	return own && others
}

// unbroken reports whether the sorted times cover the period between from and to without a gap longer than gap.
func unbroken(all []time.Time, from, to time.Time, gap time.Duration) bool {
	var last time.Time
	for _, at := range all {
		if at.After(from) && at.Sub(last) > gap {
			return false
		}
		last = at
		if at.After(to) {
			return true
		}
	}
	return to.Sub(last) <= gap && !last.IsZero()
}
