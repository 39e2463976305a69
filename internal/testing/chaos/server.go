//go:build !windows

package chaos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// server is Postgres. It is stopped and started again on the same data, each time on another port. The workers connect
// through their proxies and do not notice the new port. The pool of the harness follows it.
type server struct {
	options pgserver.Options
	pool    *pgxpool.Pool // of the harness, connects directly to the server

	mu      sync.Mutex
	running *pgserver.Server
	url     *url.URL // of the running server, or of the last one

	restarting sync.Mutex
}

// labTables are the tables of the tools, and the tables that the checks compare with.
//
//go:embed lab.sql
var labTables string

// startServer starts Postgres on the data in folder, with GEM's tables and those of the tools. Commits are durable: an
// acknowledged commit survives an immediate stop.
func startServer(ctx context.Context, folder string) (_ *server, err error) {
	s := &server{options: pgserver.Options{DataDir: folder, Durable: true}}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	config, err := pgxpool.ParseConfig(s.address().String())
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2*frontends + 4
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		port, err := strconv.ParseUint(s.address().Port(), 10, 16)
		c.Port = uint16(port)
		return err
	}
	pgpool.Configure(config.ConnConfig, pgpool.Options{Mode: pgpool.Direct, Name: "chaos"})
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, s.address().String()); err != nil {
		return nil, err
	}
	_, err = s.pool.Exec(ctx, labTables)
	return s, err
}

func (s *server) start(ctx context.Context) error {
	running, err := pgserver.Start(ctx, s.options)
	if err != nil {
		return err
	}
	u, err := url.Parse(running.URL("postgres"))
	if err != nil {
		return errors.Join(err, running.Stop())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.url = running, u
	return nil
}

// address returns the address of the server, whether or not it is running.
func (s *server) address() *url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := *s.url
	return &u
}

// restart stops Postgres and starts it again after the pause. A fast stop ends running statements and writes everything
// to disk. An immediate stop ends like a crash, and the next start begins with recovery. While another restart is under
// way it does nothing and returns false.
func (s *server) restart(ctx context.Context, immediate bool, pause time.Duration) (done bool, err error) {
	if !s.restarting.TryLock() {
		return false, nil
	}
	defer s.restarting.Unlock()
	if immediate {
		if err := s.quit(); err != nil {
			return false, err
		}
	}
	if err := s.stop(); err != nil {
		return false, err
	}
	sleep(ctx, pause)
	return true, s.start(context.WithoutCancel(ctx))
}

// quit stops the server immediately, without notice to its clients.
func (s *server) quit() error {
	text, err := os.ReadFile(filepath.Join(s.options.DataDir, "data", "postmaster.pid"))
	if err != nil {
		return fmt.Errorf("find the server's process: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return fmt.Errorf("find the server's process: %w", err)
	}
	return syscall.Kill(pid, syscall.SIGQUIT)
}

// save copies the data while the server runs. The copy may contain commits made in the meantime.
func (s *server) save(ctx context.Context) error {
	var label string
	err := s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(ctx, "select pg_backup_start('saved', fast => true)"); err != nil {
			return err
		}
		// Files that vanish during the copy are not a fault: the log has their contents.
		_ = s.inFolder("cp -a data saved")
		return conn.QueryRow(ctx, "select labelfile from pg_backup_stop(wait_for_archive => false)").Scan(&label)
	})
	if err == nil {
		err = s.inFolder(`rm -rf saved/pg_wal && cp -a data/pg_wal saved/ && printf %s "$1" >saved/backup_label`, label)
	}
	if err != nil {
		return fmt.Errorf("copy the data: %w", err)
	}
	return nil
}

// goBack ends the server like a crash, and starts it on the saved copy. All commits since then are gone.
func (s *server) goBack(ctx context.Context) error {
	if err := s.quit(); err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}
	if err := s.inFolder("rm -rf data && mv saved data"); err != nil {
		return fmt.Errorf("go back to the copy of the data: %w", err)
	}
	return s.start(ctx)
}

// inFolder runs a shell command in the data folder, as its owner.
func (s *server) inFolder(command string, args ...string) error {
	cmd, err := pgserver.Command("/bin/sh", append([]string{"-c", command, "sh"}, args...)...)
	if err != nil {
		return err
	}
	cmd.Dir = s.options.DataDir
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

func (s *server) stop() error {
	s.mu.Lock()
	running := s.running
	s.running = nil
	s.mu.Unlock()
	if running == nil {
		return nil
	}
	return running.Stop()
}

func (s *server) close() error {
	if s.pool != nil {
		s.pool.Close()
	}
	return s.stop()
}

// isRefusal reports whether Postgres understood the statement and rejected it.
func isRefusal(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && !strings.HasPrefix(refused.Code, "57P") && refused.Code != "57014"
}
