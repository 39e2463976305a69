package view

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

const (
	defaultCalls = 50    // on a page
	stretch      = 20000 // the most calls that a list reads if no index fits
	few          = 5000  // up to this many calls of a session or a state are all read and sorted
)

// now is SQL for the time, read once per statement.
const now = "(select gem.now())"

// Calls lists the calls that match a filter. Its error is a [*FilterError] if the filter is invalid.
func Calls(ctx context.Context, db DB, f Filter) (*Page, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.Limit == 0 {
		f.Limit = defaultCalls
	}
	p := &Page{Calls: []Call{}}
	l := &list{filter: f}
	err := l.choose(ctx, db)
	if err == nil {
		err = l.read(ctx, db, p)
	}
	if err == nil {
		err = findQuestions(ctx, db, p.Calls)
	}
	if err == nil {
		err = findDecisions(ctx, db, p.Calls)
	}
	if err == nil && p.At.IsZero() { // no row contained it
		p.At, err = Now(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	return p, nil
}

// findQuestions sets Asks. It may miss a question of a call with very many children.
func findQuestions(ctx context.Context, db DB, calls []Call) error {
	parents := map[string]*Call{}
	for i := range calls {
		if c := &calls[i]; c.Status == "waiting" && c.WaitsFor == "call" && !c.Approval {
			parents[c.ID] = c
		}
	}
	if len(parents) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, `select p.id::text, q.tool_name from unnest($1::uuid[]) p (id) cross join lateral (
			select k.tool_name from (select * from gem.calls k where k.parent_call_id = p.id limit 1000) k
			where k.parent_step is not null and k.tool_name = any ($2)
				and k.status in ('queued', 'running', 'waiting') limit 1) q`,
		slices.Collect(maps.Keys(parents)), registry.Asking)
	if err != nil {
		return err
	}
	var id, tool string
	_, err = pgx.ForEachRow(rows, []any{&id, &tool}, func() error {
		parents[id].Asks = tool
		return nil
	})
	return err
}

// findDecisions sets Decision, if the role may read results.
func findDecisions(ctx context.Context, db DB, lists ...[]Call) error {
	approvals := map[string][]*Call{}
	for _, calls := range lists {
		for i := range calls {
			if c := &calls[i]; c.Tool == "wait.approval" && c.Status == "succeeded" {
				approvals[c.ID] = append(approvals[c.ID], c)
			}
		}
	}
	if len(approvals) == 0 {
		return nil
	}
	var may bool
	err := db.QueryRow(ctx, "select has_column_privilege('public.core_tool_receipts', 'result', 'select')").Scan(&may)
	if err != nil || !may {
		return err
	}
	rows, err := db.Query(ctx, `select r.call_id::text, case when r.result ->> 'approved' = 'true' then 'approved'
			when r.result ->> 'by' is not null then 'denied' else 'expired' end
		from public.core_tool_receipts r where r.call_id = any ($1::uuid[])`, slices.Collect(maps.Keys(approvals)))
	if err != nil {
		return err
	}
	var id, decision string
	_, err = pgx.ForEachRow(rows, []any{&id, &decision}, func() error {
		for _, c := range approvals[id] {
			c.Decision = decision
		}
		return nil
	})
	return err
}

// list is a list under construction: the source of its calls, their order, and the remaining conditions.
type list struct {
	filter Filter
	args   []any

	by   string
	rest Filter // the conditions that the source does not cover
	// source is SQL that selects id, at, tie and level of calls in the order of an index, by order. It ends where the
	// number of a limit follows. at, tie and level are the cursor.
	source, order string
	has           string // the further columns of the source
	// The rest as SQL: conditions on rows l of the source, and on their calls c.
	onSource, onCalls []string
	whole             bool // the source has all calls that may match, and they are few
	atLeast           bool // for a key: the source may lack some
}

// arg adds an argument of the statement, and returns its placeholder.
func (l *list) arg(value any) string {
	l.args = append(l.args, value)
	return "$" + strconv.Itoa(len(l.args))
}

// choose selects the index that finds the calls.
func (l *list) choose(ctx context.Context, db DB) (err error) {
	f := l.filter
	state := f.State
	if f.Code != "" && state == "" {
		state = string(receipts.Code(f.Code).Kind())
	}
	var ids []string
	switch {
	case f.Key != "":
		ids, l.atLeast, err = callsOfKey(ctx, db, f.Key)
		l.whole = true
	case f.Session != "":
		ids, l.whole, err = callsOfSession(ctx, db, f.Session)
	case f.Caller != "":
		err = l.ofCaller(f.Caller)
		f.Caller = ""
	case state == "failed" || state == "refused" || state == "cancelled" || state == "not_configured":
		err = l.notSucceeded()
	case state == "succeeded":
		err = l.ended()
	case state == "ended":
		err = l.ended()
		state = ""
	case state == "queued" || state == "scheduled":
		err = l.due(state)
		state = ""
	case state == "running" || state == "waiting" || state == "open":
		ids, l.whole, err = callsOfState(ctx, db, state)
	}
	switch {
	case err != nil:
		return err
	case l.whole:
		err = l.these(ids)
	case l.source == "":
		err = l.newest()
	}
	f.State = state
	l.rest = f
	return err
}

// filterRest adds the conditions that the source does not cover.
func (l *list) filterRest() {
	f := l.rest
	equal := func(column, value string) {
		if value != "" {
			l.must("%s."+column+" = "+l.arg(value)+"::text", column)
		}
	}
	if f.Tool == NoTool {
		l.must("coalesce(%s.tool_name, '') = ''", "tool_name")
	} else {
		equal("tool_name", f.Tool)
	}
	equal("created_by", f.Caller)
	equal("session_id", f.Session)
	if f.Code == "failed" { // as in endedSince
		l.must("coalesce(%[1]s.error_code, %[1]s.status) = 'failed'", "error_code", "status")
	} else {
		equal("error_code", f.Code)
	}
	switch f.State {
	case "":
	case "open":
		l.must("%s.status in ('queued', 'waiting', 'running')", "status")
	case "ended":
		l.must("%s.status in ('succeeded', 'failed', 'not_configured')", "status")
	case "queued":
		l.must("%[1]s.status = 'queued' and %[1]s.run_at <= "+now, "status", "run_at")
	case "scheduled":
		l.must("%[1]s.status = 'queued' and %[1]s.run_at > "+now, "status", "run_at")
	case "failed", "refused", "cancelled":
		l.must("%[1]s.status = 'failed' and gem.failure_kind(%[1]s.error_code) = '"+f.State+"'", "status", "error_code")
	default:
		equal("status", f.State)
	}
	if f.Text != "" {
		l.must("position(lower("+l.arg(f.Text)+
			`::text) in lower(concat_ws(E'\n', %[1]s.tool_name, %[1]s.message, %[1]s.created_by, %[1]s.session_id,
			%[1]s.computed_key, %[1]s.idempotency_key))) > 0`, "tool_name", "message", "created_by", "session_id", "computed_key", "idempotency_key")
	}
}

// must adds a condition: on the rows of the source if they have its columns, and otherwise on their calls, which are
// then looked up.
func (l *list) must(condition string, columns ...string) {
	for _, c := range columns {
		if !strings.Contains(l.has, "."+c) {
			l.onCalls = append(l.onCalls, fmt.Sprintf(condition, "c"))
			return
		}
	}
	l.onSource = append(l.onSource, fmt.Sprintf(condition, "l"))
}

// The sources. Each sets source and order, from the filter's Before on.

// newest reads all calls, the last insert first.
func (l *list) newest() error {
	return l.byTime("created", "select j.call_id as id, j.at, j.call_id as tie, 0 as level from gem.journal j where "+
		"j.seq = 1", "j.at", "j.call_id")
}

func (l *list) ofCaller(caller string) error {
	return l.ofCalls("c.created_by = " + l.arg(caller) + "::text")
}

// these sorts a few calls.
func (l *list) these(ids []string) error {
	return l.ofCalls("c.id = any (" + l.arg(ids) + "::text[]::uuid[])")
}

func (l *list) ofCalls(where string) error {
	l.has = ", c.tool_name, c.status, c.run_at, c.created_by, c.session_id, c.error_code"
	return l.byTime("created", "select c.id, c.created_at as at, c.id as tie, 0 as level"+l.has+" from gem.calls c where "+
		where, "c.created_at", "c.id")
}

// ofReceipt are the columns of the call that its receipt has.
const ofReceipt = ", r.tool_name, r.status, r.error_code, r.message"

func (l *list) notSucceeded() error {
	l.has = ofReceipt
	return l.byTime("ended", "select r.call_id as id, r.created_at as at, r.id as tie, 0 as level"+l.has+
		" from gem.receipts r where r.status <> 'succeeded'",
		"r.created_at", "r.id")
}

// byTime completes a source that is ordered by a time and an id, the newest first.
func (l *list) byTime(by, source, at, tie string) error {
	l.by, l.order = by, "at desc, tie desc"
	if l.filter.Before != "" {
		before, err := l.behind(cursorByTime)
		if err != nil {
			return err
		}
		source += fmt.Sprintf(" and (%s, %s) < (%s, %s::text::uuid)", at, tie, l.instant(before[0]), l.arg(before[1]))
	}
	if !l.filter.From.IsZero() {
		source += " and " + at + " >= " + l.arg(l.filter.From) + "::timestamptz"
	}
	if !l.filter.To.IsZero() {
		source += " and " + at + " < " + l.arg(l.filter.To) + "::timestamptz"
	}
	l.source = source + " order by " + at + " desc, " + tie + " desc limit "
	return nil
}

// ended reads all receipts by their ids, which begin with the time. Receipts of an earlier GEM, whose ids are random,
// appear anywhere or not at all.
func (l *list) ended() error {
	l.by, l.order = "ended", "tie desc"
	epoch := time.Unix(0, 0) // no id is from an earlier time
	l.has = ofReceipt
	l.source = "select r.call_id as id, r.created_at as at, r.id as tie, 0 as level" + l.has + ` from gem.receipts r
		where r.id < (select gem.first_id_at(greatest(least(gem.now() + interval '1 minute', ` +
		l.arg(zeronull.Timestamptz(l.filter.To)) + "::timestamptz), 'epoch')))"
	if l.filter.Before != "" {
		before, err := l.behind(cursorByTime)
		if err != nil {
			return err
		}
		l.source += " and r.id < " + l.arg(before[1]) + "::text::uuid"
	}
	if l.filter.From.After(epoch) {
		l.source += " and r.id >= (select gem.first_id_at(" + l.arg(l.filter.From) + "::timestamptz))"
	}
	l.source += " order by r.id desc limit "
	return nil
}

// due reads the queue level by level, like a claim. Postgres does not know that the rows are already sorted.
func (l *list) due(state string) error {
	l.by, l.order = "due", "level desc, at, tie"
	than := "<="
	if state == "scheduled" {
		than = ">"
	}
	inner := "q.status = 'queued' and q.level = l.level and q.run_at " + than + " " + now
	levels := ""
	if l.filter.Before != "" {
		before, err := l.behind(cursorByDue)
		if err != nil {
			return err
		}
		level := l.arg(before[0]) + "::text::bigint"
		levels = " where level <= " + level
		inner += fmt.Sprintf(" and (q.run_at, q.seq) > (case when l.level = %s then %s else '-infinity' end, "+
			"%s::text::bigint)", level,
			l.instant(before[1]), l.arg(before[2]))
	}
	if !l.filter.From.IsZero() {
		inner += " and q.run_at >= " + l.arg(l.filter.From) + "::timestamptz"
	}
	if !l.filter.To.IsZero() {
		inner += " and q.run_at < " + l.arg(l.filter.To) + "::timestamptz"
	}
	l.has = ", q.tool_name, q.created_by, q.session_id"
	l.source = "select q.id, q.run_at as at, q.seq as tie, l.level" + l.has + ` from (select level from gem.levels` +
		levels + ` order by level desc offset 0) l cross join lateral (
		select q.id, q.run_at, q.seq` + l.has + ` from gem.calls q where ` + inner +
		" order by q.level, q.run_at, q.seq limit " + strconv.Itoa(l.most()) + ") q limit "
	return nil
}

// most returns how many calls the list reads at most.
func (l *list) most() int {
	f := l.filter
	if f.Tool == "" && f.Caller == "" && f.Session == "" && f.Code == "" && f.Text == "" &&
		(f.State == "" || l.by == "due" || f.State == "ended" && l.by == "ended") {
		return f.Limit + 1
	}
	return stretch
}

// read reads the page.
func (l *list) read(ctx context.Context, db DB, p *Page) error {
	p.By = l.by
	sourceArgs := len(l.args)
	l.filterRest()
	// The page's calls first: the other data is looked up only for them.
	rows, err := db.Query(ctx, fmt.Sprintf(`select %s, `+now+`, p.at, p.tie::text, p.level::bigint
		from (%s order by %s limit %d) p
		cross join lateral (select * from gem.calls c where c.id = p.id offset 0) c order by p.%s`, columns, l.found(),
		l.order, l.filter.Limit+1,
		strings.ReplaceAll(l.order, ", ", ", p.")), l.args...)
	if err != nil {
		return err
	}
	var ends []string // the cursor of each call
	p.Calls, err = pgx.AppendRows(p.Calls, rows, func(row pgx.CollectableRow) (Call, error) {
		var place place
		c, err := scanCall(row, &p.At, &place.at, &place.tie, &place.level)
		ends = append(ends, l.cursor(place))
		return c, err
	})
	p.AtLeast = l.atLeast
	switch {
	case err != nil:
		return err
	case len(p.Calls) > l.filter.Limit:
		p.Calls, p.Next = p.Calls[:l.filter.Limit], ends[l.filter.Limit-1]
	case !l.whole && len(l.onCalls)+len(l.onSource) > 0:
		return l.lookFurther(ctx, db, p, sourceArgs)
	}
	return nil
}

// found returns SQL for the calls of the source that meet the conditions.
func (l *list) found() string {
	limit := "all"
	if !l.whole {
		limit = strconv.Itoa(l.most())
	}
	found := "select l.* from (" + l.source + limit + ") l"
	if len(l.onCalls) > 0 {
		found += " cross join lateral (select from gem.calls c where c.id = l.id and " + strings.Join(l.onCalls, " and ") +
			" offset 0) c"
	}
	if len(l.onSource) > 0 {
		found += " where " + strings.Join(l.onSource, " and ")
	}
	return found
}

// lookFurther sets where the calls that were read end, if there are more.
func (l *list) lookFurther(ctx context.Context, db DB, p *Page, sourceArgs int) error {
	var last place
	err := db.QueryRow(ctx, fmt.Sprintf("select l.at, l.tie::text, l.level::bigint from (%s 1 offset %d) l", l.source,
		stretch-1), l.args[:sourceArgs]...).
		Scan(&last.at, &last.tie, &last.level)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // there are no more
	}
	p.Looked, p.AtLeast, p.LookFurther = stretch, true, l.cursor(last)
	return err
}

// place is the position of a call in the order of its list.
type place struct {
	at    time.Time
	tie   string // an id, or a seq
	level int64
}

func (l *list) cursor(p place) string {
	cursor := fmt.Sprintf("%d.%s", p.at.UnixMicro(), p.tie)
	if l.by == "due" {
		cursor = fmt.Sprintf("%d.%s", p.level, cursor)
	}
	return cursor
}

var errCursor = &FilterError{"before", "it is not the end of a page of this list"}

// behind reads the filter's Before: numbers, and last an id or a number.
func (l *list) behind(form *regexp.Regexp) ([]string, error) {
	parts := form.FindStringSubmatch(l.filter.Before)
	if parts == nil {
		return nil, errCursor
	}
	return parts[1:], nil
}

// A number has at most 18 digits, so that it is a bigint, and a time 17, so that it is a valid timestamp: it is in
// microseconds.
var (
	cursorByTime = regexp.MustCompile(`^(-?\d{1,17})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
	cursorByDue  = regexp.MustCompile(`^(-?\d{1,9})\.(-?\d{1,17})\.(\d{1,18})$`)
)

// instant returns SQL for the time of so many microseconds since 1970.
func (l *list) instant(micros string) string {
	return "(timestamptz 'epoch' + " + l.arg(micros) + "::text::bigint * interval '1 microsecond')"
}

// callsOfSession returns the calls of a session, and whether these are all: it reads at most few.
func callsOfSession(ctx context.Context, db DB, session string) (ids []string, all bool, err error) {
	return upToFew(ctx, db, `(select c.id from gem.calls c where c.session_id = $1::text
		and c.status <> 'running' limit $2::int)
		union all (select c.id from gem.calls c where c.status = 'running' and c.session_id = $1::text limit $2::int)`,
		session)
}

// callsOfState returns the calls that wait, run or have not ended, like callsOfSession.
func callsOfState(ctx context.Context, db DB, state string) (ids []string, all bool, err error) {
	statuses := []string{state}
	if state == "open" {
		statuses = []string{"running", "waiting", "queued"}
	}
	parts := make([]string, len(statuses))
	for i, status := range statuses { // a literal, not an argument: each index covers one status
		parts[i] = "(select c.id from gem.calls c where c.status = '" + status + "' limit $1::int)"
	}
	return upToFew(ctx, db, strings.Join(parts, " union all "))
}

func upToFew(ctx context.Context, db DB, sql string, args ...any) (ids []string, all bool, err error) {
	rows, err := db.Query(ctx, fmt.Sprintf("select u.id::text from (%s) u limit $%d::int", sql, len(args)+1),
		append(args, few+1)...)
	if err != nil {
		return nil, false, err
	}
	ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, len(ids) <= few, err
}

// callsOfKey returns the calls with a key. By indexes, it finds the first success, the calls that repeat it, the call
// that holds the key and the calls that wait for it; among the newest calls, it finds calls that failed with the key,
// or whose client chose it. more means that there may be others.
func callsOfKey(ctx context.Context, db DB, key string) (ids []string, more bool, err error) {
	err = db.QueryRow(ctx, `
		with success as materialized (
			select r.id, r.call_id from gem.receipts r where r.idempotency_key = $1::text and r.status = 'succeeded'
				and r.replay_of is null
		), newest as materialized (
			select j.call_id from gem.journal j where j.seq = 1 order by j.at desc, j.call_id desc limit $3::int + 1
		)
		select array(
			select s.call_id::text from success s
			union (select r.call_id::text from success s cross
				join lateral (select * from gem.receipts r where r.replay_of = s.id limit $2::int) r)
			union (select c.id::text from gem.calls c
				where c.computed_key = $1::text and (c.status in ('running', 'queued') or c.status = 'waiting'
					and c.waits_for <> 'key'))
			union (select c.id::text from gem.calls c where c.status = 'waiting' and c.waits_for = 'key'
				and c.computed_key = $1::text limit $2::int)
			union (select c.id::text from gem.calls c
				where c.id = any (array(select n.call_id from newest n))
					and (c.computed_key = $1::text or c.idempotency_key = $1::text))
		), (select count(*) from newest) > $3::int`, key, few, stretch).Scan(&ids, &more)
	return ids, more || len(ids) > few, err
}
