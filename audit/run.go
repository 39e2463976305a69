package audit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/*.sql
var statements embed.FS

// Beginner begins transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// settings are the settings of the audit's transaction, and end with it.
var settings = map[string]string{
	// No function or type of another schema can replace Postgres's own.
	"search_path": "pg_catalog, pg_temp",
	// A role that cannot see every row gets an error instead of a part of the truth.
	"row_security": "off",
	// Only the tables are read, so that a damaged index hides nothing. Every check reads all rows anyway, for which nested
	// loops and merge joins are never the best plan.
	"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off", "enable_nestloop": "off",
	"enable_mergejoin": "off",
	"jit":              "off", "work_mem": "64MB", "parallel_tuple_cost": "0.01",
	// A migration locks whole tables; the audit does not wait for it.
	"lock_timeout": "10s", "idle_in_transaction_session_timeout": "5min",
	"timezone": "UTC",
}

// Database checks a whole database in one read-only snapshot, while workers continue. It reads each table a few times:
// a million calls take about half a minute on two cores, and up to half a gigabyte of temporary files. Vacuum cannot
// remove dead rows in the meantime. The role must see all rows, as the owner of the tables does.
func Database(ctx context.Context, db Beginner, o Options) (*Report, error) {
	return run(ctx, db, databases, nil, o)
}

// run makes all checks of a source in one transaction. files are the archives.
func run(ctx context.Context, db Beginner, of source, files []File, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	began := time.Now()
	mode := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	if of == archives {
		mode.AccessMode = pgx.ReadWrite // load creates temporary tables
	}
	tx, err := db.BeginTx(ctx, mode)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	set := maps.Clone(settings)
	set["statement_timeout"] = strconv.FormatInt(o.Timeout.Milliseconds(), 10)
	for name, value := range set {
		if _, err := tx.Exec(ctx, "select pg_catalog.set_config($1, $2, true)", name, value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if of == archives {
		if err := load(ctx, tx, files); err != nil {
			return nil, err
		}
	}
	a := auditor{tx: tx, of: of}
	if a.lacks, err = lacking(ctx, tx); err != nil {
		return nil, err
	}
	sizes, err := a.sizes(ctx)
	if err != nil {
		return nil, err
	}

	var (
		report    Report
		file      string
		found     map[string]Result
		undecided string
	)
	for _, c := range Checks {
		if c.only != "" && c.only != of || slices.Contains(o.Skip, c.Name) || slices.Contains(a.lacks, c.needs) {
			continue
		}
		if c.file != file {
			file = c.file
			if found, undecided, err = a.decide(ctx, file, o.Examples); err != nil {
				return nil, err
			}
		}
		result := found[c.Name]
		result.Check, result.Remark, result.Of, result.LookedAt, result.Error = c.Name, c.Remark, c.counts, sizes[c.counts],
			undecided
		report.add(&o, result)
	}
	report.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	return &report, nil
}

// auditor runs the statements of the folder sql.
type auditor struct {
	tx    pgx.Tx
	of    source
	lacks []string // of the tables that checks need
}

// lacking returns the tables that checks need but the database lacks, because it lacks their domain.
func lacking(ctx context.Context, tx pgx.Tx) ([]string, error) {
	var needed []string
	for _, c := range Checks {
		if c.needs != "" {
			needed = append(needed, c.needs)
		}
	}
	rows, _ := tx.Query(ctx, "select t from unnest($1::text[]) t where to_regclass(t) is null", needed)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// statement returns a file of the folder sql. For archives it reads the temporary tables.
func (a auditor) statement(file string) string {
	sql, _ := statements.ReadFile("sql/" + file) // which is embedded
	if a.of == archives {
		return strings.ReplaceAll(string(sql), "public.core_tool_", "pg_temp.core_tool_")
	}
	return string(sql)
}

// sizes counts the objects to check.
func (a auditor) sizes(ctx context.Context) (map[string]int64, error) {
	sql := a.statement("sizes.sql")
	if a.of == archives {
		sql += " union all select 'lines', count(*) from pg_temp.archive_lines"
	} else {
		sql += " union all select 'counted calls', count(*) from gem.rule_runs union all select 'model requests', count(*) " +
			"from public.core_llm_requests " +
			"union all select 'budgets', count(*) from gem.llm_spend union all select 'occurrences', count(*) from " +
			"gem.occurrences union all select 'places', count(*) from gem.rule_places " +
			"union all select 'tables and views', count(*) from pg_class " +
			"where relnamespace = 'gem'::regnamespace and relkind in ('r', 'v') " +
			"or relnamespace = 'public'::regnamespace and relname like 'core\\_%' and relkind = 'r'"
		if !slices.Contains(a.lacks, "public.extract_document_parts") {
			sql += " union all select 'document parts', count(*) from public.extract_document_parts"
		}
	}
	sizes := map[string]int64{}
	rows, _ := a.tx.Query(ctx, sql) // the rows have the error of the query
	var name string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { sizes[name] = n; return nil })
	return sizes, explained(err, insufficientPrivilege,
		"an audit must see every row, and this role cannot: connect as the owner of the tables (%s)")
}

// decide runs the statement of a file. After an error of Postgres, for example because a value cannot be cast, only the
// checks of this file are undecided; undecided is Postgres's message.
func (a auditor) decide(ctx context.Context, file string, examples int) (found map[string]Result, undecided string,
	err error) {
	err = pgx.BeginFunc(ctx, a.tx, func(savepoint pgx.Tx) (err error) {
		found, err = auditor{savepoint, a.of, a.lacks}.findings(ctx, file, examples)
		return err
	})
	var pgErr *pgconn.PgError
	if ctx.Err() == nil && errors.As(err, &pgErr) {
		return nil, pgErr.Message, nil
	}
	return found, "", err
}

// findings counts what the statement of a file finds, and returns the first few examples of each check.
func (a auditor) findings(ctx context.Context, file string, examples int) (map[string]Result, error) {
	sql := a.statement(file)
	if file == "effects.sql" { // which reads the tables that receipts name
		var tables, rows string
		if err := a.tx.QueryRow(ctx, a.statement("tables.sql")).Scan(&tables, &rows); err != nil {
			return nil, err
		}
		sql = strings.NewReplacer("{{tables}}", tables, "{{rows}}", rows).Replace(sql)
	}
	rows, _ := a.tx.Query(ctx, `
		select name, count(*), array_agg(id order by place) filter (where place <= $1),
			array_agg(what order by place) filter (where place <= $1)
		from (
			select name, coalesce(id, '') as id, coalesce(what, '') as what,
				row_number() over (partition by name order by length(id), id, what) as place
			from (`+sql+`
			) found (name, id, what)
		) numbered
		group by name`, examples)
	found := map[string]Result{}
	var (
		name      string
		count     int64
		ids, what []string
	)
	_, err := pgx.ForEachRow(rows, []any{&name, &count, &ids, &what}, func() error {
		result := Result{Found: count}
		for i := range ids {
			result.Examples = append(result.Examples, Finding{ids[i], what[i]})
		}
		found[name] = result
		return nil
	})
	return found, err
}

// SQLSTATEs of Postgres.
const (
	insufficientPrivilege = "42501"
	undefinedObject       = "42704"
)

// explained explains an error of Postgres with that SQLSTATE, including its message, and returns other errors
// unchanged. It does not wrap the error, because a caller that finds a *PgError would show Postgres's words instead.
func explained(err error, code, words string) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == code {
		return fmt.Errorf(words, pgErr.Message)
	}
	return err
}
