package testdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gemworker/gem/internal/pgbouncer"
	"github.com/gemworker/gem/internal/pgserver"
	"github.com/gemworker/gem/migrations"
)

// server is where the databases are created.
type server struct {
	admin   *url.URL         // of the database to create others from
	private *pgserver.Server // nil when TEST_DATABASE_URL names the server
	pooler  atomic.Pointer[pgbouncer.Pooler]
	idle    chan *pgx.Conn // to admin, between statements: connecting costs as much as a copy

	mu        sync.Mutex
	templates map[string]*template // what New copies, by the sources they hold
}

// template is a migrated database.
type template struct {
	migrate sync.Once
	name    string
	err     error // why there is none
}

// running is the server of this test binary once it was asked for, for stopServer.
var running atomic.Pointer[server]

// theServer starts the server when it is called first.
var theServer = sync.OnceValues(func() (*server, error) {
	// A minute is plenty for a start; the rest is for a download.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := startServer(ctx, os.Getenv("TEST_DATABASE_URL"))
	if err == nil {
		running.Store(s)
	}
	return s, err
})

// startServer starts a private server, or uses the one of the external URL when there is one.
func startServer(ctx context.Context, external string) (*server, error) {
	if external != "" {
		admin, err := url.Parse(external)
		if err != nil || admin.Scheme != "postgres" && admin.Scheme != "postgresql" {
			return nil, errors.New("TEST_DATABASE_URL must have the form postgres://user:password@host:5432/database")
		}
		return newServer(admin, nil), nil
	}
	private, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		return nil, err
	}
	admin, err := url.Parse(private.URL("postgres"))
	return newServer(admin, private), err
}

func newServer(admin *url.URL, private *pgserver.Server) *server {
	return &server{admin: admin, private: private, idle: make(chan *pgx.Conn, 2), templates: map[string]*template{}}
}

// stopServer stops what theServer started, if anything.
func stopServer() error {
	s := running.Swap(nil)
	if s == nil {
		return nil
	}
	return s.stop()
}

// stop removes what the tests left: the server, or the templates on a server that stays.
func (s *server) stop() error {
	if p := s.pooler.Load(); p != nil {
		p.Stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer s.closeIdle(ctx)
	if s.private != nil {
		return s.private.Stop()
	}
	var failed []error
	for _, t := range s.templates {
		if t.name != "" {
			failed = append(failed, s.drop(ctx, t.name))
		}
	}
	return errors.Join(failed...)
}

// migrated is the name of the template with these sources, which is created when it is first asked for.
func (s *server) migrated(sources []migrations.Source) (string, error) {
	var all strings.Builder
	if err := migrations.Print(&all, "", migrations.Options{}, sources...); err != nil {
		return "", err
	}
	s.mu.Lock()
	t := s.templates[all.String()]
	if t == nil {
		t = &template{}
		s.templates[all.String()] = t
	}
	s.mu.Unlock()
	t.migrate.Do(func() {
		// Not the time of the test which came first: all others wait for this too.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		name := randomName()
		if t.err = s.create(ctx, name, "template0"); t.err != nil {
			return
		}
		t.name = name
		t.err = migrations.Up(ctx, s.url(name), sources...)
	})
	return t.name, t.err
}

func (s *server) url(database string) string {
	u := *s.admin
	u.Path = "/" + database
	return u.String()
}

func randomName() string { return "gem_test_" + strings.ToLower(rand.Text()) }

func (s *server) create(ctx context.Context, name, template string) error {
	sql := "CREATE DATABASE " + name + " TEMPLATE " + template
	if s.private != nil {
		sql += " STRATEGY file_copy" // almost twice as fast where a checkpoint has no disk to wait for
	}
	return s.exec(ctx, sql)
}

// drop cuts the connections that are left.
func (s *server) drop(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// exec runs one statement.
func (s *server) exec(ctx context.Context, sql string) error {
	var conn *pgx.Conn
	select {
	case conn = <-s.idle:
	default:
		var err error
		if conn, err = pgx.Connect(ctx, s.admin.String()); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", sql, err), conn.Close(context.WithoutCancel(ctx)))
	}
	select {
	case s.idle <- conn:
		return nil
	default:
		return conn.Close(context.WithoutCancel(ctx))
	}
}

func (s *server) closeIdle(ctx context.Context) {
	for {
		select {
		case conn := <-s.idle:
			_ = conn.Close(ctx)
		default:
			return
		}
	}
}
