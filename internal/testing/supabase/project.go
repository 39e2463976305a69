// Package supabase gives a test the closest equivalent of a Supabase project: a database with Supabase's roles and
// default grants, GEM's migrations applied by a role that is not a superuser, a real PostgREST in front of it, and the
// real supabase-js.
//
//	p := supabase.Start(t, supabase.Options{})
//	ada := p.User("ada")
//	result := p.Client().Query(ada, `from('core_tool_calls').select('*')`)
//
// PostgREST and supabase-js come from npm: see [Install]. If they are missing, tests that need them are skipped, or
// fail if GEM_TEST_REQUIRE is set.
package supabase

import (
	"context"
	"crypto/rand"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Install is the command that installs what this package needs in addition to Go and Postgres. Run it at the top of the
// repository.
const Install = "npm ci --prefix internal/testing/supabase"

// owner is the role that owns the database, like postgres on Supabase. It may create roles and is not a superuser.
const owner = "gem_test_supabase_owner"

// Options of a project. The zero value is a new project with today's defaults.
type Options struct {
	// OlderProject grants each new table and function to all roles of the API, which was the default until 2026.
	OlderProject bool
	// NotMigrated leaves out GEM's tables.
	NotMigrated bool
}

// Project is a database with an API in front of it.
type Project struct {
	t testing.TB

	// URL is the project's URL for supabase-js and Supabase's gateway. The API is at /rest/v1 and requires an API key.
	URL string
	// PostgREST is the URL of the same API without the gateway.
	PostgREST string
	// DatabaseURL connects as the role that owns the tables, for migrations and workers.
	DatabaseURL string
	// DB is a pool with superuser rights, for checking the effects of the API.
	DB *pgxpool.Pool

	secret string
	client func() *Client
	dial   func(context.Context) (net.Conn, error) // connects directly to PostgREST
}

// Start creates a project, which is removed at the end of the test.
func Start(t testing.TB, o Options) *Project {
	t.Helper()
	program := findPostgREST(t)
	admin := testdb.NewEmpty(t)
	p := &Project{t: t, DB: testdb.Pool(t, admin), DatabaseURL: withRole(t, admin), secret: rand.Text() + rand.Text()}
	p.client = sync.OnceValue(func() *Client { return startNode(t, "client", p.URL, APIKey) })

	if err := serverRoles(t.Context(), admin); err != nil {
		t.Fatalf("create Supabase's roles (the user of TEST_DATABASE_URL must be a superuser): %v", err)
	}
	setUp := `
		do $$ begin execute format('alter database %I owner to ` + owner + `', current_database()); end $$;
		create publication supabase_realtime;
		alter publication supabase_realtime owner to ` + owner + `;`
	if o.OlderProject {
		setUp += `
		alter default privileges for role ` + owner +
			` in schema public grant all on tables to anon, authenticated, service_role;
		alter default privileges for role ` + owner +
			` in schema public grant all on sequences to anon, authenticated, service_role;
		alter default privileges for role ` + owner +
			` in schema public grant all on functions to anon, authenticated, service_role;`
	}
	p.Exec(setUp)
	if !o.NotMigrated {
		p.Migrate()
	}
	p.startAPI(program, p.authenticator(admin))
	return p
}

// firstMigration is locked during the first migration of a database of the server, because the roles of GEM that it
// creates belong to the whole server.
var firstMigration struct {
	sync.Mutex
	done bool
}

// Migrate applies GEM's migrations as the role that owns the database.
func (p *Project) Migrate() {
	p.t.Helper()
	firstMigration.Lock()
	if firstMigration.done {
		firstMigration.Unlock()
	} else {
		defer firstMigration.Unlock()
		defer func() { firstMigration.done = true }()
	}
	if err := migrations.Up(p.t.Context(), p.DatabaseURL, migrations.Sources(builtin.Domains()...)...); err != nil {
		p.t.Fatalf("migrate: %v", err)
	}
}

// Exec runs SQL as a superuser.
func (p *Project) Exec(sql string) {
	p.t.Helper()
	if _, err := p.DB.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatalf("%v: %s", err, sql)
	}
}

// Value runs a query as a superuser and returns its single value as text.
func (p *Project) Value(sql string, args ...any) (value string) {
	p.t.Helper()
	if err := p.DB.QueryRow(p.t.Context(), "select coalesce(("+sql+")::text, '')", args...).Scan(&value); err != nil {
		p.t.Fatalf("%v: %s", err, sql)
	}
	return value
}

// State returns the state of GEM's tables: a line for each table with its row count and a hash of its rows. Tests
// compare two states to detect changes.
func (p *Project) State() string {
	p.t.Helper()
	tables := p.Value(
		`select string_agg(format('select %L as name, count(*), md5(coalesce(string_agg(t::text, '''' order by t::text), '''')) as hash from %s t',
			c.oid::regclass, c.oid::regclass), ' union all ')
		from pg_class c where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('public', 'gem')`)
	return p.Value(`select string_agg(format('%s: %s rows, %s', name, count, hash), E'\n' order by name) from (` + tables +
		`) counted`)
}

// authenticator creates the role that PostgREST connects as, and returns its URL. The role owns nothing and may switch
// to the three roles of the API.
func (p *Project) authenticator(admin string) string {
	p.t.Helper()
	name, password := "gem_test_authenticator_"+strings.ToLower(rand.Text()), rand.Text()
	p.Exec("create role " + name + " login noinherit password '" + password +
		"' in role anon, authenticated, service_role")
	p.t.Cleanup(func() {
		if _, err := p.DB.Exec(context.Background(), "drop role "+name); err != nil { // the test's own context has ended
			p.t.Error(err)
		}
	})
	u := parse(p.t, admin)
	u.User = url.UserPassword(name, password)
	return u.String()
}

// withRole returns a URL whose connections have only the rights of the owner.
func withRole(t testing.TB, database string) string {
	u := parse(t, database)
	query := u.Query()
	query.Set("options", "-c role="+owner)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}

func parse(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// createRoles creates the roles of the API and the owner. They belong to the whole server and are never dropped.
const createRoles = `
do $$
declare
  wanted record;
begin
  perform pg_advisory_xact_lock(47160005);
  for wanted in select * from (values
      ('anon', 'nologin noinherit'), ('authenticated', 'nologin noinherit'),
        ('service_role', 'nologin noinherit bypassrls'),
      ('` + owner + `', 'nologin createrole createdb bypassrls')) as w (name, attributes)
  loop
    if not exists (select from pg_roles where rolname = wanted.name) then
      execute format('create role %I', wanted.name);
    end if;
    execute format('alter role %I %s', wanted.name, wanted.attributes);
  end loop;
end
$$`

var rolesDone struct {
	sync.Mutex
	yes bool
}

// serverRoles creates the roles once. Test binaries that share a server use a lock. Because such a lock belongs to one
// database, they take it in the database that every server has. Other programs that create these roles at the same time
// do not know the lock.
func serverRoles(ctx context.Context, admin string) (err error) {
	rolesDone.Lock()
	defer rolesDone.Unlock()
	if rolesDone.yes {
		return nil
	}
	config, err := pgx.ParseConfig(admin)
	if err != nil {
		return err
	}
	config.Database = "postgres"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for range 5 {
		if _, err = conn.Exec(ctx, createRoles); err == nil {
			rolesDone.yes = true
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

const rig = "internal/testing/supabase"

// Folder returns the folder of this package. It has the npm packages in node_modules if they are installed.
func Folder(t testing.TB) string {
	t.Helper()
	return npmrig.Folder(t, rig)
}
