package migrations

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// selectTaken lists the objects that the files need and whose name another object has.
//
//go:embed strangers.sql
var selectTaken string

// roleComment marks the roles that a migration created; functions/create_roles.sql sets it, too.
const roleComment = "Made by GEM. All databases of this server that have GEM share it."

// taken is a name that GEM needs and that someone else's object has.
type taken struct {
	Source  string // the source of the file that needs it
	Kind    string
	Object  string // kind and name, as in the ledger
	Found   string // the kind of the existing object
	Changes string // the changes that GEM would have to make
	// Remove has the statements that remove or change what a table to adopt may not have, such as others' policies, rights
	// and functions, one per line, or is nil.
	Remove *string
	// Adoptable is true for a table that an earlier GEM may have made.
	Adoptable bool
}

// TakenError reports that GEM did not create some objects whose names it needs. Nothing was changed, unless earlier
// files, or another process in the meantime, created them.
type TakenError struct {
	taken []taken
	later bool // earlier files were applied
}

// Error lists the objects, the necessary changes, and the possible solutions.
func (e *TakenError) Error() string {
	var b, out strings.Builder
	what := "nothing"
	if e.later {
		what = "nothing more"
	}
	b.WriteString(what + " was changed: GEM needs names that this database uses for something else\n")
	var adopt, roles []string
	domains, own, program := map[string][]string{}, false, false
	for _, t := range e.taken {
		_, name, _ := strings.Cut(t.Object, " ")
		fmt.Fprintf(&b, "\n  %s %s\n      GEM would have to %s\n", t.Found, name, t.Changes)
		if t.Remove != nil {
			b.WriteString("      Before it can be adopted, remove or change what GEM's tables may not have:\n        " +
				strings.ReplaceAll(*t.Remove, "\n", "\n        ") + "\n")
		}
		switch {
		case t.Kind == "role":
			roles = append(roles, name)
		case t.Source == core || t.Source == functions:
			own = own || !t.Adoptable
		case t.Source == programSource:
			program = true
		default:
			domains[t.Source] = append(domains[t.Source], name)
		}
		if t.Adoptable {
			adopt = append(adopt, strings.TrimPrefix(name, "public."))
		}
	}
	out.WriteString("\nPossible solutions:\n")
	for _, d := range slices.Sorted(maps.Keys(domains)) {
		fmt.Fprintf(&out, "  - leave the tools %s.* out of the registry, if you do not need them (for %s)\n", d,
			strings.Join(domains[d], ", "))
	}
	if len(adopt) > 0 {
		fmt.Fprintf(&out, "  - if an earlier GEM made the tables: gem migrate --adopt %s\n", strings.Join(adopt, ","))
	}
	if len(roles) > 0 {
		fmt.Fprintf(&out, "  - if an administrator made the roles for GEM: gem migrate --adopt-role %s\n",
			strings.Join(roles, ","))
	}
	if program {
		out.WriteString("  - give the program's own migrations other names\n")
	}
	if own || len(roles) > 0 {
		out.WriteString("  - rename yours, as GEM's own names cannot change\n")
	}
	out.WriteString("  - use another database")
	if len(roles) > 0 {
		out.WriteString("; roles belong to the whole server, so taken roles require another server")
	}
	return b.String() + out.String()
}

// earlierTables are the core's tables that an earlier GEM had. A domain names its own as arguments of gem.set_aside.
var (
	earlierTables = []string{"core_tool_calls", "core_tool_receipts"}
	setAside      = regexp.MustCompile(`(?m)^select gem\.set_aside\(([^)]*)\)`)
)

// earlier returns the tables of an earlier GEM that the file creates, by their names in the ledger.
func (f file) earlier() []string {
	all := []string{}
	if f.source == core {
		all = append(all, earlierTables...)
	}
	for _, m := range setAside.FindAllStringSubmatch(f.sql, -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			all = append(all, strings.Trim(strings.TrimSpace(name), "'"))
		}
	}
	for i := range all {
		all[i] = "table public." + all[i]
	}
	return all
}

// needs lists the objects that the files create outside of their own schemas, the roles, and the schema for adoptions:
// JSON for selectTaken, one line each.
func needs(files []file, adopt []string) string {
	type need struct {
		Source    string   `json:"source"`
		Kind      string   `json:"kind"`
		Schema    string   `json:"schema,omitempty"`
		Name      string   `json:"name"`
		Columns   []string `json:"columns,omitempty"`
		Types     []string `json:"types,omitempty"`
		Adoptable bool     `json:"adoptable,omitempty"`
	}
	var all []need
	schemas := map[string]bool{}
	for _, f := range files {
		earlier := f.earlier()
		for _, o := range f.objects() {
			if o.Kind == "schema" {
				schemas[o.Name] = true
			}
			all = append(all, need{f.source, o.Kind, o.Schema, o.Name, o.Columns, o.Types, slices.Contains(earlier, o.key())})
		}
		if f.source == functions {
			for _, r := range roles {
				all = append(all, need{Source: functions, Kind: "role", Name: r})
			}
		}
		if len(adopt) > 0 && setAside.MatchString(f.sql) {
			all = append(all, need{Source: core, Kind: "schema", Name: "gem_earlier"})
		}
	}
	var lines []string
	for _, n := range all {
		if !schemas[n.Schema] {
			line, _ := json.Marshal(n) // a struct of strings
			lines = append(lines, string(line))
		}
	}
	return "[" + strings.Join(lines, ",\n") + "]"
}

// findTaken lists the taken names that the files need, except the tables to adopt.
func findTaken(ctx context.Context, tx pgx.Tx, files []file, had ledger, adopt []string) ([]taken, error) {
	query := strings.NewReplacer(":needed", "$1::jsonb", ":ours", "$2::text[]", ":adopt",
		"$3::text[]").Replace(selectTaken)
	rows, _ := tx.Query(ctx, query, needs(files, adopt), had.objects(), adopt) // the rows have its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[taken])
	if err != nil {
		return nil, fmt.Errorf("look for names that are taken: %w", err)
	}
	return found, nil
}

// checkBlock returns the check of refuseTaken as a statement for [Print]. It reads a ledger if there is one.
func checkBlock(files []file, o Options) string {
	query := strings.NewReplacer(":needed", "needed", ":ours", "ours", ":adopt",
		"adopted").Replace(strings.TrimSpace(selectTaken))
	return fmt.Sprintf(`do $gem_check$
declare
  needed  constant jsonb  := %s;
  adopted constant text[] := %s;
  ours    text[] := '{}';
  found   text;
begin
  if %s then
    execute 'select coalesce(array_agg(o), ''{}'') from gem.migrations, unnest(objects) o' into ours;
  end if;
  select string_agg(format('%%s: GEM would have to %%s%%s', object, changes,
    E'\nBefore it can be adopted, remove or change what GEM''s tables may not have:\n' || remove || E'\n'),
      E'\n') into found from (
%s
  ) found;
  if found is not null then
    raise exception using errcode = 'duplicate_object',
      message = E'nothing was changed: GEM needs names that this database uses for something else\n' || found,
      hint = 'Run gem migrate on this database: it says what you can do.';
  end if;
end
$gem_check$;
`, literal(needs(files, o.adopted())), literal("{"+strings.Join(quoted(o.adopted()), ",")+"}"), ledgerIsThere, query)
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func quoted(all []string) []string {
	var q []string
	for _, s := range all {
		q = append(q, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)+`"`)
	}
	return q
}

// check returns an error if the options name a table or a role that GEM does not have.
func (o Options) check(files []file) error {
	var earlier []string
	for _, f := range files {
		earlier = append(earlier, f.earlier()...)
	}
	for _, t := range o.adopted() {
		if !slices.Contains(earlier, t) {
			return fmt.Errorf("--adopt %s: an earlier GEM had only these tables of the registry's tools: %s",
				strings.TrimPrefix(t, "table public."), strings.ReplaceAll(strings.Join(earlier, ", "), "table public.", ""))
		}
	}
	for _, r := range o.AdoptRoles {
		if !slices.Contains(roles, r) {
			return fmt.Errorf("--adopt-role %s: GEM's roles are %s", r, strings.Join(roles, ", "))
		}
	}
	return nil
}

// adoptRole returns the statement that marks a role as GEM's, if the role exists.
func adoptRole(role string) string {
	return fmt.Sprintf(`do $gem_adopt$ begin
  if exists (select from pg_catalog.pg_roles r where r.rolname = '%[1]s'
    and coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '') not like 'Made by GEM%%') then
    comment on role %[1]s is '%[2]s';
  end if;
end $gem_adopt$;
`, role, roleComment)
}

func (o Options) adoptRoles(ctx context.Context, tx pgx.Tx) error {
	for _, role := range o.AdoptRoles {
		if _, err := tx.Exec(ctx, adoptRole(role)); err != nil {
			return fmt.Errorf("adopt the role %s: %w. An administrator of the server can run: comment on role %[1]s is '%[3]s'",
				role, err, roleComment)
		}
	}
	return nil
}

// rightsAreMissing reports whether the roles lack rights that the functions granted: a dump was restored without its
// roles, or a role was dropped, or an administrator created it later.
func rightsAreMissing(ctx context.Context, tx pgx.Tx, had ledger) (missing bool, err error) {
	if had.functions() != functionsNumber {
		return false, nil
	}
	err = tx.QueryRow(ctx, `select exists (
		select from unnest($1::text[]) n left join pg_catalog.pg_roles r on r.rolname = n
		where case when r.oid is null then (select rolsuper or rolcreaterole from pg_catalog.pg_roles
			where rolname = current_user)
			else n <> 'gem_frontend' and not has_schema_privilege(r.oid, 'gem', 'usage') end)`, roles).Scan(&missing)
	if err != nil {
		return false, fmt.Errorf("look for the roles: %w", err)
	}
	return missing, nil
}
