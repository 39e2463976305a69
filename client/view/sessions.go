package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// sessionCalls is the number of calls on a page of a session.
const sessionCalls = 50

// SessionPage is a conversation, or a part of it: its calls in the order of their creation, children after their
// parents.
type SessionPage struct {
	ID    string        `json:"id"`
	Calls []SessionCall `json:"calls"` // at most 50
	// Total is the number of calls in the session, and Open how many of them have not ended. Failed, Refused and
	// Cancelled count as in [Totals]. AtLeast means that there may be more calls, which are neither counted nor
	// shown: for a session with more than 5,000 calls, only those among the newest 20,000 calls of all sessions are
	// read.
	Total     int  `json:"total"`
	Open      int  `json:"open"`
	Failed    int  `json:"failed"`
	Refused   int  `json:"refused"`
	Cancelled int  `json:"cancelled"`
	AtLeast   bool `json:"at_least,omitempty"`
	// Callers are the created_by of its calls, at most 10.
	Callers []string  `json:"callers,omitempty"`
	First   time.Time `json:"first"` // when its first call was made
	Last    time.Time `json:"last"`  // when its last call was made
	// Turns are the turns of this page's calls and of the agents whose calls are on it. Usage is the sum of the
	// former.
	Turns []Turn `json:"turns,omitempty"`
	Usage Usage  `json:"usage"`
	// Earlier, Later and End are the first calls of the previous, the next and the last page; empty if there is no
	// such page, or if it is this one.
	Earlier string `json:"earlier,omitempty"`
	Later   string `json:"later,omitempty"`
	End     string `json:"end,omitempty"`
	// Above are the calls of earlier pages that this page's first call is below, the outermost first. GoesOn are
	// those for the next page.
	Above  []Call   `json:"-"`
	GoesOn []string `json:"-"`
}

// SessionCall is a call of a session.
type SessionCall struct {
	Call
	Depth int    `json:"depth"`           // 0, or one more than that of its parent on this page
	Usage *Usage `json:"usage,omitempty"` // nil if it asked no model
}

// Usage is the usage of requests to models.
type Usage struct {
	Requests     int   `json:"requests"`
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	Cost         int64 `json:"cost"` // in 10⁻⁹ USD, as providers reported it, or as reserved if it is unknown
}

func (u *Usage) add(o Usage) {
	u.Requests += o.Requests
	u.InputTokens += o.InputTokens
	u.OutputTokens += o.OutputTokens
	u.Cost += o.Cost
}

// ErrNoPage means that the session has no call with the given id, or that no page can begin with it.
var ErrNoPage = errors.New("the session has no call with this id that could begin a page")

// Session returns the page of a session that begins with a call; from empty means the first page. It returns an empty
// page for a session without calls.
func Session(ctx context.Context, db DB, id, from string) (*SessionPage, error) {
	p := &SessionPage{ID: id, Calls: []SessionCall{}}
	if !valid(id) {
		return p, nil
	}
	order, err := p.order(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read the calls of a session: %w", err)
	}
	start := 0
	if from != "" {
		if start = slices.IndexFunc(order, func(c *sessionNode) bool { return c.id == from }); start < 0 {
			return nil, ErrNoPage
		}
	}
	end := min(start+sessionCalls, len(order))
	if start > 0 {
		p.Earlier = order[max(0, start-sessionCalls)].id
	}
	if end < len(order) {
		for c := order[end].above; c != nil; c = c.above {
			p.GoesOn = append(p.GoesOn, c.id)
		}
		p.Later, p.End = order[end].id, order[(len(order)-1)/sessionCalls*sessionCalls].id
	}
	return p, p.read(ctx, db, order[start:end])
}

// sessionNode is the part of a session's call that the order needs.
type sessionNode struct {
	id, parent string
	above      *sessionNode
	children   []*sessionNode
}

// order reads the calls of the session, counts them, and puts children after their parents.
func (p *SessionPage) order(ctx context.Context, db DB) (order []*sessionNode, err error) {
	ids, all, err := callsOfSession(ctx, db, p.ID)
	if err == nil && !all {
		p.AtLeast = true
		rows, failed := db.Query(ctx, `select n.call_id::text
			from (select j.call_id from gem.journal j where j.seq = 1 order by j.at desc, j.call_id desc limit $2::int) n
			cross join lateral (select from gem.calls c where c.id = n.call_id and c.session_id = $1::text offset 0) c`, p.ID,
			stretch)
		if err = failed; err == nil {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
	}
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, `select c.id, c.parent_call_id, c.status, c.error_code, c.created_by, c.created_at
		from unnest($1::text[]::uuid[]) u (id)
		cross join lateral (select c.id::text, c.parent_call_id::text, c.status, c.error_code, c.created_by, c.created_at,
			c.seq from gem.calls c where c.id = u.id offset 0) c
		order by c.seq`, ids)
	if err != nil {
		return nil, err
	}
	byID := map[string]*sessionNode{}
	var roots []*sessionNode
	var n sessionNode
	var status, code, by string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&n.id, (*zeronull.Text)(&n.parent), &status, (*zeronull.Text)(&code),
		(*zeronull.Text)(&by), &at}, func() error {
		c := n
		byID[c.id] = &c
		p.count(receipts.Ended(status, receipts.Code(code)), by, at)
		// A frontend may name any call as the parent, even a later one or the call itself.
		if above := byID[c.parent]; above != nil && above != &c {
			c.above, above.children = above, append(above.children, &c)
		} else {
			roots = append(roots, &c)
		}
		return nil
	})
	var walk func([]*sessionNode)
	walk = func(level []*sessionNode) {
		for _, c := range level {
			order = append(order, c)
			walk(c.children)
		}
	}
	walk(roots)
	return order, err
}

func (p *SessionPage) count(state, by string, at time.Time) {
	p.Total++
	switch state {
	case "succeeded", "not_configured":
	case "failed":
		p.Failed++
	case "refused":
		p.Refused++
	case "cancelled":
		p.Cancelled++
	default:
		p.Open++
	}
	if by != "" && len(p.Callers) < 10 && !slices.Contains(p.Callers, by) {
		p.Callers = append(p.Callers, by)
	}
	if p.First.IsZero() || at.Before(p.First) {
		p.First = at
	}
	if at.After(p.Last) {
		p.Last = at
	}
}

// read reads the calls of the page, and the requests to models of the calls and their parents.
func (p *SessionPage) read(ctx context.Context, db DB, page []*sessionNode) error {
	if len(page) == 0 {
		return nil
	}
	var ids, above, asking []string
	for c := page[0].above; c != nil; c = c.above {
		above = append([]string{c.id}, above...)
	}
	asking = append(asking, above...)
	for _, c := range page {
		ids = append(ids, c.id)
		if c.parent != "" && !slices.Contains(asking, c.parent) {
			asking = append(asking, c.parent)
		}
	}
	rows, err := db.Query(ctx, "select "+columns+" from gem.calls c where c.id = any ($1::text[]::uuid[])",
		append(slices.Clone(above), ids...))
	calls, err := collect(rows, err, "read the calls of a session")
	if err != nil {
		return err
	}
	byID := map[string]Call{}
	for _, c := range calls {
		byID[c.ID] = c
	}
	for _, id := range above {
		p.Above = append(p.Above, byID[id])
	}
	if p.Turns, err = Turns(ctx, db, append(asking, ids...)); err != nil {
		return err
	}
	usage := map[string]*Usage{}
	for _, t := range p.Turns {
		if usage[t.CallID] == nil {
			usage[t.CallID] = &Usage{}
		}
		usage[t.CallID].add(t.Usage)
	}
	depths := map[string]int{}
	for _, n := range page {
		c, there := byID[n.id]
		if !there {
			continue // it was pruned just now
		}
		if above, there := depths[n.parent]; there {
			depths[n.id] = above + 1
		} else {
			depths[n.id] = 0
		}
		p.Calls = append(p.Calls, SessionCall{Call: c, Depth: depths[n.id], Usage: usage[n.id]})
		if usage[n.id] != nil {
			p.Usage.add(*usage[n.id])
		}
	}
	return nil
}
