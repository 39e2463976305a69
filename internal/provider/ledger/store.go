package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs of the gem functions.
const (
	notHeld = "GM001"
	tooMany = "GM005"
)

// Send takes the reserve for the first available target from every budget that applies, and writes the row of the
// request, in one round trip. If the result has no target, nothing may be sent. db must not be a transaction that stays
// open.
func (b Begin) Send(ctx context.Context, db handlers.DB) (Begun, error) {
	targets, err := encode(b.Targets)
	if err != nil {
		return Begun{}, err
	}
	row := db.QueryRow(ctx, "select 0, id, n, target, skipped, exceeded, wait_ms, began from gem.llm_begin($1, $2, $3, "+
		"$4, $5, $6, $7)", b.CallID, b.Attempt, b.Label, b.Route, b.RoutesVersion, b.MaxCost, targets)
	_, begun, err := scanBegun(row)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == notHeld:
		return begun, ErrNotHeld
	case errors.As(err, &pgErr) && pgErr.Code == tooMany:
		return begun, ErrTooMany
	case err != nil:
		return begun, fmt.Errorf("begin a request to a model: %w", err)
	}
	return begun, nil
}

// Item encodes the request for [SendAll]. It is empty if the request must be sent alone: an earlier attempt of its call
// may have left requests.
func (b Begin) Item() (string, error) {
	if b.Attempt != 1 {
		return "", nil
	}
	targets, err := encode(b.Targets)
	if err != nil {
		return "", err
	}
	item, err := json.Marshal(struct {
		Call    string          `json:"call"`
		Label   string          `json:"label"`
		Route   string          `json:"route"`
		Version string          `json:"version"`
		MaxCost *units          `json:"max_cost"`
		Targets json.RawMessage `json:"targets"`
	}{b.CallID, b.Label, b.Route, b.RoutesVersion, (*units)(b.MaxCost), targets})
	return string(item), err
}

// SendAll begins requests in one statement, in their order. A request without a result must be sent alone.
func SendAll(ctx context.Context, db handlers.DB, items []string) ([]*Begun, error) {
	rows, err := db.Query(ctx, "select * from gem.llm_begin_all($1)", "["+strings.Join(items, ",")+"]")
	if err != nil {
		return nil, fmt.Errorf("begin requests to models: %w", err)
	}
	defer rows.Close()
	all := make([]*Begun, len(items))
	for rows.Next() {
		place, begun, err := scanBegun(rows)
		if err != nil {
			return nil, err
		}
		all[place] = &begun
	}
	return all, rows.Err()
}

func scanBegun(row pgx.Row) (place int, begun Begun, err error) {
	var (
		id, wait              *int64
		n                     *int
		target                *string
		skipped, exceededJSON []byte
	)
	if err := row.Scan(&place, &id, &n, &target, &skipped, &exceededJSON, &wait, &begun.At); err != nil {
		return place, begun, err
	}
	if err := json.Unmarshal(skipped, &begun.Skipped); err != nil {
		return place, begun, err
	}
	if begun.Exceeded, err = decodeExceeded(exceededJSON); err != nil {
		return place, begun, err
	}
	begun.ID, begun.N, begun.Target = value(id), value(n), value(target)
	begun.Wait = milliseconds(wait)
	return place, begun, nil
}

// units is an amount in the form of the SQL functions.
type units int64

// encode encodes the targets in the form that gem.llm_begin reads.
func encode(targets []Target) ([]byte, error) {
	type budget struct {
		Name    string `json:"name"`
		Subject string `json:"subject"`
		Period  Period `json:"period"`
		Limit   units  `json:"limit"`
	}
	type target struct {
		Target
		Reserve units    `json:"reserve"`
		Budgets []budget `json:"budgets"`
	}
	list := make([]target, len(targets))
	for i, a := range targets {
		list[i] = target{Target: a, Reserve: units(a.Reserve), Budgets: make([]budget, len(a.Budgets))}
		for j, b := range a.Budgets {
			list[i].Budgets[j] = budget{b.Name, b.Subject, b.Period, units(b.Limit)}
		}
	}
	return json.Marshal(list)
}

func decodeExceeded(data []byte) ([]Exceeded, error) {
	var list []struct {
		Budget   string    `json:"budget"`
		Limit    units     `json:"limit_usd"`
		Spent    units     `json:"spent_usd"`
		Reserved units     `json:"reserved_usd"`
		ResetsAt time.Time `json:"resets_at"`
	}
	err := json.Unmarshal(data, &list)
	var all []Exceeded
	for _, e := range list {
		all = append(all, Exceeded{e.Budget, provider.Money(e.Limit), provider.Money(e.Spent), provider.Money(e.Reserved),
			e.ResetsAt.UTC()})
	}
	return all, err
}

// Settle ends the request, and reports whether this was its first end. Only the first end counts. If the attempt no
// longer holds its call, the request ends as lost, and its reserve counts as spent. In a transaction it must be the
// only end, and come before other statements that lock rows. The transaction should be short: until it ends, no other
// request begins under the same budgets.
func (e End) Settle(ctx context.Context, db handlers.DB) (settled bool, err error) {
	source, usage := (*string)(nil), [5]*int64{}
	if e.Usage.Known || e.Estimated {
		source = new("provider")
		if e.Estimated {
			source = new("estimated")
		}
		usage = [5]*int64{&e.Usage.Input, &e.Usage.Output, &e.Usage.CacheRead, &e.Usage.CacheWrite, &e.Usage.Reasoning}
	}
	var reported []byte
	if e.Reported != nil {
		if reported, err = json.Marshal(e.Reported); err != nil {
			return false, err
		}
	}
	var status *string
	err = db.QueryRow(ctx, `select gem.llm_end($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
		$18, $19, $20, $21)`,
		e.ID, string(e.Status), null(string(e.Kind)), null(e.HTTPStatus), null(e.RequestID), null(e.Model), usage[0],
		usage[1], usage[2], usage[3], usage[4],
		source, (*int64)(e.Cost), (*int64)(e.ProviderCost), null(ceiling(e.FirstContent)), ceiling(e.Took),
		ceiling(e.Cooldown),
		null(e.CooldownWhy), e.failed(), reported, e.Began).Scan(&status)
	if err != nil {
		return false, fmt.Errorf("end a request to a model: %w", err)
	}
	return status != nil && *status == string(e.Status), nil
}

// failed reports whether the provider failed in a way that counts, because it may be down.
func (e End) failed() bool {
	return e.Cooldown == 0 && (e.Status == Failed || e.Status == Cut) && provider.Judge(e.Kind).Counted
}

// Requests returns all requests of a call, in their order.
func Requests(ctx context.Context, db handlers.DB, callID string) ([]Request, error) {
	rows, _ := db.Query(ctx, `
		select id, call_id::text, attempt, n, label, tool_name, route, routes_version, target, provider, model,
			coalesce(created_by, ''), coalesce(session_id, ''),
			status, at, ended_at, reserved, cost, provider_cost, coalesce(input_tokens, 0), coalesce(output_tokens, 0),
				coalesce(cache_read_tokens, 0),
			coalesce(cache_write_tokens, 0), coalesce(reasoning_tokens, 0), coalesce(usage_source, ''), coalesce(http_status, 0),
				coalesce(request_id, ''),
			coalesce(answered, ''), coalesce(error_kind, ''), first_content_ms, ms, reported
		from public.core_llm_requests where call_id = $1 order by n`, callID)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Request, err error) {
		var (
			ended     *time.Time
			source    string
			first, ms *int64
		)
		err = row.Scan(&r.ID, &r.CallID, &r.Attempt, &r.N, &r.Label, &r.Tool, &r.Route, &r.RoutesVersion, &r.Target,
			&r.Provider,
			&r.Model, &r.CreatedBy, &r.SessionID,
			&r.Status, &r.At, &ended, &r.Reserved, &r.Cost, &r.ProviderCost, &r.Usage.Input, &r.Usage.Output, &r.Usage.CacheRead,
			&r.Usage.CacheWrite, &r.Usage.Reasoning, &source, &r.HTTPStatus, &r.RequestID,
			&r.Answered, &r.Kind, &first, &ms, &r.Reported)
		r.EndedAt, r.FirstContent, r.Took = value(ended), milliseconds(first), milliseconds(ms)
		r.Usage.Known, r.Estimated = source == "provider", source == "estimated"
		return r, err
	})
}

// Entry returns the receipt's record of the request. A request that is still sent belongs to a lost attempt.
func (r Request) Entry() receipts.ModelRequest {
	e := receipts.ModelRequest{Request: r.N, Target: r.Target, Model: cmp.Or(r.Answered, r.Model), RequestID: r.RequestID,
		InputTokens:  r.Usage.Input,
		OutputTokens: r.Usage.Output, Outcome: string(r.Status), Bounded: r.Reported != nil,
		FirstContentMS: r.FirstContent.Milliseconds(), MS: r.Took.Milliseconds()}
	if r.Status == Sent {
		e.Outcome = string(Lost)
	}
	if r.Cost != nil {
		e.CostUSD = new(r.Cost.String())
	}
	return e
}

// Sum adds up requests. Without requests the cost is 0, and known.
func Sum(requests []Request) (t Total) {
	if len(requests) == 0 {
		t.Cost = new(provider.Money)
	}
	for _, r := range requests {
		t.Requests++
		if r.Cost == nil {
			t.Unknown++
			continue
		}
		t.Cost = new(*cmp.Or(t.Cost, new(provider.Money)) + *r.Cost)
	}
	return t
}

// UsageByDay returns the usage by day, route and target, the newest day first. It does not include pruned requests.
func UsageByDay(ctx context.Context, db handlers.DB, f Filter) ([]DayUsage, error) {
	day := func(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }
	var to *time.Time
	if !f.To.IsZero() {
		to = new(day(f.To).AddDate(0, 0, 1))
	}
	rows, err := db.Query(ctx, `
		select to_char(at at time zone 'UTC', 'YYYY-MM-DD'), route, target, count(*), sum(cost)::bigint,
			count(*) filter (where cost is null),
			coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
				coalesce(sum(cache_read_tokens), 0)::bigint,
			coalesce(sum(cache_write_tokens), 0)::bigint, coalesce(sum(reasoning_tokens), 0)::bigint
		from public.core_llm_requests
		where at >= $1 and ($2::timestamptz is null or at < $2) and ($3::text is null or created_by = $3)
		group by 1, 2, 3 order by 1 desc, 2, 3`, day(f.From), to, f.CreatedBy)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u DayUsage, err error) {
		err = row.Scan(&u.Day, &u.Route, &u.Target, &u.Requests, &u.Cost, &u.Unknown, &u.Input, &u.Output, &u.CacheRead,
			&u.CacheWrite, &u.Reasoning)
		return u, err
	})
}

// Targets returns the known state of the targets with these names, in their order.
func Targets(ctx context.Context, db handlers.DB, names ...string) ([]TargetState, error) {
	rows, _ := db.Query(ctx, `
		select target, cooldown_until, coalesce(why, ''), samples, first_content_ms::bigint, coalesce(tokens_per_s, 0),
			coalesce(output_tokens, 0),
			coalesce(input_ratio, 1)
		from gem.llm_target_states($1)`, names)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s TargetState, err error) {
		var until *time.Time
		var first *int64
		err = row.Scan(&s.Target, &until, &s.Why, &s.Samples, &first, &s.TokensPerSec, &s.MeanOutput, &s.InputRatio)
		s.CooldownUntil, s.FirstContent = value(until), milliseconds(first)
		return s, err
	})
}

// UnderWay returns how many requests of each target were sent and have not ended, including requests of lost workers
// lost.
func UnderWay(ctx context.Context, db handlers.DB) (map[string]int, error) {
	rows, err := db.Query(ctx, "select target, count(*) from public.core_llm_requests where status = 'sent' group by "+
		"target")
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	var target string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&target, &n}, func() error { counts[target] = n; return nil })
	return counts, err
}

// RecordVersion records the routes that a worker is about to run with. If other routes were recorded under that
// version, it returns those, and the worker must not run.
func RecordVersion(ctx context.Context, db handlers.DB, version, sha256 string,
	routes json.RawMessage) (others json.RawMessage, err error) {
	var recorded string
	var stored json.RawMessage
	err = db.QueryRow(ctx, "select sha256, routes from gem.record_routes($1, $2, $3)", version, sha256,
		routes).Scan(&recorded, &stored)
	switch {
	case err != nil:
		return nil, fmt.Errorf("record the version of the routes: %w", err)
	case recorded == sha256:
		return nil, nil
	}
	return stored, nil
}

// ceiling returns the duration in milliseconds, rounded up.
func ceiling(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func milliseconds(ms *int64) time.Duration { return time.Duration(value(ms)) * time.Millisecond }

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// null returns nil for nothing.
func null[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
