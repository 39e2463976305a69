package watch

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// SessionPage is a conversation, or a part of it: its calls in the order in which they were made, children behind their parents.
type SessionPage struct {
	ID    string        `json:"id"`
	Calls []SessionCall `json:"calls"` // at most 200
	// Total is how many calls the session has, Open how many of them have not ended, and Failed how many failed. AtLeast says that there may be
	// more calls, which are neither counted nor shown: of more than 5,000, those among the newest 20,000 of all sessions are.
	Total   int  `json:"total"`
	Open    int  `json:"open"`
	Failed  int  `json:"failed"`
	AtLeast bool `json:"at_least,omitempty"`
	// Callers are the created_by of its calls, at most 10.
	Callers []string `json:"callers,omitempty"`
	Usage   Usage    `json:"usage"` // of the calls of this page
	// Earlier and Later are the before of the pages beside this one; empty if there is none.
	Earlier string `json:"earlier,omitempty"`
	Later   string `json:"later,omitempty"`
}

// SessionCall is a call of a session.
type SessionCall struct {
	Call
	Depth int    `json:"depth"`           // 0, or one more than that of its parent on this page
	Usage *Usage `json:"usage,omitempty"` // nil if it asked no model
}

// Usage is what requests to models took.
type Usage struct {
	Requests     int   `json:"requests"`
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	Cost         int64 `json:"cost"` // in 10⁻⁹ USD: what providers took, and what is reserved where that is not known
}

const mostOfSession = 200 // calls of a page

// Session returns the last page of a session, or the one that ends before a call: before is an Earlier or a Later. The session that no call has
// is empty.
func Session(ctx context.Context, db DB, id, before string) (*SessionPage, error) {
	upto := int64(math.MaxInt64)
	if before != "" {
		var err error
		if upto, err = strconv.ParseInt(before, 10, 64); err != nil || upto < 0 {
			return nil, errCursor
		}
	}
	if !valid(id) {
		return &SessionPage{ID: id}, nil
	}
	p, err := readSession(ctx, db, id, upto)
	if err != nil {
		return nil, fmt.Errorf("read the session: %w", err)
	}
	return p, nil
}

func readSession(ctx context.Context, db DB, id string, upto int64) (*SessionPage, error) {
	p := &SessionPage{ID: id, Calls: []SessionCall{}}
	ids, all, err := callsOfSession(ctx, db, id)
	if err == nil && !all {
		p.AtLeast = true
		rows, qerr := db.Query(ctx, `select n.call_id::text from (select j.call_id from gem.journal j where j.seq = 1 order by j.at desc, j.call_id desc limit $2::int) n
			cross join lateral (select from gem.calls c where c.id = n.call_id and c.session_id = $1::text offset 0) c`, id, stretch)
		if err = qerr; err == nil {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
	}
	if err != nil {
		return nil, err
	}
	// The page's calls are the last below the cursor, and those of the next page begin behind it.
	var seqs []int64
	err = db.QueryRow(ctx, `
		select count(*), count(*) filter (where c.status in ('queued', 'running', 'waiting')), count(*) filter (where c.status = 'failed'),
			coalesce((array_agg(distinct c.created_by) filter (where c.created_by is not null))[:10], '{}'), coalesce(array_agg(c.seq order by c.seq), '{}')
		from unnest($1::text[]::uuid[]) u (id) cross join lateral (select c.status, c.created_by, c.seq from gem.calls c where c.id = u.id offset 0) c`, ids).
		Scan(&p.Total, &p.Open, &p.Failed, &p.Callers, &seqs)
	if err != nil {
		return nil, err
	}
	end, _ := slices.BinarySearch(seqs, upto)
	start := max(end-mostOfSession, 0)
	if start > 0 {
		p.Earlier = strconv.FormatInt(seqs[start], 10)
	}
	if end < len(seqs) {
		later := int64(math.MaxInt64)
		if end+mostOfSession < len(seqs) {
			later = seqs[end+mostOfSession]
		}
		p.Later = strconv.FormatInt(later, 10)
	}
	if start == end {
		return p, nil
	}
	rows, err := db.Query(ctx, "select "+columns+` from unnest($1::text[]::uuid[]) u (id) cross join lateral (
		select * from gem.calls c where c.id = u.id and c.seq between $2 and $3 offset 0) c order by c.seq`, ids, seqs[start], seqs[end-1])
	calls, err := collect(rows, err, "read its calls")
	if err == nil {
		p.Calls = nested(calls)
		err = p.addUsage(ctx, db)
	}
	return p, err
}

// nested puts calls behind their parents, as far as these are among them.
func nested(calls []Call) []SessionCall {
	before, below := map[string]bool{}, map[string][]Call{} // a call may name itself as its parent, or a later one
	for _, c := range calls {
		parent := c.ParentID
		if !before[parent] {
			parent = ""
		}
		below[parent] = append(below[parent], c)
		before[c.ID] = true
	}
	all := make([]SessionCall, 0, len(calls))
	var add func(parent string, depth int)
	add = func(parent string, depth int) {
		for _, c := range below[parent] {
			all = append(all, SessionCall{Call: c, Depth: depth})
			add(c.ID, depth+1)
		}
	}
	add("", 0)
	return all
}

func (p *SessionPage) addUsage(ctx context.Context, db DB) error {
	ids, places := make([]string, len(p.Calls)), map[string]int{}
	for i, c := range p.Calls {
		ids[i], places[c.ID] = c.ID, i
	}
	rows, err := db.Query(ctx, `select q.call_id::text, count(*), coalesce(sum(q.input_tokens), 0)::bigint, coalesce(sum(q.output_tokens), 0)::bigint,
			sum(coalesce(q.cost, q.reserved))::bigint
		from unnest($1::text[]::uuid[]) u (id) cross join lateral (select * from gem.model_requests q where q.call_id = u.id offset 0) q group by 1`, ids)
	if err != nil {
		return err
	}
	var id string
	var u Usage
	_, err = pgx.ForEachRow(rows, []any{&id, &u.Requests, &u.InputTokens, &u.OutputTokens, &u.Cost}, func() error {
		p.Calls[places[id]].Usage = &Usage{u.Requests, u.InputTokens, u.OutputTokens, u.Cost}
		p.Usage.Requests += u.Requests
		p.Usage.InputTokens += u.InputTokens
		p.Usage.OutputTokens += u.OutputTokens
		p.Usage.Cost += u.Cost
		return nil
	})
	return err
}
