// Package dashboard serves pages where people watch GEM: calls, their journals and receipts, questions, workers and
// sessions. It is an [http.Handler] for any server; the command gem dashboard is such a server, with a login.
//
//	pages, err := dashboard.New(dashboard.Options{Read: monitor, Act: operator, Prefix: "/ops", User: signedIn})
//	mux.Handle("/ops/", pages)
//
// Postgres enforces the rights: a viewer reads as a member of gem_monitor, an operator as a member of gem_operator. The
// pages work without JavaScript, and load nothing from other servers.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/shares"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// Options configure [New]. Read and User are required.
type Options struct {
	// Read is the connection of viewers, whose login is a member only of gem_monitor. Behind a pooler in transaction
	// mode the pool must not keep prepared statements: set DefaultQueryExecMode to pgx.QueryExecModeCacheDescribe.
	Read *pgxpool.Pool
	// Replica is the connection to a standby, with the rights of Read. Lists, sessions, tools, workers, server changes and
	// the overview are read from it. These pages show the age of the standby's data, or the reason for reading the
	// primary. If it is nil, all pages are read from the primary.
	Replica *pgxpool.Pool
	// Act is the connection of operators, whose login is a member of gem_operator, and of gem_mcp, so that people
	// answer questions as themselves. If it is nil, everybody is a viewer.
	Act *pgxpool.Pool
	// Prefix is the path below which the pages are, such as /ops; empty means the root.
	Prefix string
	// User returns the sender of a request. It returns [ErrNoUser] if nobody has signed in, and any other error if
	// the person may not see the pages. The page shows the text of a [*Refusal], but of no other error.
	User func(*http.Request) (User, error)
	// Login lets people sign in. If it is nil, a request without a user is rejected.
	Login Login
	// Hosts are the names of the pages' server, with a port if there is one. Loopback names and addresses are always
	// allowed. Empty allows any name, for a server that checks the header Host itself.
	Hosts []string
	// TrustedProxies are the addresses whose X-Forwarded-Prefix is used.
	TrustedProxies []netip.Prefix
	// TraceURL is a link to traces, in which {trace_id} is replaced; empty means no link.
	TraceURL string
	// Log gets a line for each request, and faults with the ids that error pages show. Nil means no log.
	Log *zap.Logger
}

// User is the sender of a request.
type User struct {
	// Name is the user's name in the journal.
	Name string
	// Subject is the subject as which this user answers questions, like `sub` in a token; empty means the database
	// user of Act.
	Subject string
	// Operator means that the user sees inputs and results, and may cancel and repeat calls.
	Operator bool
	// OtherName, if not empty, explains why this person's calls may have a name other than Subject. Postgres then
	// rejects the user's answers to questions that need someone other than the asker, and the page shows this reason.
	OtherName string
}

// ErrNoUser means that nobody has signed in.
var ErrNoUser = errors.New("nobody has signed in")

// New returns the pages, or an error for invalid options. They need no files and no other server.
func New(o Options) (http.Handler, error) {
	switch {
	case o.Read == nil || o.User == nil:
		return nil, errors.New("dashboard: Options need Read and User")
	case o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/") ||
		strings.ContainsAny(o.Prefix, "{}?#")):
		return nil, fmt.Errorf("dashboard: the prefix %q must begin with a slash and not end with one", o.Prefix)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	s := &site{Options: o, forms: newForms()}
	s.live = newLive(s)
	if o.Replica != nil {
		s.replica = view.NewReplica(o.Replica)
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	mux := http.NewServeMux()
	s.route(mux)
	return s.logged(s.guarded(mux)), nil
}

// site is the state that all requests share.
type site struct {
	Options
	*looks
	forms     *forms
	live      *live
	replica   *view.Replica // nil: there is none
	acted     acted
	ended     endCache
	shares    shares.Shares[User]
	shareWait time.Duration // for a share of the connections; 0 means 5 s
	open      openCount
	health    health
}

// route registers the pages. Each page has its own file.
func (s *site) route(mux *http.ServeMux) {
	mux.HandleFunc("GET /static/{name}", s.static)
	mux.HandleFunc("POST /look", s.setLook)
	mux.HandleFunc("GET /live", s.stream)
	if s.Login != nil {
		s.routeLogin(mux)
	}
	s.page(mux, "/{$}", s.overview)
	s.list(mux, "/questions", s.questions)
	s.page(mux, "/questions/{id}", s.question)
	s.act(mux, "/questions/{id}", s.answer)
	mux.HandleFunc("GET /questions/{id}/arguments", s.arguments)
	s.list(mux, "/sessions", s.sessions)
	mux.HandleFunc("GET /sessions/{id...}", s.toSession)
	s.list(mux, "/calls/{id}/conversation", s.conversation)
	s.list(mux, "/calls/{id}/extraction", s.extraction)
	s.list(mux, "/tools", s.tools)
	s.page(mux, "/tools/{name}", s.tool)
	s.list(mux, "/calls", s.calls)
	s.list(mux, "/failures", s.failures)
	s.page(mux, "/calls/bulk", s.askBulk)
	s.act(mux, "/calls/bulk", s.doBulk)
	s.page(mux, "/calls/bulk/done", s.bulkDone)
	s.page(mux, "/calls/{id}/cancel", s.askCancel)
	s.act(mux, "/calls/{id}/cancel", s.cancel)
	s.page(mux, "/calls/{id}/again", s.askAgain)
	s.act(mux, "/calls/{id}/again", s.doAgain)
	s.json(mux, "/overview.json", s.overview)
	s.list(mux, "/workers", s.workers)
	s.page(mux, "/schedules", s.schedules)
	s.page(mux, "/schedules/{name}", s.schedule)
	s.act(mux, "/schedules/{name}", s.actOnSchedule)
	s.list(mux, "/epochs", s.epochs)
	s.list(mux, "/epochs/{epoch}", s.epoch)
	s.routeCall(mux)
	s.page(mux, "/", func(context.Context, *request) (*content, error) {
		return nil, notFound("This page does not exist.")
	})
}
