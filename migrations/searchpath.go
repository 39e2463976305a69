package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// GEM's own SQL finds functions, operators and types only in pg_catalog. Otherwise an overload in a schema of the
// login's search path could match better than Postgres's own, and run as the login. The files of a program keep the
// login's search path. All of these settings end with the transaction.
const (
	// keepSchema remembers the schema in which objects without a schema have been created so far.
	keepSchema = "select pg_catalog.set_config('gem.schema', coalesce(pg_catalog.current_schema()::text, ''), true);\n"
	// asGEM begins GEM's own SQL.
	asGEM = keepSchema + "set local search_path = pg_catalog, pg_temp;\n"
	// asLogin begins the SQL of a program.
	asLogin = "select pg_catalog.set_config('search_path', pg_catalog.current_setting('gem.search_path'), true);\n"
	// firstAsGEM is asGEM at the beginning of a transaction.
	firstAsGEM = "select pg_catalog.set_config('gem.search_path', pg_catalog.current_setting('search_path'), true);\n" +
		asGEM
)

// inTx runs do in a transaction with GEM's settings.
func inTx(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	// Independent of the server's default: a process that waited for the lock must see the writes of the previous holder.
	begin := "begin isolation level read committed;\n" + firstAsGEM
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, do)
}

// own reports whether the file is GEM's own.
func (f file) own() bool { return slices.Contains([]string{core, functions, apiSource}, f.source) }

// applied returns the SQL that applies the file and records it.
func (f file) applied() string {
	names := fmt.Sprintf("select pg_catalog.set_config('gem.names', %s, true);\n",
		literal("{"+strings.Join(quoted(f.names()), ",")+"}"))
	if f.own() {
		return names + f.closed() + f.record()
	}
	// the file may have changed the path
	return names + asLogin + f.closed() + asGEM + f.record() + ";\n" + asLogin + asGEM
}
