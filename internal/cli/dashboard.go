package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/login"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

// dashboardFlags are the flags of gem dashboard. Its other variables have no flags: they depend on the machine or are
// secret.
var dashboardFlags = map[string]string{
	"GEM_DASHBOARD_LISTEN": "listen", "GEM_DASHBOARD_PREFIX": "prefix", "GEM_DASHBOARD_AUTH": "auth",
	"GEM_DASHBOARD_READ_ONLY": "read-only",
	"GEM_DASHBOARD_URL":       "", "GEM_DASHBOARD_PASSWORD_HASH": "", "GEM_DASHBOARD_USER_HEADER": "",
	"GEM_DASHBOARD_GROUPS_HEADER":   "",
	"GEM_DASHBOARD_TRUSTED_PROXIES": "", "GEM_DASHBOARD_ROLES": "", "GEM_DASHBOARD_ACT_URL": "",
	"GEM_DASHBOARD_TRACE_URL":   "",
	"GEM_DASHBOARD_OIDC_ISSUER": "", "GEM_DASHBOARD_OIDC_CLIENT_ID": "", "GEM_DASHBOARD_OIDC_CLIENT_SECRET": "",
	"GEM_DASHBOARD_OIDC_GROUPS_CLAIM": "", "GEM_DASHBOARD_OIDC_SUBJECT_CLAIM": "", "GEM_DASHBOARD_FRONTENDS_ISSUER": "",
}

func dashboardCommand() *cobra.Command {
	var opened bool
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve pages where people watch calls, answer questions and act",
		Long: `
It serves pages at an address of this machine, and prints a link that signs one
browser in. Viewers see running, waiting and failed calls. Operators also see
inputs and results, answer questions, and cancel and repeat calls. Postgres
enforces these rights: DATABASE_URL should be the login of a member of
gem_monitor, and GEM_DASHBOARD_ACT_URL the login of a member of gem_operator and
gem_mcp. An address that is not loopback needs --auth. docs/dashboard.md lists
all variables (GEM_DASHBOARD_…), also for proxies. SIGTERM stops the command
cleanly within 2 s. It needs DATABASE_URL, but starts even if Postgres is
unavailable.`,
		Example: "  gem dashboard --open\n  gem dashboard --listen 0.0.0.0:8470 --auth password --prefix /gem",
	}
	flags := newVariableFlags(cmd.Flags(), dashboardFlags, &config.Dashboard{})
	cmd.Flags().BoolVar(&opened, "open", false, "open the pages in a browser")
	cmd.AddCommand(dashboardHashCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var c config.Dashboard
		if err := flags.read(&c); err != nil {
			return err
		}
		base, err := configFromEnv()
		if err != nil {
			return err
		}
		replica, err := replicaURL()
		if err != nil {
			return err
		}
		log := base.Logger()
		config.RouteStandardLog(log)
		defer func() { _ = log.Sync() }()
		actURL := c.ActURL.Reveal()
		if c.ReadOnly {
			actURL = ""
		}
		l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", c.Listen)
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%s is in use by another program, perhaps gem dev: choose another address with --listen",
					c.Listen)
			}
			return fmt.Errorf("--listen: %w", err)
		}
		site, err := openSite(cmd.Context(), &c, l, siteOptions{readURL: base.DatabaseURL.Reveal(),
			replicaURL: replica, actURL: actURL, log: log, out: cmd.OutOrStdout()})
		if err != nil {
			_ = l.Close()
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "The dashboard:\n  %s\n", site.link)
		if actURL == "" && !c.ReadOnly {
			fmt.Fprintln(cmd.OutOrStdout(), "It is read-only: GEM_DASHBOARD_ACT_URL, the connection of operators, is not set.")
		}
		if opened {
			defer site.open(cmd.Context())()
		}
		return site.serve(cmd.Context())
	}
	return cmd
}

// site is a dashboard that gem dashboard, gem dev or gem demo serves.
type site struct {
	listener           net.Listener
	handler            http.Handler
	url                string // of the overview
	link               string // signs in once; the same as url if people do not sign in by a link
	read, replica, act *pgxpool.Pool
	announce           func(context.Context) // logs whether people can sign in
	log                *zap.Logger
}

type siteOptions struct {
	readURL, replicaURL, actURL string // the last two may be empty
	log                         *zap.Logger
	out                         io.Writer // for the links
}

// openSite builds the pages and takes over the listener. It does not connect to anything yet.
func openSite(ctx context.Context, c *config.Dashboard, l net.Listener, o siteOptions) (*site, error) {
	local := isLoopback(l.Addr())
	auth := c.Auth
	switch {
	case auth == "" && local:
		auth = "link"
	case auth == "":
		return nil, usage("%s can be reached from other machines, so people must sign in: "+
			"set --auth to link, password, header or oidc, or serve 127.0.0.1", l.Addr())
	case auth == "none" && !local:
		return nil, usage("%s can be reached from other machines, and with --auth none anyone would see all calls: "+
			"set it to link, password, header or oidc, or serve 127.0.0.1", l.Addr())
	}
	proxies, err := login.ParseProxies(c.TrustedProxies)
	if err != nil {
		return nil, usage("GEM_DASHBOARD_TRUSTED_PROXIES: %w", err)
	}
	roles, err := login.ParseRoles(c.Roles)
	if err != nil {
		return nil, usage("GEM_DASHBOARD_ROLES: %w", err)
	}
	s := &site{listener: l, log: o.log}
	prefix := strings.TrimRight(c.Prefix, "/")
	host, port, _ := net.SplitHostPort(l.Addr().String())
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	s.url = cmp.Or(strings.TrimRight(c.URL, "/"), "http://"+net.JoinHostPort(host, port)+prefix) + "/"
	public, err := url.Parse(s.url)
	if err != nil {
		return nil, usage("GEM_DASHBOARD_URL: %w", err)
	}
	if s.read, err = pgpool.Open(ctx, o.readURL, pgpool.Options{MaxConns: 4, OwnSQL: true,
		Name: "gem dashboard"}); err != nil {
		return nil, usage("DATABASE_URL: %w", err)
	}
	if o.replicaURL != "" {
		if s.replica, err = pgpool.Open(ctx, o.replicaURL, pgpool.Options{MaxConns: 4, OwnSQL: true,
			Name: "gem dashboard"}); err != nil {
			s.close()
			return nil, usage("READ_DATABASE_URL: %w", err)
		}
	}
	name := s.read.Config().ConnConfig.User
	if o.actURL != "" {
		if s.act, err = pgpool.Open(ctx, o.actURL, pgpool.Options{MaxConns: 2, OwnSQL: true,
			Name: "gem dashboard"}); err != nil {
			s.close()
			return nil, usage("GEM_DASHBOARD_ACT_URL: %w", err)
		}
		name = s.act.Config().ConnConfig.User
	}
	oidcURL := s.url
	if c.URL == "" && !local { // the issuer would redirect people to a name that only this machine knows
		oidcURL = ""
	}
	link := func(token string) string { return s.url + "login?token=" + token }
	signIn, err := login.New(login.Options{
		Auth: auth, Name: name, PasswordHash: c.PasswordHash.Reveal(), UserHeader: c.UserHeader, GroupsHeader: c.GroupsHeader,
		Proxies: proxies, Roles: roles,
		OIDC: login.OIDC{
			Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, ClientSecret: c.OIDCSecret, GroupsClaim: c.OIDCGroups,
			SubjectClaim: c.OIDCSubject, URL: oidcURL, Frontends: frontendsIssuers(c),
		},
		IsRole: isRole(s.read), Log: o.log,
		Cookie: "gem_" + port, Secure: public.Scheme == "https",
		Used: func(next string) { fmt.Fprintf(o.out, "The dashboard, for another browser:\n  %s\n", link(next)) },
	})
	if err != nil {
		s.close()
		return nil, usageError{err}
	}
	s.announce = signIn.Announce
	s.handler, err = dashboard.New(dashboard.Options{
		Read: s.read, Replica: s.replica, Act: s.act, Prefix: prefix, User: signIn.User, Login: signIn.Login(),
		Hosts:          []string{public.Host},
		TrustedProxies: proxies, TraceURL: c.TraceURL, Log: o.log,
	})
	if err != nil {
		s.close()
		return nil, err
	}
	if s.link = s.url; auth == "link" {
		s.link = link(signIn.NewLink())
	}
	return s, nil
}

// frontendsIssuers returns the issuers of the tokens that frontends use, as far as the environment names them.
func frontendsIssuers(c *config.Dashboard) (all []string) {
	for _, of := range []string{c.Frontends, strings.TrimSpace(os.Getenv("GEM_MCP_ISSUER"))} {
		if of != "" {
			all = append(all, of)
		}
	}
	return all
}

// isRole returns a function that reports whether the server has a role with a name, ignoring case.
func isRole(db *pgxpool.Pool) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, name string) (is bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err = db.QueryRow(ctx, `select exists (select from pg_catalog.pg_roles
			where lower(rolname::text collate "default") = lower($1))`, name).Scan(&is)
		return is, err
	}
}

func isLoopback(a net.Addr) bool {
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// serve answers requests until ctx ends. Then it ends streams and gives other requests a moment. It returns within 2
// s.
func (s *site) serve(ctx context.Context) error {
	defer s.close()
	requests, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	errorLog, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // mostly clients that disconnect
	if err != nil {
		return err
	}
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // not ReadTimeout, which would end the streams too
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(10 * time.Second))
		}
		s.handler.ServeHTTP(w, r)
	})
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, /* /live has its own */
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return requests }, ErrorLog: errorLog,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.listener) }()
	go s.lookAtRights(requests)
	go s.announce(requests)
	s.log.Info("serving the dashboard", zap.String("address", s.listener.Addr().String()), zap.String("url", s.url),
		zap.Bool("read_only", s.act == nil))
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 1500*time.Millisecond)
	defer cancel()
	if server.Shutdown(patience) != nil {
		_ = server.Close()
	}
	return nil
}

// close releases the connections. It does not wait for a statement that does not end.
func (s *site) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range []*pgxpool.Pool{s.read, s.replica, s.act} {
			if pool != nil {
				pool.Close()
			}
		}
	}()
	select {
	case <-closed:
	case <-time.After(300 * time.Millisecond):
	}
}

// rights lists the roles that each connection may be a member of, apart from the login itself.
var rights = map[string][]string{
	"DATABASE_URL":          {"gem_monitor"},
	"READ_DATABASE_URL":     {"gem_monitor"},
	"GEM_DASHBOARD_ACT_URL": {"gem_operator", "gem_monitor", "gem_mcp", "gem_frontend", "authenticated"},
}

// lookAtRights logs which connection has more rights than the pages need, or fewer. It waits while Postgres is
// unreachable.
func (s *site) lookAtRights(ctx context.Context) {
	for variable, pool := range map[string]*pgxpool.Pool{"DATABASE_URL": s.read, "READ_DATABASE_URL": s.replica,
		"GEM_DASHBOARD_ACT_URL": s.act} {
		if pool == nil {
			continue
		}
		var user, needed, more string
		needed = rights[variable][0]
		var lacks bool
		err := pgpool.Wait(ctx, func(ctx context.Context) error {
			return pool.QueryRow(ctx, `
				select session_user::text, not coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole($1), 'member'),
					false), coalesce(case
					when rolsuper then 'it is a superuser'
					when rolbypassrls or rolcreaterole then 'it may create roles, or bypasses row level security'
					else (select 'it is a member of ' || pg_catalog.string_agg(o.rolname::text, ', ' order by o.rolname)
						from pg_catalog.pg_roles o
						where o.oid <> r.oid and o.rolname <> all ($2) and pg_catalog.pg_has_role(r.oid, o.oid, 'member'))
					end, (select 'it owns the tables' from pg_catalog.pg_class
						where oid = pg_catalog.to_regclass('public.core_tool_calls')::oid and relowner = r.oid), '')
				from pg_catalog.pg_roles r where rolname = session_user`, needed, rights[variable]).Scan(&user, &lacks, &more)
		}, 24*time.Hour, func(reason string) {
			s.log.Warn("Postgres cannot be reached yet: the pages say so until it can", zap.String("connection", variable),
				zap.String("reason", reason))
		})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("the pages have no database: "+err.Error(), zap.String("connection", variable))
		case more != "":
			s.log.Warn("this connection of the dashboard can do more than the pages need: use the login of a member of "+needed+
				" instead",
				zap.String("connection", variable), zap.String("user", user), zap.String("why", more))
		case lacks:
			s.log.Warn("this connection of the dashboard lacks rights that the pages need: as the owner of the tables, grant "+
				needed+" to its user",
				zap.String("connection", variable), zap.String("user", user))
		}
	}
}

// open shows the pages in a browser. It passes the link in a private file, since others can see the arguments of a
// process. done removes the file.
func (s *site) open(ctx context.Context) (done func()) {
	f, err := os.CreateTemp("", "gem-dashboard-*.html")
	done = func() {}
	if err == nil {
		done = func() { _ = os.Remove(f.Name()) }
		_, err = fmt.Fprintf(f,
			`<!doctype html><meta charset="utf-8"><title>GEM</title><meta http-equiv="refresh" content="0;url=%s"><a href="%s">GEM</a>`, s.link, s.link)
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		command := []string{"xdg-open", f.Name()}
		switch runtime.GOOS {
		case "darwin":
			command[0] = "open"
		case "windows":
			command = []string{"rundll32", "url.dll,FileProtocolHandler", f.Name()}
		}
		browser := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
		if err = browser.Start(); err == nil {
			go func() { _ = browser.Wait() }()
		}
	}
	if err != nil {
		s.log.Warn("no browser could be opened: open the link that was printed", zap.Error(err))
	}
	return done
}

func dashboardHashCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hash",
		Short: "Hash a password for gem dashboard --auth password",
		Long: `
Reads a password from the first line of stdin, and prints its hash for
GEM_DASHBOARD_PASSWORD_HASH. Shells and compose files expand a $, so put the
hash in single quotes.`,
		Example: "  read -rs P && printf %s \"$P\" | gem dashboard hash",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f, ok := cmd.InOrStdin().(*os.File); ok {
				if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "Password (shown as you type):")
				}
			}
			line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 1000)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			hash, err := login.HashPassword([]byte(strings.TrimRight(line, "\r\n")))
			if err != nil {
				return usageError{err}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), hash)
			return err
		},
	}
}

// dashboardPort is the first port that gem dev and gem demo try for their dashboard.
const dashboardPort = 8470

// openPrivateSite opens a dashboard of the private server on a loopback address, at the first free port.
func openPrivateSite(ctx context.Context, o siteOptions) (*site, error) {
	var l net.Listener
	err := errors.New("no port was tried")
	for port := dashboardPort; err != nil && port < dashboardPort+10; port++ {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
	}
	if err != nil {
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	s, err := openSite(ctx, &config.Dashboard{Prefix: "/"}, l, o)
	if err != nil {
		_ = l.Close()
	}
	return s, err
}
