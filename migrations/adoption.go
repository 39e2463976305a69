package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// emptyCopies returns the statements that create empty copies of tables.
//
//go:embed adoption.sql
var emptyCopies string

// coreRows counts the rows of GEM's own tables that an adoption changes.
//
//go:embed adoption_rows.sql
var coreRows string

// countLimit is the timeout for counting a table's rows. After it, the list has no counts.
var countLimit = "10s"

// Adoption returns what [Apply] changes in the tables to adopt: everything that it adds, changes or drops, and the
// number of rows. It applies the files to empty copies of the tables in a transaction that it rolls back, and counts
// the rows in the tables themselves. It takes only ACCESS SHARE locks on the tables, so others can read and write. An
// error that depends on a row, such as a null in a key, occurs only in [Apply].
func Adoption(ctx context.Context, url string, o Options, sources ...Source) ([]string, error) {
	files, err := plan(sources)
	if err == nil {
		err = o.check(files)
	}
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	var tables []string
	var was, is state
	err = inTx(ctx, conn, func(tx pgx.Tx) (err error) {
		if tables, was, is, err = o.rehearse(ctx, tx, files); err == nil {
			err = errUndo
		}
		return err
	})
	if !errors.Is(err, errUndo) {
		return nil, err
	}
	var lines []string
	changes := Changes{}.plus(was, is)
	byTable := changes.byTable()
	for _, name := range tables {
		inRows, err := changedRows(ctx, conn, name, was, is)
		if err != nil {
			return nil, fmt.Errorf("count the rows of the table %s that change: %w", name, err)
		}
		lines = append(lines, fmt.Sprintf("table public.%s: GEM will make these changes", name))
		for _, change := range slices.Concat(inRows, byTable[copied+name], changes.grantsOn(copied+name)) {
			lines = append(lines, "  "+strings.ReplaceAll(change, copied, "public."))
		}
	}
	return lines, nil
}

// copied is the prefix of the copies' names: their schema.
const copied = "gem_adoption."

var inPublic = regexp.MustCompile(`\bpublic\.`)

// onCopies returns SQL of the migrations, changed to use the schema of the copies instead of public.
func onCopies(sql string) string {
	sql = inPublic.ReplaceAllLiteralString(sql, copied)
	return strings.ReplaceAll(sql, "set schema public", "set schema "+strings.TrimSuffix(copied, "."))
}

// rehearse applies the files to empty copies of the tables. It returns the tables, and the catalog before and after.
func (o Options) rehearse(ctx context.Context, tx pgx.Tx, files []file) (tables []string, was, is state, err error) {
	if err := takeLock(ctx, tx); err != nil {
		return nil, nil, nil, err
	}
	had, err := readLedger(ctx, tx)
	if err == nil {
		err = had.refuses(files)
	}
	if err == nil {
		err = o.adoptRoles(ctx, tx)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	found, err := findTaken(ctx, tx, files, had, o.adopted())
	if err == nil && len(found) > 0 {
		err = &TakenError{found, false}
	}
	if err != nil {
		return nil, nil, nil, err
	}
	for _, t := range o.adopted() {
		name := strings.TrimPrefix(t, "table public.")
		there := false
		if err := tx.QueryRow(ctx, "select to_regclass($1) is not null", "public."+name).Scan(&there); err != nil {
			return nil, nil, nil, err
		}
		if there && !slices.Contains(had.objects(), t) && !slices.Contains(tables, name) {
			tables = append(tables, name)
		}
	}
	if len(tables) == 0 {
		return nil, nil, nil, nil
	}
	if err := copyTables(ctx, tx, tables); err != nil {
		return nil, nil, nil, err
	}
	sql, err := had.onCopies(files, o.adopted())
	if err != nil {
		return nil, nil, nil, err
	}
	was, err = look(ctx, tx)
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return nil, nil, nil, fmt.Errorf("see what an adoption changes: %w", err)
	}
	is, err = look(ctx, tx)
	return tables, was, is, err
}

// copyTables creates the empty copies, without the rights of default privileges.
func copyTables(ctx context.Context, tx pgx.Tx, tables []string) error {
	if _, err := tx.Exec(ctx, "set local lock_timeout = '3s'; create schema gem_adoption"); err != nil {
		return fmt.Errorf("make a schema for the list of changes: %w", err)
	}
	rows, _ := tx.Query(ctx, emptyCopies, tables) // the rows have its error
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil {
		_, err = tx.Exec(ctx, strings.Join(statements, ";\n")+`;
do $$
declare
  given record;
begin
  for given in
    select distinct c.oid::regclass as name, coalesce(quote_ident(r.rolname), 'public') as role
    from pg_class c, aclexplode(c.relacl) a left join pg_roles r on r.oid = a.grantee
    where c.relnamespace = 'gem_adoption'::regnamespace and c.relkind = 'r' and a.grantee <> c.relowner
  loop
    execute format('revoke all on %s from %s', given.name, given.role);
  end loop;
end
$$`)
	}
	if err != nil {
		return fmt.Errorf("make empty copies of the tables: %w", err)
	}
	return nil
}

// onCopies returns the SQL for the copies: GEM's own tables and functions, unless the database has them, and the
// sources with a table to adopt.
func (had ledger) onCopies(files []file, adopt []string) (string, error) {
	installed := slices.ContainsFunc(had, func(r ledgerEntry) bool { return r.Source == core })
	adopting := map[string]bool{}
	for _, f := range files {
		adopting[f.source] = adopting[f.source] ||
			slices.ContainsFunc(f.earlier(), func(t string) bool { return slices.Contains(adopt, t) })
	}
	var b strings.Builder
	if installed { // the installed gem.bring_back works in public
		moves, err := fs.ReadFile(embedded, "functions/earlier.sql")
		if err != nil {
			return "", err
		}
		b.Write(moves)
	} else {
		b.WriteString("select pg_catalog.set_config('gem.names', '{}', true);\n" + withoutDefaults + createLedger)
	}
	for _, f := range files {
		switch own := f.source == core || f.source == functions; {
		case own && !installed:
			b.WriteString(f.sql + ";\n")
		case !own && adopting[f.source] && had.lacks(f):
			b.WriteString(asLogin + f.sql + ";\n" + asLogin + asGEM)
		}
	}
	return onCopies(b.String()), nil
}

// changedRows lists how many rows of a table change, by column. was and is have the table's columns.
func changedRows(ctx context.Context, conn *pgx.Conn, table string, was, is state) (lines []string, err error) {
	query := countNulls(table, was, is)
	if slices.Contains(earlierTables, table) {
		query = countCore(was)
	}
	if query == "" {
		return nil, nil
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		limits := "set local search_path = pg_catalog, pg_temp; set local lock_timeout = '3s'; set local statement_timeout = "
		if _, err := tx.Exec(ctx, limits+literal(countLimit)); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, query) // the rows have its error
		var of, what string
		var n int
		var unknown []string
		_, err := pgx.ForEachRow(rows, []any{&of, &what, &n}, func() error {
			_, there := was[thing{"column", copied + table, what}]
			kind, text, _ := strings.Cut(what, ": ")
			count := fmt.Sprintf("%d rows", n)
			if n == 1 {
				count = "1 row"
			}
			switch {
			case kind == "refuses" && n > 0:
				unknown = append(unknown, fmt.Sprintf("%d %s", n, text))
			case of == table && kind == "runs":
				lines = append(lines, fmt.Sprintf("will run %d of the calls", n))
			case of != table || n == 0:
			case kind == "states":
				lines = append(lines, text+" in "+count)
			case what == "removes" || what == "adds":
				lines = append(lines, what+" "+count)
			case there:
				lines = append(lines, "changes "+what+" in "+count)
			}
			return nil
		})
		if err == nil && len(unknown) > 0 {
			err = fmt.Errorf("the tables of the earlier GEM have rows that it did not write: %s. Calls may have the "+
				"status queued, claimed, running, completed, succeeded, failed, not_configured or cancelled. Receipts have a "+
				"call_id, and the status succeeded, failed or not_configured", strings.Join(unknown, ", "))
		}
		return err
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == queryCanceled {
		return []string{"changes rows that were not counted, because counting took longer than " + countLimit}, nil
	}
	return lines, err
}

// countNulls counts the nulls in each column that becomes not null: gem.bring_back replaces them.
func countNulls(table string, was, is state) string {
	var names, counts []string
	for _, t := range sorted(was) {
		required := func(s state) bool {
			definition, _, _ := strings.Cut(s[t], " default ")
			return strings.HasSuffix(definition, " not null")
		}
		if t.Kind == "column" && t.Of == copied+table && !required(was) && required(is) {
			names = append(names, literal(t.Name))
			counts = append(counts, fmt.Sprintf("count(*) filter (where %s is null)", t.Name))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(`select %s, u.* from (select array[%s], array[%s] from public.%s) n (names, counts),
		unnest(names, counts) u`, literal(table), strings.Join(names, ", "), strings.Join(counts, ", "), table)
}

// The columns of GEM's own tables that decide which rows change, and the values used for missing columns.
var coreColumns = map[string][][2]string{
	"core_tool_calls": {
		{"id", "null::uuid"}, {"status", "null::text"}, {"attempt", "null::integer"}, {"claimed_by", "null::text"},
		{"claimed_at", "null::timestamptz"}, {"priority", "null::integer"}, {"level", "0"},
		{"created_at", "null::timestamptz"}, {"updated_at", "null::timestamptz"}, {"run_at", "null::timestamptz"},
		{"events", "0"},
	},
	"core_tool_receipts": {
		{"id", "null::uuid"}, {"call_id", "null::uuid"}, {"tool_name", "null::text"}, {"status", "null::text"},
		{"effects", "null::jsonb"}, {"created_at", "null::timestamptz"}, {"attempt", "null::integer"},
		{"idempotency_key", "null::text"},
	},
}

// countCore returns the query that counts the rows that tables/00002_earlier_gem.sql changes.
func countCore(was state) string {
	rows := func(table string) string {
		from := "" // one of the tables may be new, and empty
		var columns []string
		for _, c := range coreColumns[table] {
			value := c[1]
			if _, there := was[thing{"column", copied + table, c[0]}]; there {
				value, from = c[0], " from public."+table
			}
			columns = append(columns, value+" as "+c[0])
		}
		if from == "" {
			from = " where false"
		}
		return "(select " + strings.Join(columns, ", ") + from + ")"
	}
	return "with c as " + rows("core_tool_calls") + ", r as " + rows("core_tool_receipts") + ",\n" + coreRows
}

// grantsOn lists the new privileges on a table and on its columns.
func (c Changes) grantsOn(table string) []string {
	var lines []string
	for _, t := range sorted(c.is) {
		if from := c.was[t]; t.Kind == "grant" && (t.Name == table || t.Name == "columns of "+table) && from != c.is[t] {
			where := ""
			if t.Name != table {
				where = " of columns"
			}
			lines = append(lines, fmt.Sprintf("granted to %s: %s%s", t.Of, c.is[t], where))
		}
	}
	return lines
}
