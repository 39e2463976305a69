package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestTheNextTimeOfACronExpression(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for _, c := range []struct{ cron, zone, after, next string }{
		{"0 9 * * 1-5", "Europe/Berlin", "2026-11-27 09:00+01", "2026-11-30 08:00"}, // after Friday comes Monday
		{"0 9 * * mon-fri", "Europe/Berlin", "2026-11-27 09:00+01", "2026-11-30 08:00"},
		{"0 0 * * sat-sun", "UTC", "2026-11-28 00:00", "2026-11-29 00:00"},
		{"0 0 * * sun-sun", "UTC", "2026-11-28 00:00", "2026-11-29 00:00"},
		{"0 0 * * sun-sun", "UTC", "2026-11-29 00:00", "2026-12-06 00:00"},
		{"0 0 * * 7", "UTC", "2026-11-28 00:00", "2026-11-29 00:00"},
		{"0 0 13 * fri", "UTC", "2026-11-10 00:00", "2026-11-13 00:00"}, // either day
		{"0 0 13 * fri", "UTC", "2026-11-13 00:00", "2026-11-20 00:00"},
		{"0 0 */2 * fri", "UTC", "2026-11-13 00:00", "2026-11-27 00:00"}, // both
		{"59 23 31 dec *", "UTC", "2026-01-01 00:00", "2026-12-31 23:59"},
		{"0 0 29 2 *", "UTC", "2026-01-01 00:00", "2028-02-29 00:00"},
		{" @Daily ", "UTC", "2026-01-01 00:00", "2026-01-02 00:00"},
		{"*/20 9-10,12 * * *", "UTC", "2026-01-01 10:40", "2026-01-01 12:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-03-28 12:00+01", "2026-03-29 01:00"},       // at the end of the gap
		{"0,30 2 * * *", "Europe/Berlin", "2026-03-29 01:00+00", "2026-03-30 00:00"},     // once
		{"30 2,14 * * *", "Europe/Berlin", "2026-03-28 14:30+01", "2026-03-29 01:00"},    // a list too
		{"30 * * * *", "Europe/Berlin", "2026-03-29 01:30+01", "2026-03-29 01:30"},       // not fixed: skipped
		{"30 2 * * *", "Europe/Berlin", "2026-10-25 02:30+02", "2026-10-26 01:30"},       // the first time only
		{"30 * * * *", "Europe/Berlin", "2026-10-25 02:30+02", "2026-10-25 01:30"},       // repeated
		{"0 9 30 12 *", "Pacific/Apia", "2011-01-01", "2011-12-30 10:00"},                // there was no 30 December
		{"0 0 * * *", "America/Havana", "2026-03-07 12:00-05", "2026-03-08 05:00"},       // midnight is in the gap
		{"15 * * * *", "Australia/Lord_Howe", "2026-04-05 01:15+11", "2026-04-04 15:45"}, // a change of half an hour
	} {
		next := testdb.Value[*time.Time](t, db, "select gem.cron_next($1, $2, $3::timestamptz)", c.cron, c.zone, c.after)
		if next == nil || next.UTC().Format("2006-01-02 15:04") != c.next {
			t.Errorf("%s in %s after %s: %v, and not %s", c.cron, c.zone, c.after, next, c.next)
		}
	}
	if next := testdb.Value[*time.Time](t, db, "select gem.cron_next('0 0 30 2 *', 'UTC', '2026-01-01')"); next != nil {
		t.Errorf("30 February comes on %s", next)
	}
	if next := testdb.Value[*time.Time](t, db, "select gem.cron_next('@daily', 'UTC', 'infinity')"); next != nil {
		t.Errorf("after all time comes %s", next)
	}
	last := testdb.Value[time.Time](t, db,
		"select gem.cron_last('* 9 * * *', 'UTC', '2026-11-01', '2026-11-03 08:00')")
	if last.UTC().Format(time.DateTime) != "2026-11-02 09:59:00" {
		t.Error(last)
	}
}

func TestACronExpressionThatCannotBeReadIsRefusedWithAHint(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for cron, hint := range map[string]string{
		"":                    "five fields",
		"* * * *":             "five fields",
		"* * * * * *":         "five fields",
		"@every 5m":           "five fields",
		"@reboot":             "five fields",
		"60 * * * *":          "numbers from 0 to 59",
		"-1 * * * *":          "numbers from 0 to 59",
		"* 24 * * *":          "numbers from 0 to 23",
		"* * 0 * *":           "numbers from 1 to 31",
		"* * L * *":           "numbers from 1 to 31",
		"* * * foo *":         "names such as feb",
		"* * * * 8":           "names such as mon",
		"* * * * 1#2":         "numbers from 0 to 7",
		"*/0 * * * *":         "numbers from 0 to 59",
		"30-10 * * * *":       "numbers from 0 to 59",
		"1,,2 * * * *":        "numbers from 0 to 59",
		"5/10 * * * *":        "Write 5-59/10.",
		"1\n2 * * * *":        "numbers from 0 to 59",
		"jan * * * *":         "numbers from 0 to 59",
		"99999999999 * * * *": "numbers from 0 to 59",
	} {
		var next *time.Time
		err := db.QueryRow(context.Background(), "select gem.cron_next($1, 'UTC', now())", cron).Scan(&next)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "PT422" || !strings.Contains(refused.Hint, hint) {
			t.Errorf("%q: %v, %v, and not %q", cron, next, err, hint)
		}
	}
}

// TestCronAgreesWithAWalkThroughTheMinutes compares gem.cron_next with a model that walks from minute to minute, near
// changes of clocks.
func TestCronAgreesWithAWalkThroughTheMinutes(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	r := rand.New(rand.NewPCG(7, 7))
	var crons, names []string
	var after []time.Time
	for range 2000 {
		zone := pick(r, "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns",
			"Africa/Casablanca", "America/Havana", "Asia/Tehran", "Antarctica/Troll", "Asia/Kathmandu", "America/Sao_Paulo",
			"Europe/London", "UTC")
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		from := time.Unix(1262304000+r.Int64N(10*366*86400), 0) // ten years from 2010 on
		if _, change := from.In(location).ZoneBounds(); !change.IsZero() {
			from = change.Add(-time.Duration(r.IntN(72*3600)) * time.Second)
		}
		crons = append(crons, strings.Join([]string{
			pick(r, "*", "*/15", "0", "30", "1,59", "0-5", "*/7"), pick(r, "*", "*/3", "0", "2", "1-3", "0,12", "23"),
			pick(r, "*", "*", "*", "30", "1,31", "*/2", "10-20"), pick(r, "*", "*", "*", "3,10", "dec", "4-11"),
			pick(r, "*", "*", "*", "sun", "1-5", "*/2")}, " "))
		names, after = append(names, zone), append(after, from)
	}
	rows, err := db.Query(context.Background(), `select gem.cron_next(c, z, a)
		from unnest($1::text[], $2::text[], $3::timestamptz[]) with ordinality u (c, z, a, n) order by n`, crons, names,
		after)
	if err != nil {
		t.Fatal(err)
	}
	nexts, err := pgx.CollectRows(rows, pgx.RowTo[*time.Time])
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for i, next := range nexts {
		location, _ := time.LoadLocation(names[i])
		want, within := walk(t, crons[i], location, after[i]), after[i].Add(walked)
		switch {
		case want.IsZero() && (next == nil || next.After(within)):
		case next == nil || !next.Equal(want):
			t.Errorf("%s in %s after %s: %v, and not %s", crons[i], names[i], after[i].UTC(), next, want.UTC())
		default:
			compared++
		}
	}
	if compared < 800 {
		t.Errorf("only %d of the times were compared", compared)
	}
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

const walked = 6 * 24 * time.Hour

// walk returns the first time of an expression after a time, or zero if it has none within `walked`.
func walk(t *testing.T, cron string, zone *time.Location, after time.Time) time.Time {
	fields := strings.Fields(cron)
	limits := [][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}
	sets := make([][]int, 5)
	for i, f := range fields {
		sets[i] = members(t, f, limits[i])
	}
	on := func(year int, month time.Month, day, hour, minute int) bool {
		clock := time.Date(year, month, day, hour, minute, 0, 0, time.UTC)
		byDay, byWeekday := slices.Contains(sets[2], clock.Day()), slices.Contains(sets[4], int(clock.Weekday()))
		if fields[2][0] != '*' && fields[4][0] != '*' {
			byDay = byDay || byWeekday
		} else {
			byDay = byDay && byWeekday
		}
		return byDay && slices.Contains(sets[0], clock.Minute()) && slices.Contains(sets[1], clock.Hour()) &&
			slices.Contains(sets[3], int(clock.Month()))
	}
	matches := func(clock time.Time) bool {
		return on(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute())
	}
	// The time on the wall, as if it were UTC.
	wall := func(at time.Time) time.Time {
		_, offset := at.In(zone).Zone()
		return at.UTC().Add(time.Duration(offset) * time.Second)
	}
	fixed := fields[0][0] != '*' && fields[1][0] != '*'
	for at := after.Truncate(time.Minute).Add(time.Minute); at.Sub(after) < walked; at = at.Add(time.Minute) {
		now := wall(at)
		if !fixed {
			if matches(now) {
				return at
			}
			continue
		}
		again := false // the wall showed this time before
		for back := 15 * time.Minute; back <= 3*time.Hour; back += 15 * time.Minute {
			again = again || wall(at.Add(-back)).Equal(now)
		}
		if matches(now) && !again {
			return at
		}
		for skipped := wall(at.Add(-time.Minute)).Add(time.Minute); skipped.Before(now); skipped = skipped.Add(time.Minute) {
			if matches(skipped) {
				return at
			}
		}
	}
	return time.Time{}
}

// members returns the values of one field.
func members(t *testing.T, field string, limits [2]int) (all []int) {
	for i, name := range []string{"sun", "dec"} {
		field = strings.ReplaceAll(field, name, []string{"0", "12"}[i])
	}
	for item := range strings.SplitSeq(field, ",") {
		low, high, step := limits[0], limits[1], 1
		if of, by, ok := strings.Cut(item, "/"); ok {
			item, step = of, fieldNumber(t, by)
		}
		if item != "*" {
			from, to, isRange := strings.Cut(item, "-")
			low, high = fieldNumber(t, from), fieldNumber(t, from)
			if isRange {
				high = fieldNumber(t, to)
			}
		}
		for v := low; v <= high; v += step {
			all = append(all, v)
		}
	}
	return all
}

func fieldNumber(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(fmt.Errorf("read %q: %w", text, err))
	}
	return n
}
