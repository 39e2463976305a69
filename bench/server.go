package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/internal/pgserver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lab is a private Postgres with durability on, and a database for each run of a contestant.
type lab struct {
	server *pgserver.Server
	folder string
	made   atomic.Int64
}

// startLab starts the server, with its data on a real disk: a commit is to cost what it costs.
func startLab(ctx context.Context) (*lab, error) {
	folder, err := os.MkdirTemp("", "gem-bench-")
	if err != nil {
		return nil, err
	}
	server, err := pgserver.Start(ctx, pgserver.Options{DataDir: folder, Durable: true, Settings: map[string]string{
		"shared_buffers":         "1GB",
		"max_wal_size":           "8GB",
		"checkpoint_timeout":     "30min",
		"track_commit_timestamp": "on", // says when a receipt was there to be seen
	}})
	if err != nil {
		return nil, err
	}
	return &lab{server: server, folder: folder}, nil
}

func (l *lab) stop() {
	if err := l.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the server:", err)
	}
	_ = os.RemoveAll(l.folder)
}

// stage is a database with a contestant's tables in it.
type stage struct {
	url  string
	db   *pgxpool.Pool // for the bench itself
	drop func()
}

func (l *lab) stage(ctx context.Context, c contestant) (*stage, error) {
	admin, err := pgxpool.New(ctx, l.server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	name := fmt.Sprintf("bench_%d", l.made.Add(1))
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(l.server.URL(name))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 40
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s := &stage{url: l.server.URL(name), db: db}
	s.drop = func() {
		db.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		admin, err := pgxpool.New(ctx, l.server.URL("postgres"))
		if err != nil {
			return
		}
		defer admin.Close()
		_, _ = admin.Exec(ctx, "drop database "+name+" with (force)")
	}
	if err := c.Migrate(ctx, db); err != nil {
		s.drop()
		return nil, fmt.Errorf("%s: make its tables: %w", c.Name(), err)
	}
	return s, nil
}

// settle makes the server start each run from the same state: statistics taken, nothing left to write.
func (s *stage) settle(ctx context.Context) error {
	for _, statement := range []string{"vacuum (analyze)", "checkpoint"} {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// ended counts the calls that have ended.
func (s *stage) ended(ctx context.Context, c contestant) (n int, err error) {
	err = s.db.QueryRow(ctx, "select count(*) from ("+c.Ended()+") e").Scan(&n)
	return n, err
}
