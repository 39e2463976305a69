package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// readCatalog lists the objects of a database outside of Postgres's own schemas.
//
//go:embed changes.sql
var readCatalog string

// thing is an object, a part of one, or a privilege.
type thing struct{ Kind, Of, Name string }

// state maps every object and privilege in a database to a text that changes with it.
type state map[thing]string

func look(ctx context.Context, tx pgx.Tx) (state, error) {
	rows, _ := tx.Query(ctx, readCatalog, roles) // the rows have its error
	is := state{}
	var t thing
	var as string
	_, err := pgx.ForEachRow(rows, []any{&t.Kind, &t.Of, &t.Name, &as}, func() error {
		is[t] = as
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	return is, nil
}

// Changes are the changes that a migration made to a database.
type Changes struct{ was, is state }

// plus adds the changes between two readings of the catalog.
func (c Changes) plus(was, is state) Changes {
	all := Changes{maps.Clone(c.was), maps.Clone(c.is)}
	if all.was == nil {
		all.was, all.is = state{}, state{}
	}
	for t := range union(was, is) {
		from, before := was[t]
		to, after := is[t]
		if before == after && from == to {
			continue
		}
		if _, known := all.is[t]; !known && before { // otherwise an earlier file created it
			all.was[t] = from
		}
		delete(all.is, t)
		if after {
			all.is[t] = to
		}
	}
	return all
}

func union(a, b state) map[thing]bool {
	all := map[thing]bool{}
	for t := range a {
		all[t] = true
	}
	for t := range b {
		all[t] = true
	}
	return all
}

// Lines lists the changes, one per line: the objects that were created and changed, and the privileges by role. It only
// counts functions outside of public. The last lines are the additions to objects that are not GEM's.
func (c Changes) Lines() []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, kind := range []string{"schema", "role", "table", "view", "type", "function"} {
		for _, change := range []struct {
			verb     string
			from, to state
		}{{"created", c.was, c.is}, {"dropped", c.is, c.was}} {
			if names := listed(kind, change.from, change.to); len(names) > 0 {
				say("%s the %s", change.verb, plural(kind, names))
			}
		}
	}
	if names := replaced(c, "function"); len(names) > 0 {
		say("replaced the %s", plural("function", names))
	}
	if names := replaced(c, "view"); len(names) > 0 {
		say("replaced the %s", plural("view", names))
	}
	lines = append(lines, c.tables()...)
	own, others := c.grants()
	for _, t := range sorted(c.is) {
		if t.Kind == "publication" {
			others = append(others, fmt.Sprintf("%s in the publication %s", c.is[t], t.Name))
		}
	}
	lines = append(lines, own...)
	for _, o := range others {
		say("added outside GEM's own objects: %s", o)
	}
	return lines
}

// tables lists the changes to existing tables, one line each.
func (c Changes) tables() []string {
	var lines []string
	changes := c.byTable()
	for _, table := range slices.Sorted(maps.Keys(changes)) {
		lines = append(lines, fmt.Sprintf("changed the table %s: %s", table, strings.Join(changes[table], "; ")))
	}
	return lines
}

// byTable lists the changes to existing tables by their names, without the privileges.
func (c Changes) byTable() map[string][]string {
	made := func(table string) bool {
		t := thing{"table", "", table}
		_, is := c.is[t]
		_, was := c.was[t]
		v := thing{"view", "", table}
		_, view := c.is[v]
		return is && !was || view
	}
	changes := map[string][]string{}
	for _, t := range sorted(union(c.was, c.is)) {
		from, was := c.was[t]
		to, is := c.is[t]
		switch {
		case t.Kind == "table" && was && is && from != to:
			changes[t.Name] = append(changes[t.Name], "row level security "+map[string]string{"true": "on", "false": "off"}[to])
		case t.Kind == "grant" || t.Of == "" || made(t.Of):
		case !was:
			changes[t.Of] = append(changes[t.Of], fmt.Sprintf("new %s %s", t.Kind, t.Name))
		case !is:
			changes[t.Of] = append(changes[t.Of], fmt.Sprintf("dropped %s %s", t.Kind, t.Name))
		default:
			changes[t.Of] = append(changes[t.Of], fmt.Sprintf("%s %s is now %s, and was %s", t.Kind, t.Name, to, from))
		}
	}
	return changes
}

// grants lists the new privileges, one line for each role, and the additions to objects of others.
func (c Changes) grants() (own, others []string) {
	type right struct{ grantee, privileges string }
	objects := map[right][]string{}
	added := map[string][]string{} // roles by their privileges outside of GEM's objects
	var order []right
	for _, t := range sorted(union(c.was, c.is)) {
		if t.Kind != "grant" {
			continue
		}
		to, is := c.is[t]
		r := right{t.Of, to}
		if !is {
			r.privileges = "no longer " + c.was[t]
		}
		role, isRole := strings.CutPrefix(t.Name, "role ")
		if t.Name == "schema public" || isRole && !slices.Contains(roles, role) {
			what := r.privileges + " of the " + t.Name
			added[what] = append(added[what], t.Of)
			continue
		}
		if objects[r] == nil {
			order = append(order, r)
		}
		objects[r] = append(objects[r], t.Name)
	}
	for i, r := range order {
		var all, functions []string
		for _, name := range objects[r] {
			if f, ok := strings.CutPrefix(name, "function "); ok {
				functions = append(functions, f)
			} else {
				all = append(all, name)
			}
		}
		if len(functions) > 0 {
			all = append(all, plural("function", functions))
		}
		says := fmt.Sprintf("%s on %s", r.privileges, strings.Join(all, ", "))
		if i > 0 && order[i-1].grantee == r.grantee {
			own[len(own)-1] += "; " + says
		} else {
			own = append(own, fmt.Sprintf("granted to %s: %s", r.grantee, says))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(added)) {
		others = append(others, fmt.Sprintf("%s, for %s", what, strings.Join(added[what], ", ")))
	}
	return own, others
}

// listed returns the names of a kind that only the second state has.
func listed(kind string, from, to state) []string {
	var names []string
	for _, t := range sorted(to) {
		if _, had := from[t]; t.Kind == kind && !had {
			names = append(names, t.Name)
		}
	}
	return names
}

// replaced returns the names of a kind that existed before and are different now.
func replaced(c Changes, kind string) []string {
	var names []string
	for _, t := range sorted(c.is) {
		if from, had := c.was[t]; t.Kind == kind && had && from != c.is[t] {
			names = append(names, t.Name)
		}
	}
	return names
}

// plural returns the names of the things, or the number of functions outside of public.
func plural(kind string, names []string) string {
	if len(names) == 1 {
		return kind + " " + names[0]
	}
	if kind != "function" {
		return fmt.Sprintf("%ss %s", kind, strings.Join(names, ", "))
	}
	counts := map[string]int{}
	var all []string
	for _, n := range names {
		schema, _, _ := strings.Cut(n, ".")
		if schema == "public" {
			all = append(all, n)
		} else {
			counts[schema]++
		}
	}
	for _, schema := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d in %s", counts[schema], schema))
	}
	return "functions " + strings.Join(all, ", ")
}

// sorted returns the things of a state in the order of their names.
func sorted[V any](s map[thing]V) []thing {
	return slices.SortedFunc(maps.Keys(s), func(a, b thing) int {
		return strings.Compare(a.Kind+"\x00"+a.Of+"\x00"+a.Name, b.Kind+"\x00"+b.Of+"\x00"+b.Name)
	})
}
