package audit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/*.sql
var files embed.FS

// Beginner begins transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// settings of the audit's transaction. Nothing of them outlives it.
var settings = map[string]string{
	// A role that may not see every row gets an error, and not a part of the truth.
	"row_security": "off",
	// The tables are read, and never their indexes, so that a damaged index hides nothing; and every check looks at all
	// rows anyway, for which a nested loop or a join by merging is never the best way.
	"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off", "enable_nestloop": "off", "enable_mergejoin": "off",
	"jit": "off", "work_mem": "64MB", "parallel_tuple_cost": "0.01",
	// A migration has the tables for itself: it is not waited for.
	"lock_timeout": "10s", "idle_in_transaction_session_timeout": "5min",
	"timezone": "UTC",
}

// Database checks a whole database in one snapshot, without writing anything, while workers go on. It reads each table a
// few times: a million calls take about half a minute on two cores, and up to half a gigabyte for temporary files. Holding
// a snapshot for so long keeps vacuum from its work meanwhile.
//
// timeout is what a check may take; 0 means 15 minutes. The role must see all rows: the owner of the tables does.
func Database(ctx context.Context, db Beginner, timeout time.Duration, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = 15 * time.Minute
	}
	began := time.Now()
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for name, value := range settings {
		if _, err := tx.Exec(ctx, "select set_config($1, $2, true)", name, value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if _, err := tx.Exec(ctx, "select set_config('statement_timeout', $1, true)", fmt.Sprint(timeout.Milliseconds())); err != nil {
		return nil, fmt.Errorf("set statement_timeout: %w", err)
	}
	sizes, err := readSizes(ctx, tx)
	if err != nil {
		return nil, err
	}

	var report Report
	for i := 0; i < len(Checks) && Checks[i].file != ""; {
		// The checks of a file are decided by one statement.
		first := i
		for i < len(Checks) && Checks[i].file == Checks[first].file {
			i++
		}
		wanted := slices.DeleteFunc(slices.Clone(Checks[first:i]), func(c Check) bool { return o.skips(c.Name) })
		if len(wanted) == 0 {
			continue
		}
		found, undecided, err := decide(ctx, tx, wanted[0].file, o.Examples)
		if err != nil {
			return nil, err
		}
		for _, c := range wanted {
			result := found[c.Name]
			result.Check, result.Remark, result.Of, result.LookedAt, result.Error = c.Name, c.Remark, c.of, sizes[c.of], undecided
			report.add(&o, result)
		}
	}
	return report.end(began), nil
}

// decide runs the statement of a file. An error of Postgres's, such as over a value that is not what it should be, leaves
// its checks undecided, and not the others; undecided is what Postgres says.
func decide(ctx context.Context, tx pgx.Tx, file string, examples int) (found map[string]Result, undecided string, err error) {
	statement, err := files.ReadFile("sql/" + file)
	if err != nil {
		return nil, "", err
	}
	sql := string(statement)
	if file == "effects.sql" {
		if sql, err = withDomainTables(ctx, tx, sql); err != nil {
			return nil, "", err
		}
	}
	part, err := tx.Begin(ctx) // a savepoint
	if err != nil {
		return nil, "", err
	}
	found, err = findings(ctx, part, sql, examples)
	if err == nil {
		return found, "", part.Commit(ctx)
	}
	var pgErr *pgconn.PgError
	if ctx.Err() != nil || !errors.As(err, &pgErr) {
		return nil, "", err
	}
	return nil, pgErr.Message, part.Rollback(ctx)
}

// findings counts what a statement finds, and takes the first few of each check.
func findings(ctx context.Context, tx pgx.Tx, sql string, examples int) (map[string]Result, error) {
	rows, err := tx.Query(ctx, `
		select name, count(*), array_agg(id order by place) filter (where place <= $1), array_agg(what order by place) filter (where place <= $1)
		from (select *, row_number() over (partition by name order by id, what) as place from (`+sql+`
		) found (name, id, what)) numbered
		group by name`, examples)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string]Result{}
	for rows.Next() {
		var (
			name      string
			result    Result
			ids, what []string
		)
		if err := rows.Scan(&name, &result.Found, &ids, &what); err != nil {
			return nil, err
		}
		for i := range ids {
			result.Examples = append(result.Examples, Finding{ids[i], what[i]})
		}
		found[name] = result
	}
	return found, rows.Err()
}

func readSizes(ctx context.Context, tx pgx.Tx) (map[string]int64, error) {
	statement, err := files.ReadFile("sql/sizes.sql")
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{"guards": guards}
	rows, err := tx.Query(ctx, string(statement))
	if err == nil {
		var name string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { sizes[name] = n; return nil })
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		// Not wrapped: whoever finds a *PgError in it would pass on Postgres's words and not these.
		return nil, fmt.Errorf("an audit must see every row, and this role may not: connect as the owner of the tables (%s)", pgErr.Message)
	}
	return sizes, err
}

// guards is how many guards.sql looks for.
const guards = 26

// domainTables are the tables that the handlers of the built-in domains write to.
var domainTables = []string{"notes", "tasks", "reminders", "state_snapshots", "leads", "lead_sources", "lead_photo_links",
	"lead_stage_changes", "entities", "interactions", "comms_log"}

// withDomainTables writes into a statement those domain tables that the database has, and that have call_id as GEM's do.
func withDomainTables(ctx context.Context, tx pgx.Tx, sql string) (string, error) {
	rows, err := tx.Query(ctx, `
		select t.name from unnest($1::text[]) t (name)
		join pg_attribute c on c.attrelid = to_regclass('public.' || t.name) and c.attname = 'call_id' and c.atttypid = 'uuid'::regtype
		join pg_attribute i on i.attrelid = c.attrelid and i.attname = 'id'
		where not c.attisdropped and not i.attisdropped`, domainTables)
	if err != nil {
		return "", err
	}
	present, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", err
	}
	names, parts := []string{"''"}, []string{"select null::text as tab, null::text as id, null::uuid as call_id where false"}
	for _, name := range present {
		names = append(names, "'"+name+"'")
		parts = append(parts, fmt.Sprintf("select '%[1]s', id::text, call_id from public.%[1]s", name))
	}
	return strings.NewReplacer("{{tables}}", strings.Join(names, ", "), "{{rows}}", strings.Join(parts, " union all ")).Replace(sql), nil
}
