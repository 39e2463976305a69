package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// lab is a private Postgres with durability on. Each run of a contestant gets its own database.
type lab struct {
	server  postgres
	folder  string
	scratch string // for everything except data
	after   string // SQL to run in GEM's databases after their migration
	made    atomic.Int64
}

// postgres is a private server.
type postgres interface {
	URL(database string) string
	Stop() error
}

// startLab starts the server, with its data in a new folder below in. The folder should be on a real disk, so that
// commits have their real cost.
func startLab(ctx context.Context, in string) (*lab, error) {
	folder, err := os.MkdirTemp(in, "gem-bench-")
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "gem-bench-")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	server, err := startServer(ctx, folder, map[string]string{
		"shared_buffers":         "4GB",
		"max_wal_size":           "8GB",
		"checkpoint_timeout":     "30min",
		"track_commit_timestamp": "on", // shows when a receipt became visible
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder), os.RemoveAll(scratch))
	}
	return &lab{server: server, folder: folder, scratch: scratch}, nil
}

func (l *lab) stop() {
	if err := l.server.Stop(); err != nil {
		say("stop the server: %v", err)
	}
	if err := errors.Join(os.RemoveAll(l.folder), os.RemoveAll(l.scratch)); err != nil {
		say("remove the folders: %v", err)
	}
}

// admin connects to a database that no contestant uses.
func (l *lab) admin(ctx context.Context) (*pgxpool.Pool, error) {
	return pgxpool.New(ctx, l.server.URL("postgres"))
}

// stage is a database with a contestant's tables.
type stage struct {
	url  string
	name string        // of the database
	db   *pgxpool.Pool // for the bench itself
	drop func()
}

func (l *lab) stage(ctx context.Context, c contestant) (*stage, error) {
	admin, err := l.admin(ctx)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	name := fmt.Sprintf("bench_%d", l.made.Add(1))
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return nil, err
	}
	s := &stage{url: l.server.URL(name), name: name}
	db, err := s.connect(ctx, 40)
	if err != nil {
		return nil, err
	}
	s.db = db
	s.drop = func() {
		db.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		admin, err := l.admin(ctx)
		if err != nil {
			return
		}
		defer admin.Close()
		_, _ = admin.Exec(ctx, "drop database "+name+" with (force)")
	}
	if err := c.Migrate(ctx, db); err != nil {
		s.drop()
		return nil, fmt.Errorf("make its tables: %w", err)
	}
	if strings.HasPrefix(c.Name(), gem.Name()) {
		if _, err := db.Exec(ctx, l.after); err != nil {
			s.drop()
			return nil, fmt.Errorf("run the SQL of -after: %w", err)
		}
	}
	return s, nil
}

// postmaster returns the process id of the server's main process, the parent of all others.
func (s *stage) postmaster(ctx context.Context) (pid int, err error) {
	var backend int
	if err := s.db.QueryRow(ctx, "select pg_backend_pid()").Scan(&backend); err != nil {
		return 0, err
	}
	stat, err := readStat(backend)
	return stat.parent, err
}

// connect opens connections without a ping before each use, as clients do.
func (s *stage) connect(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	return pgxpool.NewWithConfig(ctx, config)
}

// settle brings the server into the same state before each run: up-to-date statistics, and nothing left to write.
func (s *stage) settle(ctx context.Context) error {
	for _, statement := range []string{"vacuum (analyze)", "checkpoint"} {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// ended returns the number of ended calls.
func (s *stage) ended(ctx context.Context, c contestant) (n int, err error) {
	err = s.db.QueryRow(ctx, "select count(*) from ("+c.Ended()+") e").Scan(&n)
	return n, err
}
