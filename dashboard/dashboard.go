// Package dashboard serves the pages on which people watch GEM: calls, their journals and receipts, questions, workers, sessions. It is an
// [http.Handler] for a server of one's own; the command gem dashboard is one, with a login.
//
//	pages, err := dashboard.New(dashboard.Options{Read: monitor, Act: operator, Prefix: "/ops", User: signedIn})
//	mux.Handle("/ops/", pages)
//
// Rights are held by Postgres: a viewer reads as a member of gem_monitor, an operator as a member of gem_operator. The pages work without
// JavaScript, and load nothing from elsewhere.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// Options are those of [New]. Read and User are required.
type Options struct {
	// Read is the connection of viewers, whose login is a member of gem_monitor and of nothing else. Behind a pooler in transaction mode a pool
	// keeps no prepared statements: its DefaultQueryExecMode is pgx.QueryExecModeCacheDescribe.
	Read *pgxpool.Pool
	// Act is the connection of operators, whose login is a member of gem_operator, and of gem_door, so that people answer questions as
	// themselves. Without it everybody is a viewer.
	Act *pgxpool.Pool
	// Prefix is the path below which the pages are, such as /ops; empty means the root.
	Prefix string
	// User says who sends a request: [ErrNoUser] where nobody has signed in, any other error for somebody who may not see the pages. The user is told
	// the text of a [*Refusal], and of no other error.
	User func(*http.Request) (User, error)
	// Login lets people sign in. Nil means that a request without a user is refused.
	Login Login
	// Hosts are the names under which the pages are reached, with a port if there is one. Loopback names and
	// addresses need not be named. Empty means any, for a server that checks the header Host itself.
	Hosts []string
	// TrustedProxies are the addresses whose X-Forwarded-Prefix counts.
	TrustedProxies []netip.Prefix
	// TraceURL is a link to traces, in which {trace_id} is replaced; empty means none.
	TraceURL string
	// Log has a line for each request, and faults with the ids that error pages show; nil means none.
	Log *zap.Logger
}

// User is who sends a request.
type User struct {
	// Name is what the journal says of what this user does.
	Name string
	// Subject is the subject as which this user answers questions, as `sub` in a token is; empty means the database user of Act.
	Subject string
	// Operator says that the user sees inputs and results, and may cancel calls and do them again.
	Operator bool
	// OtherName, if not empty, explains why this person's calls may have a name other than Subject. Postgres then
	// refuses the user's answers to questions that need someone other than the asker, and the page shows this
	// reason.
	OtherName string
}

// ErrNoUser says that nobody has signed in.
var ErrNoUser = errors.New("nobody has signed in")

// New returns the pages. They need no more than what is in the program: no files, no other server.
func New(o Options) (http.Handler, error) {
	switch {
	case o.Read == nil || o.User == nil:
		return nil, errors.New("dashboard: Options need Read and User")
	case o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/") || strings.ContainsAny(o.Prefix, "{}?#")):
		return nil, fmt.Errorf("dashboard: the prefix %q must begin with a slash and not end with one", o.Prefix)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	s := &site{Options: o, forms: newForms()}
	s.live = newLive(s)
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	mux := http.NewServeMux()
	s.route(mux)
	return s.logged(s.guarded(mux)), nil
}

// site is what all requests share.
type site struct {
	Options
	*looks
	forms  *forms
	live   *live
	ended  ended
	shares shares
	open   openCount
	health health
}

// route says which function answers which path. Each page has its file.
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
	s.routeCall(mux)
	s.page(mux, "/", func(context.Context, *request) (*view, error) { return nil, notFound("There is no such page.") })
}
