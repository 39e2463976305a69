package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/postgrest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/migrations"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"
)

// restUser is the user who is signed in by the key that gem dev prints.
const restUser = "dev"

// devSuperuser is the superuser of the private server. Only gem dev itself connects as this role, and runs no SQL of
// the folder.
const devSuperuser = "gem_superuser"

// connectAdmin connects as the superuser. Nothing that the owner of the database has created is found by its name.
func connectAdmin(ctx context.Context, adminURL string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(adminURL)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["search_path"] = "pg_catalog"
	db, err := pgx.ConnectConfig(ctx, config)
	return db, refusal(err)
}

// prepareDevDatabase creates the role postgres, which owns the database as on Supabase and is not a superuser: it runs
// tools.sql, which may come with a clone. It cannot create roles, since up to Postgres 15 a role that can may run
// programs. So the roles of GEM and of a Supabase project are created here too, and the migrations grant them rights.
func prepareDevDatabase(ctx context.Context, adminURL, password string) error {
	db, err := connectAdmin(ctx, adminURL)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	if _, err := db.Exec(ctx, "select set_config('gem.password', $1, false)", password); err != nil {
		return fmt.Errorf("prepare the private database: %w", refusal(err))
	}
	_, err = db.Exec(ctx, migrations.CreateRoles+`
	do $$ begin
		if to_regrole('postgres') is null then create role postgres login bypassrls; end if;
		execute format('alter role postgres password %L', current_setting('gem.password'));
		alter database postgres owner to postgres;
		if to_regrole('anon') is null then create role anon nologin noinherit; end if;
		if to_regrole('authenticated') is null then create role authenticated nologin noinherit; end if;
		if to_regrole('service_role') is null then create role service_role nologin noinherit bypassrls; end if;
		if to_regrole('authenticator') is null then create role authenticator login noinherit; end if;
		grant authenticated to gem_mcp;
		grant anon, authenticated, service_role, gem_worker, gem_monitor, gem_operator, gem_frontend, gem_mcp to postgres;
		grant usage on schema public to anon, authenticated, service_role;
	end $$`)
	if err == nil {
		_, err = db.Exec(ctx, "set role postgres")
	}
	if err == nil {
		err = store.PrepareTakeRoles(ctx, db)
	}
	if err != nil {
		return fmt.Errorf("prepare the private database: %w", refusal(err))
	}
	return nil
}

// serveREST serves the private database as Supabase does, until ctx ends. If PostgREST is missing, it prints how to
// get it.
func (s *setup) serveREST(ctx context.Context, state *devState, out, progress io.Writer) {
	if err := s.serveRESTOn(ctx, state, out); err != nil && ctx.Err() == nil {
		fmt.Fprintf(progress, "The REST server for supabase-js does not run: %v\n", err)
	}
}

func (s *setup) serveRESTOn(ctx context.Context, state *devState, out io.Writer) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return postgrest.ErrMissing
	}
	program, err := postgrest.Find(ctx, filepath.Join(cache, "gem"))
	if err != nil {
		return err
	}
	const name = "authenticator"
	login, err := s.makeLogin(ctx, state.url(), name, "anon, authenticated, service_role", state.passwordOf(name))
	if err != nil {
		return err
	}
	claims := jwt.MapClaims{"role": "authenticated", "sub": restUser}
	key, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(state.JWTSecret))
	if err != nil {
		return err
	}
	address := "127.0.0.1:" + strconv.Itoa(state.RESTPort)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", address)
	if err != nil {
		return fmt.Errorf("%w: stop the program that has the port, or write another rest_port into %s", err, devFile)
	}
	defer listener.Close()
	rest, err := postgrest.Start(ctx, postgrest.Options{
		Program: program, DatabaseURL: login, JWTSecret: state.JWTSecret, Connections: 4,
	})
	if err != nil {
		return err
	}
	defer rest.Stop()
	handler := onLoopback(http.StripPrefix("/rest/v1", withoutKey(rest.Handler)))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(out, `A REST server for supabase-js, with the key of a signed-in user named %s:
  const supabase = createClient('http://%s', '%s')
In a browser, or in Node 22 or newer. In Node 20: npm install ws, and { realtime: { transport: ws } } as the `+`third argument.

`, restUser, address, key)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// onLoopback rejects requests whose Host is not this machine: a web page can make its own name resolve to it.
func onLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		ip := net.ParseIP(strings.Trim(host, "[]"))
		if !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "the REST server of gem dev answers only as localhost or 127.0.0.1", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withoutKey removes the header that Supabase's gateway reads: the token next to it names the user.
func withoutKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Apikey")
		next.ServeHTTP(w, r)
	})
}
