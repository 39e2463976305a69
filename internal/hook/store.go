package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// store keeps the history of sessions in Postgres.
type store struct {
	url    string
	source string
	within time.Duration // time limit for a statement and its connection
}

// facts returns the facts of the act's session that a question needs.
func (s store) facts(ctx context.Context, a *act, q question) (history []fact, err error) {
	err = s.with(ctx, s.within, func(ctx context.Context, conn *pgx.Conn) error {
		var facts []byte
		if err := conn.QueryRow(ctx, "select gem.hook_facts($1, $2, $3)", s.source, a.session,
			q.paths()).Scan(&facts); err != nil {
			return err
		}
		return json.Unmarshal(facts, &history)
	})
	return history, err
}

// record adds the facts of an act. Its time limit is ten times as long, because nobody waits for a verdict, and missing
// facts make later verdicts wrong.
func (s store) record(ctx context.Context, a *act, facts []fact) error {
	text, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	return s.with(ctx, 10*s.within, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "select gem.hook_record($1, $2, $3, $4, $5)", s.source, a.session, a.id, string(a.event),
			string(text))
		return err
	})
}

// with opens a connection for one statement. The statement takes one round trip and works through any pooler.
func (s store) with(ctx context.Context, within time.Duration, do func(context.Context, *pgx.Conn) error) (err error) {
	if s.url == "" {
		return errors.New("DATABASE_URL is not set")
	}
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return errors.New("DATABASE_URL is not a connection string") // pgx's error may quote it
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "gem hook"
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer func() {
		if err != nil && (ctx.Err() != nil || pgconn.Timeout(err)) { // the connection's own timeout may come first
			err = fmt.Errorf("Postgres did not answer within %s (GEM_HOOK_TIMEOUT)", //nolint:staticcheck // a name begins it
				within)
		}
	}()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return do(ctx, conn)
}
