package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// roundTrip sends a commit, if there is one, and what waits in the queue. It reports whether another transaction has
// the lane now.
func (l *Lanes) roundTrip(conn *pgxpool.Conn, commit ...*job) (taken bool) {
	s, _ := l.statements(context.Background(), conn)
	jobs := l.take(commit, s)
	last := len(jobs) - 1
	if last < 0 || s.prepared[jobs[last].sql] != nil {
		return l.exchange(conn, s, jobs)
	}
	// Preparing a first statement may wait for a lock as long as its handler does. The receipts go before it.
	l.exchange(conn, s, jobs[:last])
	if len(s.prepared) >= maxStatements { // of a handler that builds its SQL
		_ = conn.Conn().Close(jobs[last].handler)
	}
	if err := s.prepare(jobs[last].handler, jobs[last].sql); conn.Conn().IsClosed() {
		l.putBack(jobs[last:])
		return false
	} else if err != nil {
		jobs[last].done <- err
		return false
	}
	return l.exchange(conn, s, jobs[last:])
}

// exchange sends jobs and reads the answers, up to those of a first statement, which comes last and gets the lane.
func (l *Lanes) exchange(conn *pgxpool.Conn, s *statements, jobs []*job) (taken bool) {
	ctx, cancel := context.WithCancel(context.Background())
	deadline := time.AfterFunc(StatementTimeout, cancel)
	defer deadline.Stop()
	pipeline := conn.Conn().PgConn().StartPipeline(ctx)
	jobs = slices.DeleteFunc(jobs, func(j *job) bool { return !s.send(pipeline, j) })
	_ = pipeline.Flush() // its error comes again with the first answer
	for len(jobs) > 0 {
		j, behind := jobs[0], jobs[1:]
		if j.handler != nil && !conn.Conn().IsClosed() {
			j.conn, j.pipeline, j.cancel = conn, pipeline, cancel
			j.done <- nil
			return true
		}
		if !j.commit && conn.Conn().IsClosed() {
			l.putBack(jobs)
			break
		}
		err := j.read(conn, pipeline)
		if err != nil && conn.Conn().IsClosed() {
			err = errors.Join(ErrConnectionLost, err)
		}
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ErrBlocked, err)
		}
		if jobs = behind; j.commit && !j.written { // it broke its transaction, in which those behind it were refused
			l.putBack(behind)
			jobs = nil
		}
		j.done <- err
	}
	_ = pipeline.Close()
	cancel()
	return false
}

// read reads the answers to a receipt, to its commit, and to the sync behind them.
func (j *job) read(conn *pgxpool.Conn, pipeline *pgconn.Pipeline) error {
	rows, err := readAnswer(pipeline, false)
	if err == nil {
		for rows.NextRow() {
			for i, value := range rows.Values()[:min(len(j.values), len(rows.Values()))] {
				*j.values[i] = string(value)
			}
		}
		_, err = rows.Close()
	}
	if j.written = err == nil; j.written && j.commit {
		_, err = readAnswer(pipeline, true)
	}
	_, syncErr := pipeline.GetResults()
	if store.IsStale(err) { // prepared statements on the connection are not what they were
		_ = conn.Conn().Close(context.Background()) // which does not wait for an answer
	}
	return errors.Join(err, syncErr)
}

// readAnswer reads the answer to a statement, up to its rows, or with the rows if they do not matter.
func readAnswer(pipeline *pgconn.Pipeline, withRows bool) (*pgconn.ResultReader, error) {
	results, err := pipeline.GetResults()
	rows, ok := results.(*pgconn.ResultReader)
	if err == nil && !ok {
		err = ErrConnectionLost
	}
	if err == nil && withRows {
		_, err = rows.Close()
	}
	return rows, err
}

// statements is the statement cache of one connection.
type statements struct {
	conn *pgx.Conn
	// they stay on the server; otherwise only their descriptions stay here
	keeps    bool
	prepared map[string]*pgconn.StatementDescription // by SQL
	builder  pgx.ExtendedQueryBuilder
}

// begin sets the isolation level that the state machine requires, whatever the server's default is.
const begin = "begin isolation level read committed"

// cacheKey is where a connection keeps its cache. A connection whose cache is full is closed.
const cacheKey, maxStatements = "gem statements", 256

// statements returns the cache of a connection. On a new one it prepares what every call needs.
func (l *Lanes) statements(ctx context.Context, conn *pgxpool.Conn) (s *statements, err error) {
	data := conn.Conn().PgConn().CustomData()
	s, ok := data[cacheKey].(*statements)
	if !ok {
		s = &statements{conn: conn.Conn(), keeps: l.keeps, prepared: map[string]*pgconn.StatementDescription{}}
		data[cacheKey] = s
		err = errors.Join(s.prepare(ctx, store.FinishSQL), s.prepare(ctx, store.FinishChildSQL),
			s.prepare(ctx, store.StepSQL), s.prepare(ctx, begin), s.prepare(ctx, "commit"))
	}
	return s, err
}

// prepare adds a statement. It must not be called inside a transaction, which an error would break.
func (s *statements) prepare(ctx context.Context, sql string) error {
	name := ""
	if s.keeps {
		name = sql // from which pgx makes a short one
	}
	description, err := s.conn.Prepare(ctx, name, sql)
	if err == nil {
		s.prepared[sql] = description
	}
	return err
}

// send sends a job and a sync. A job whose arguments cannot be encoded is done, with the error.
func (s *statements) send(to *pgconn.Pipeline, j *job) (sent bool) {
	defer func() {
		if v := recover(); v != nil { // in an argument that encodes itself, which must not harm other calls
			j.done <- fmt.Errorf("an argument of the statement cannot be encoded: %v", v)
		}
	}()
	if err := s.builder.Build(s.conn.TypeMap(), s.prepared[j.sql], j.args); err != nil {
		j.done <- err
		return false
	}
	if j.handler != nil {
		s.sendOne(to, begin, &pgx.ExtendedQueryBuilder{})
	}
	s.sendOne(to, j.sql, &s.builder)
	if j.commit {
		s.sendOne(to, "commit", &pgx.ExtendedQueryBuilder{})
	}
	to.SendPipelineSync()
	return true
}

func (s *statements) sendOne(to *pgconn.Pipeline, sql string, b *pgx.ExtendedQueryBuilder) {
	if statement := s.prepared[sql]; s.keeps {
		to.SendQueryStatement(statement, b.ParamValues, b.ParamFormats, b.ResultFormats)
	} else {
		to.SendQueryParams(sql, b.ParamValues, statement.ParamOIDs, b.ParamFormats, b.ResultFormats)
	}
}
