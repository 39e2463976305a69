// Package pgbouncer runs a real PgBouncer in front of a Postgres, for the tests.
package pgbouncer

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/jackc/pgx/v5"
)

// Mode is the period for which a client keeps its server connection.
type Mode string

// PgBouncer's modes.
const (
	Session     Mode = "session"
	Transaction Mode = "transaction"
	Statement   Mode = "statement"
)

// Options of a PgBouncer.
type Options struct {
	Mode Mode // the default is Transaction
	// PoolSize is the maximum of server connections per database. The default is 20.
	PoolSize int
	// Settings of pgbouncer.ini, by name, in addition to the built-in ones.
	Settings map[string]string
}

// Pooler is a PgBouncer in front of one server. It keeps its address when it is stopped and started again.
type Pooler struct {
	program         string
	users, settings string
	user            *url.Userinfo
	port            int

	mu    sync.Mutex
	pipe  *os.File // the keeper stops PgBouncer when this end closes; nil while it is not running
	ended chan struct{}
	log   *os.File
}

// Start starts a PgBouncer in front of the server of a database URL. It stops at the end of the test.
func Start(t testing.TB, serverURL string, o Options) *Pooler {
	t.Helper()
	p, err := Run(t.Context(), serverURL, o)
	switch {
	case errors.Is(err, errMissing) && os.Getenv("GEM_TEST_REQUIRE") == "":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("PgBouncer's log:\n%s", p.Log())
		}
		_ = p.log.Close()
	})
	return p
}

var errMissing = errors.New("there is no PgBouncer: apt-get install pgbouncer")

// Run is Start for a PgBouncer that outlives a test. The caller must stop it. It ends at the latest with this process.
func Run(ctx context.Context, serverURL string, o Options) (*Pooler, error) {
	program, err := find()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp("", "gem-pgbouncer-*.log")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(log.Name())
	p := &Pooler{program: program, log: log}
	const tries = 5 // another program may take the free port before PgBouncer does
	for range tries {
		if err = p.configure(serverURL, o); err != nil {
			break
		}
		if err = p.Start(ctx); err == nil {
			return p, nil
		}
	}
	return nil, errors.Join(err, log.Close())
}

// find also looks outside PATH, because Debian's program is only in root's PATH.
func find() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errMissing
}

func (p *Pooler) configure(serverURL string, o Options) error {
	server, err := url.Parse(serverURL)
	if err != nil {
		return errors.New("the server's URL is not valid")
	}
	free, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // returns at once
	if err != nil {
		return err
	}
	p.port = free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	p.user = server.User
	password, _ := server.User.Password()
	p.users = quote(server.User.Username()) + " " + quote(password)

	if o.Mode == "" {
		o.Mode = Transaction
	}
	if o.PoolSize == 0 {
		o.PoolSize = 20
	}
	port := server.Port()
	if port == "" {
		port = "5432"
	}
	set := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(p.port), "unix_socket_dir": "",
		"auth_type": "scram-sha-256", "auth_file": "users.txt", "admin_users": server.User.Username(),
		"pool_mode": string(o.Mode), "default_pool_size": strconv.Itoa(o.PoolSize), "max_client_conn": "2000",
		"server_tls_sslmode": "prefer",
	}
	maps.Copy(set, o.Settings)
	ini := []string{"[pgbouncer]"}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		ini = append(ini, name+" = "+set[name])
	}
	ini = append(ini, "[databases]", fmt.Sprintf(databases, server.Hostname(), port))
	p.settings = strings.Join(ini, "\n")
	return nil
}

// databases is the last line of pgbouncer.ini: all databases are on one server.
const databases = "* = host=%s port=%s"

// MoveTo restarts the pooler in front of another server with the same users, at the same address.
func (p *Pooler) MoveTo(ctx context.Context, serverURL string) error {
	server, err := url.Parse(serverURL)
	if err != nil {
		return errors.New("the server's URL is not valid")
	}
	p.Stop()
	p.settings = p.settings[:strings.LastIndex(p.settings, "\n")+1] +
		fmt.Sprintf(databases, server.Hostname(), server.Port())
	return p.Start(ctx)
}

// quote quotes a name or a password for users.txt.
func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

//go:embed keeper.sh
var keeper string

// Start starts the pooler again after Stop, at the same address, and returns when it answers.
func (p *Pooler) Start(ctx context.Context) error {
	input, pipe, err := os.Pipe()
	if err != nil {
		return err
	}
	defer input.Close()
	cmd, err := pgserver.Command("/bin/sh", "-c", keeper, "gem-pgbouncer", p.program)
	if err != nil {
		_ = pipe.Close()
		return err
	}
	cmd.Env = append(cmd.Env, "POOLER_USERS="+p.users, "POOLER_SETTINGS="+p.settings)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = p.log, p.log, []*os.File{input}
	if err := cmd.Start(); err != nil {
		_ = pipe.Close()
		return err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	p.mu.Lock()
	p.pipe, p.ended = pipe, ended
	p.mu.Unlock()

	const patience = time.Minute
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := p.admin(ctx)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ended:
			p.Stop()
			return fmt.Errorf("PgBouncer ended at once; its log:\n%s", p.Log())
		default:
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			p.Stop()
			return fmt.Errorf("PgBouncer did not answer within %v: %w; its log:\n%s", patience, err, p.Log())
		}
	}
}

// Stop stops the pooler like SIGTERM, which breaks all connections. Further calls do nothing.
func (p *Pooler) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pipe == nil {
		return
	}
	_ = p.pipe.Close()
	<-p.ended
	p.pipe = nil
}

// URL returns databaseURL with the address of the pooler.
func (p *Pooler) URL(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return databaseURL
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

// Log returns the pooler's log.
func (p *Pooler) Log() string {
	text, err := os.ReadFile(fmt.Sprintf("/dev/fd/%d", p.log.Fd()))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (p *Pooler) admin(ctx context.Context) (*pgx.Conn, error) {
	u := url.URL{Scheme: "postgres", User: p.user, Path: "/pgbouncer"}
	config, err := pgx.ParseConfig(p.URL(u.String()))
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // PgBouncer's console supports no other protocol
	return pgx.ConnectConfig(ctx, config)
}

// Show returns the result of `SHOW what`, such as clients, servers or pools. Each row is a map by column.
func (p *Pooler) Show(ctx context.Context, what string) ([]map[string]string, error) {
	conn, err := p.admin(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	results, err := conn.PgConn().Exec(ctx, "show "+what).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows []map[string]string
	for _, r := range results {
		for _, values := range r.Rows {
			row := map[string]string{}
			for i, field := range r.FieldDescriptions {
				row[field.Name] = string(values[i])
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// Clients returns the rows of SHOW CLIENTS for the database at databaseURL.
func (p *Pooler) Clients(ctx context.Context, databaseURL string) ([]map[string]string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, err
	}
	rows, err := p.Show(ctx, "clients")
	return slices.DeleteFunc(rows, func(row map[string]string) bool { return "/"+row["database"] != u.Path }), err
}
