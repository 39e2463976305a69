// Package supabase gives a test the nearest real thing to a Supabase project: a database with Supabase's roles and
// default grants, GEM's migrations applied by a role that is not a superuser, a real PostgREST in front of it, and the
// real supabase-js.
//
//	p := supabase.Start(t, supabase.Options{})
//	ada := p.User("ada")
//	result := p.Client().Query(ada, `from('core_tool_calls').select('*')`)
//
// PostgREST and supabase-js come from npm: see [Install]. Where they are missing a test that needs them is skipped, or
// fails when GEM_TEST_REQUIRE is set.
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

// Install is the command that fetches what this package needs in addition to Go and Postgres. Run it at the top of the
// repository.
const Install = "npm ci --prefix internal/testing/supabase"

// owner is the role that owns the database, as postgres does on Supabase: it may create roles, and is not a superuser.
const owner = "gem_test_supabase_owner"

// Options of a project. The zero value is a new project of today.
type Options struct {
	// OlderProject grants each new table and function to all roles of the API, as projects did by default until 2026.
	OlderProject bool
	// NotMigrated leaves GEM's tables out.
	NotMigrated bool
}

// Project is a database with an API in front.
type Project struct {
	t testing.TB

	// URL is the project's, as supabase-js and Supabase's gateway know it: the API is at /rest/v1 and wants an API key.
	URL string
	// PostgREST is the URL of the same API without the gateway.
	PostgREST string
	// DatabaseURL connects as the role that owns the tables, for migrations and workers.
	DatabaseURL string
	// DB is a pool with the rights of a superuser, for looking at what the API did.
	DB *pgxpool.Pool

	secret string
	client func() *Client
	dial   func(context.Context) (net.Conn, error) // connects to PostgREST itself
}

// Start makes a project, which is gone at the end of the test.
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

// firstMigration is held while a database of the server is migrated for the first time: the roles of GEM that it makes
// belong to the whole server too.
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

// Value returns the one value, as text, of a query that a superuser runs.
func (p *Project) Value(sql string, args ...any) (value string) {
	p.t.Helper()
	if err := p.DB.QueryRow(p.t.Context(), "select coalesce(("+sql+")::text, '')", args...).Scan(&value); err != nil {
		p.t.Fatalf("%v: %s", err, sql)
	}
	return value
}

// State is what the tables of GEM hold: a line for each, with the number of its rows and a hash of them. What changed
// is seen by comparing two.
func (p *Project) State() string {
	p.t.Helper()
	tables := p.Value(
		`select string_agg(format('select %L as name, count(*), md5(coalesce(string_agg(t::text, '''' order by t::text), '''')) as hash from %s t',
			c.oid::regclass, c.oid::regclass), ' union all ')
		from pg_class c where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('public', 'gem')`)
	return p.Value(`select string_agg(format('%s: %s rows, %s', name, count, hash), E'\n' order by name) from (` + tables +
		`) counted`)
}

// authenticator makes the role that PostgREST connects as, and returns its URL. It owns nothing and may become the
// three.
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

// withRole is a URL whose connections have the rights of the owner, and no more.
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

// createRoles makes the roles of the API and the owner. They belong to the whole server, and stay.
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

// serverRoles makes the roles once. Test binaries that share a server take turns by a lock, which is a database's own:
// they take it in the database that all servers have. Others that create these roles at the same moment do not know the
// lock.
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

// Folder is that of this package, with the packages of npm in node_modules, where they are installed.
func Folder(t testing.TB) string {
	t.Helper()
	return npmrig.Folder(t, rig)
}
