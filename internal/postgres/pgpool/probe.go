package pgpool

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// probeTimeout limits how long Probe looks behind a pooler. After that the mode stays Unknown. It is long, so that a
// slow machine is not taken for a pooler whose connections are all in use. A stated mode is checked for statedTimeout
// only.
const (
	probeTimeout  = 10 * time.Second
	statedTimeout = 2 * time.Second
)

var errStatementMode = errors.New("the pooler is in statement mode, which has no transactions: " +
	"use its session or transaction mode, or connect directly")

var errNoSession = errors.New("the pooler is in transaction mode, and was stated to be in session mode: clients " +
	"would get each " +
	"other's settings. Set DATABASE_POOLER=transaction, or use the pooler's session mode")

var errReadOnly = errors.New("the server takes no writes: it is a standby, or was set to read-only, as some services " +
	"do when a disk is full")

// Probe returns the mode of url. It opens two connections and closes them again. It returns a stated mode other than
// Unknown unchanged, after Postgres has answered. It returns an error if Postgres does not answer or is read-only, if
// the pooler is in statement mode, or if it was stated to be in session mode and a client's server connection changes.
func Probe(ctx context.Context, url string, stated PoolMode) (PoolMode, error) {
	a, err := openProbe(ctx, url)
	if err != nil {
		return Unknown, err
	}
	defer a.close()
	if stated != Unknown {
		if _, err := a.serverAfter(ctx, "begin"); err != nil || stated != SessionPooler {
			return stated, err
		}
	}
	before, limit := "", probeTimeout
	if stated == SessionPooler {
		before, limit = "rollback", statedTimeout
	}
	first, err := a.serverAfter(ctx, before)
	if err != nil {
		return Unknown, err
	}

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b, err := openProbe(ctx, url)
	if err != nil {
		return stated, nil // no room for a second connection
	}
	defer b.close()
	second, err := b.serverAfter(ctx, "begin")
	switch {
	case errors.Is(err, errStatementMode):
		return Unknown, err
	case err != nil:
		return stated, nil
	case second == first && stated == SessionPooler:
		return Unknown, errNoSession
	case second == first:
		return TransactionPooler, nil
	}
	// Query a while b's transaction is open. Then query both without an open transaction, and a twice in a row, since some
	// poolers hand out the server connection that has been idle longest.
	for _, step := range []struct {
		probe *probe
		sql   string
		want  uint32
	}{{a, "", first}, {b, "rollback", second}, {a, "", first}, {a, "", first}, {b, "", second}} {
		got, err := step.probe.serverAfter(ctx, step.sql)
		switch {
		case stated == SessionPooler && err == nil && got != step.want:
			return Unknown, errNoSession
		case stated == SessionPooler && err != nil:
			return stated, nil // waiting proves nothing
		case pgconn.Timeout(err) || err == nil && got != step.want: // a pooler in session mode would not make it wait
			return TransactionPooler, nil
		case err != nil:
			return Unknown, nil
		}
	}
	if stated != Unknown {
		return stated, nil
	}
	// Postgres puts the server's process id into the key for cancel requests. A pooler makes up its own key.
	if a.PgConn().PID() == first && b.PgConn().PID() == second {
		return Direct, nil
	}
	return Unknown, nil
}

// probe is a connection that can report the process id of its server.
type probe struct{ *pgx.Conn }

func openProbe(ctx context.Context, url string) (*probe, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errMalformed
	}
	config.ConnectTimeout = connectTimeout
	setName(config, "gem probe")
	conn, err := pgx.ConnectConfig(ctx, config)
	return &probe{conn}, err
}

// serverAfter runs sql, which may be empty, and returns the process id of the server that ran it.
func (p *probe) serverAfter(ctx context.Context, sql string) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	results, err := p.PgConn().Exec(ctx,
		sql+"; select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('transaction_read_only')").ReadAll()
	switch {
	case err != nil && strings.Contains(err.Error(), "statement pooling"): // PgBouncer's answer to begin
		return 0, errStatementMode
	case err != nil:
		return 0, err
	case len(results[len(results)-1].Rows) == 0:
		return 0, errors.New("pg_backend_pid() returned no row")
	case string(results[len(results)-1].Rows[0][1]) == "on":
		return 0, errReadOnly
	}
	id, err := strconv.ParseUint(string(results[len(results)-1].Rows[0][0]), 10, 32)
	return uint32(id), err
}

// close waits until the other side closes the connection, since it counts as open until then. A connection that a
// timeout broke is closed at once.
func (p *probe) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.Close(ctx)
	_ = p.PgConn().Conn().Close()
}
