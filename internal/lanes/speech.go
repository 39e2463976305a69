package lanes

import (
	"context"
	"fmt"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// speech is what was prepared on one connection, and how it is sent there.
type speech struct {
	conn *pgx.Conn
	// named says that statements stay prepared on the server. Through a transaction pooler none may, and each is sent whole.
	named bool
	known map[string]phrase // by SQL
	built pgx.ExtendedQueryBuilder
}

// phrase is a statement whose parameters and columns are known.
type phrase struct {
	*pgconn.StatementDescription
	formats []int16 // of its columns
}

// maxKnown bounds what a connection keeps prepared, for handlers that build their SQL.
const maxKnown = 256

// speechKey is where a connection keeps its speech.
const speechKey = "gem speech"

// speechOf returns the speech of a connection. The first time it prepares what every call needs.
func speechOf(ctx context.Context, conn *pgx.Conn) (*speech, error) {
	if s, ok := conn.PgConn().CustomData()[speechKey].(*speech); ok {
		return s, nil
	}
	s := &speech{conn: conn, named: keepsStatements(conn.Config())}
	if err := s.reset(ctx); err != nil {
		return nil, err
	}
	conn.PgConn().CustomData()[speechKey] = s
	return s, nil
}

// keepsStatements says that statements may stay prepared on the server, since a client keeps its server connection.
func keepsStatements(config *pgx.ConnConfig) bool {
	return config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

func (s *speech) reset(ctx context.Context) error {
	s.known = map[string]phrase{}
	for _, sql := range []string{store.FinishSQL, "begin", "commit"} {
		if err := s.learn(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (s *speech) knows(sql string) bool {
	_, ok := s.known[sql]
	return ok
}

// learn prepares a statement. It must not be called inside a transaction that an error would break.
func (s *speech) learn(ctx context.Context, sql string) error {
	if s.knows(sql) {
		return nil
	}
	if len(s.known) >= maxKnown {
		err := s.conn.DeallocateAll(ctx)
		if err == nil {
			err = s.reset(ctx)
		}
		if err != nil {
			_ = s.conn.Close(ctx) // it knows half of what it should
			return err
		}
	}
	name := sql // from which pgx makes a short one
	if !s.named {
		name = ""
	}
	description, err := s.conn.Prepare(ctx, name, sql)
	if err != nil {
		return err
	}
	p := phrase{description, make([]int16, len(description.Fields))}
	for i, field := range description.Fields {
		p.formats[i] = s.conn.TypeMap().FormatCodeForOID(field.DataTypeOID)
	}
	s.known[sql] = p
	return nil
}

// say sends a known statement, after a word if there is one. After an error, which the arguments cause, nothing was sent.
func (s *speech) say(to *pgconn.Pipeline, word, sql string, args []any) (err error) {
	defer func() {
		if v := recover(); v != nil { // of an argument that encodes itself: it is its handler's fault alone
			err = fmt.Errorf("an argument of the statement can not be encoded: %v", v)
		}
	}()
	p := s.known[sql]
	if err := s.built.Build(s.conn.TypeMap(), p.StatementDescription, args); err != nil {
		return err
	}
	if word != "" {
		s.sayWord(to, word)
	}
	if s.named {
		to.SendQueryStatement(p.StatementDescription, s.built.ParamValues, s.built.ParamFormats, p.formats)
	} else {
		to.SendQueryParams(p.SQL, s.built.ParamValues, p.ParamOIDs, s.built.ParamFormats, p.formats)
	}
	return nil
}

// sayWord sends begin or commit.
func (s *speech) sayWord(to *pgconn.Pipeline, word string) {
	if s.named {
		to.SendQueryPrepared(s.known[word].Name, nil, nil, nil)
	} else {
		to.SendQueryParams(word, nil, nil, nil, nil)
	}
}
