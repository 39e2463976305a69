package testdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/migrations"
)

// server is the server on which the databases are created.
type server struct {
	admin   *url.URL         // the database for creating others
	private *pgserver.Server // nil if TEST_DATABASE_URL names the server
	pooler  atomic.Pointer[pgbouncer.Pooler]
	idle    chan *pgx.Conn // connections to admin for reuse: connecting costs as much as a copy

	mu        sync.Mutex
	templates map[string]*template // by the SQL that created them, or the name of NewLike
}

// template is a database to copy.
type template struct {
	made sync.Once
	name string
	err  error // the reason if it could not be created
}

// running is the server of this test binary if it was started, for stopServer.
var running atomic.Pointer[server]

var starting struct {
	sync.Once
	server *server
	err    error
}

// theServer starts the server on its first call, with a template for those sources.
func theServer(sources []migrations.Source) (*server, error) {
	starting.Do(func() {
		// A minute is enough for a start. The rest is for a download.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		starting.server, starting.err = startServer(ctx, os.Getenv("TEST_DATABASE_URL"), sources)
		if starting.err == nil {
			running.Store(starting.server)
		}
	})
	return starting.server, starting.err
}

// startServer starts a private server, or uses the server of the external URL if there is one.
func startServer(ctx context.Context, external string, sources []migrations.Source) (*server, error) {
	if external != "" {
		admin, err := url.Parse(external)
		if err != nil || admin.Scheme != "postgres" && admin.Scheme != "postgresql" {
			return nil, errors.New("TEST_DATABASE_URL must have the form postgres://user:password@host:5432/database")
		}
		return newServer(admin, nil), nil
	}
	sql, err := printed(sources)
	if err != nil {
		return nil, err
	}
	made, err := madeBefore(ctx, sql, func(s *server) error {
		if err := s.create(ctx, madeName, "template0"); err != nil {
			return err
		}
		return migrations.Up(ctx, s.url(madeName), sources...)
	})
	if err != nil {
		return nil, err
	}
	private, err := pgserver.Start(ctx, pgserver.Options{Template: made,
		Settings: map[string]string{"autovacuum": "off"}}) // a tenth of a test's CPU, and no database lives long
	if err != nil {
		return nil, err
	}
	admin, err := url.Parse(private.URL("postgres"))
	s := newServer(admin, private)
	t := &template{name: madeName}
	t.made.Do(func() {})
	s.templates[sql] = t
	return s, err
}

// madeName is the database in a data folder that was created before.
const madeName = "gem_template"

func newServer(admin *url.URL, private *pgserver.Server) *server {
	return &server{admin: admin, private: private, idle: make(chan *pgx.Conn, 2), templates: map[string]*template{}}
}

// stopServer stops the server of theServer, if it was started.
func stopServer() error {
	s := running.Swap(nil)
	if s == nil {
		return nil
	}
	return s.stop()
}

// stop removes what the tests left: the private server, or the templates on an external server.
func (s *server) stop() error {
	if p := s.pooler.Load(); p != nil {
		p.Stop()
	}
	if shared.stop != nil {
		shared.stop()
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

// migrated returns the name of the template with these sources. It creates the template on first use.
func (s *server) migrated(sources []migrations.Source) (string, error) {
	sql, err := printed(sources)
	if err != nil {
		return "", err
	}
	return s.template(sql, func(url string) error {
		// The limit is not that of the first test's context, because all other tests also wait for this.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		return migrations.Up(ctx, url, sources...)
	})
}

// template returns the name of the template of a key. On first use it is created, and filled by fill, which must leave
// no connection: nobody can copy a database that others use.
func (s *server) template(key string, fill func(url string) error) (string, error) {
	s.mu.Lock()
	t := s.templates[key]
	if t == nil {
		t = &template{}
		s.templates[key] = t
	}
	s.mu.Unlock()
	t.made.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		name := randomName()
		if t.err = s.create(ctx, name, "template0"); t.err != nil {
			return
		}
		t.name = name
		t.err = fill(s.url(name))
	})
	return t.name, t.err
}

// printed returns a text that changes with every migration file of GEM and of the sources.
func printed(sources []migrations.Source) (string, error) {
	own, err := ownFiles()
	if err != nil {
		return "", err
	}
	var all strings.Builder
	all.WriteString(own)
	for _, source := range sources {
		fmt.Fprintf(&all, "%s %q\n", source.Name, source.Grants)
		err := fs.WalkDir(source.Files, ".", func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".sql") {
				return err
			}
			text, err := fs.ReadFile(source.Files, path)
			fmt.Fprintf(&all, "%s %s\n", path, text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return all.String(), nil
}

var ownFiles = sync.OnceValues(func() (string, error) {
	var all strings.Builder
	err := migrations.Print(&all, "", migrations.Options{})
	return all.String(), err
})

func (s *server) url(database string) string {
	u := *s.admin
	u.Path = "/" + database
	return u.String()
}

func randomName() string { return "gem_test_" + strings.ToLower(rand.Text()) }

func (s *server) create(ctx context.Context, name, template string) error {
	sql := "CREATE DATABASE " + name + " TEMPLATE " + template
	if s.private != nil {
		sql += " STRATEGY file_copy" // almost twice as fast if a checkpoint need not wait for a disk
	}
	return s.exec(ctx, sql)
}

// drop drops a database. It breaks the remaining connections.
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
