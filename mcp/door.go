// Package mcp is the door for agents: an MCP server that offers the tools of a registry. Each tools/call is a row of core_tool_calls, made with the
// rights of whoever calls, and answered from its receipt. The door runs nothing itself: workers do, and a call goes on when the door or its client is gone.
package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
)

// Options of a door. Only Registry and Pool are required.
type Options struct {
	Registry *registry.Registry
	// Pool opens the database. It is asked at the first statement, and again after an error: start, discover and list need no database.
	Pool func(context.Context) (*pgxpool.Pool, error)
	// DBRole is the role whose rights statements have. By default it is authenticated where that role is, otherwise gem_frontend.
	DBRole string
	// Subject is the created_by of calls over stdio. The default is mcp.
	Subject string
	// Names is the form in which tools are listed: underscore, the default, or dot. Calls are understood in both.
	Names string
	// Tools are patterns, such as leads.* and os.list_tasks, of the tools that are offered; none means all but wait.*.
	Tools []string
	// ReadOnly leaves out the tools that have a permission other than read:….
	ReadOnly bool
	// Wait is how long a request waits for its call, at most, before the answer says that it is pending. The default is 45 s.
	Wait time.Duration
	// TaskAfter is when a call becomes a task for clients that declare tasks; 0 means at once.
	TaskAfter time.Duration
	// KeepOnCancel lets a call go on whose request was cancelled (notifications/cancelled). By default the call is cancelled.
	KeepOnCancel bool
	// CancelOnDisconnect cancels a call whose client went away. By default the call goes on.
	CancelOnDisconnect bool
	// MaxResult is the size in bytes from which a result is replaced by a link to its receipt. The default is 100 KiB.
	MaxResult int
	// KeyArgument adds an optional gem_key to the input of tools that write, for clients that can send no _meta.
	KeyArgument bool
	// DashboardURL is where people answer questions; empty for none.
	DashboardURL string
	// Version is that of the program, for clients.
	Version string
	// Log gets what operators should know. The default logs nothing.
	Log *zap.Logger
}

// Door serves any number of clients. It keeps nothing about them between two requests.
type Door struct {
	o      Options
	tools  []*tool // offered, ordered by their listed names
	byName map[string]*tool
	server *sdk.Server

	stopping chan struct{} // closed when waits are to end
	stop     sync.Once

	mu   sync.Mutex
	pool *pgxpool.Pool
	role *string // found out at the first statement
}

// New returns a door, and an error if two tools meet in one name or a pattern matches no tool.
func New(o Options) (*Door, error) {
	o.Subject, o.Names = cmp.Or(o.Subject, "mcp"), cmp.Or(o.Names, "underscore")
	o.Wait, o.MaxResult = cmp.Or(o.Wait, 45*time.Second), cmp.Or(o.MaxResult, 100<<10)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	d := &Door{o: o, stopping: make(chan struct{})}
	if err := d.choose(); err != nil {
		return nil, err
	}
	d.server = sdk.NewServer(&sdk.Implementation{Name: "gem", Title: "GEM", Version: cmp.Or(o.Version, "dev")}, &sdk.ServerOptions{
		Instructions: instructions,
		PageSize:     max(len(d.tools)+2, sdk.DefaultPageSize),
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.TTLMs = 60_000 },
	})
	d.addTools()
	d.server.AddReceivingMiddleware(d.bothNames)
	return d, nil
}

const instructions = "Each tool call is recorded, runs once, and ends with one receipt. An answer that holds gem_pending means that the call has been " +
	"accepted and goes on: call gem_result with its call_id, and do not make the call again."

// Server is the SDK's server. One serves all sessions of the process.
func (d *Door) Server() *sdk.Server { return d.server }

// Stop lets all waits end: their requests are answered as pending.
func (d *Door) Stop() { d.stop.Do(func() { close(d.stopping) }) }

// Close closes the connections to the database.
func (d *Door) Close() {
	d.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pool != nil {
		d.pool.Close()
	}
	d.pool = nil
}

// caller is on whose behalf a request is made.
type caller struct {
	subject string
	claims  json.RawMessage // those of the token; nil for what the subject alone makes
	scopes  []string        // those of the token
	http    bool            // the request came over HTTP: when its context ends, the client is gone
}

type callerKey struct{}

// withCaller names the caller of all requests under a context.
func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the caller of a request. There is none only through a mistake of ours: then nobody is served.
func callerOf(ctx context.Context) (caller, error) {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok || c.subject == "" {
		return c, errors.New("the request has no caller")
	}
	return c, nil
}

// as runs statements with the rights of a caller, in one transaction.
func (d *Door) as(ctx context.Context, c caller, do func(client.DB) error) error {
	pool, role, err := d.database(ctx)
	if err != nil {
		return err
	}
	claims := c.claims
	if claims == nil {
		claims, _ = json.Marshal(map[string]string{"sub": c.subject, "role": cmp.Or(role, "authenticated")})
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "select set_config('role', coalesce(nullif($1, ''), current_user), true), set_config('request.jwt.claims', $2, true)",
		role, string(claims)); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// database opens the pool at its first use, and finds out whose rights statements can have.
func (d *Door) database(ctx context.Context) (*pgxpool.Pool, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pool == nil {
		pool, err := d.o.Pool(ctx)
		if err != nil {
			return nil, "", err
		}
		d.pool = pool
	}
	if d.role == nil {
		var role string
		err := d.pool.QueryRow(ctx, `
			select coalesce((select rolname from pg_roles where rolname = any ($1) and pg_has_role(session_user, oid, 'member')
			                 order by array_position($1::text[], rolname::text) limit 1), '')`, d.roles()).Scan(&role)
		if err != nil {
			return nil, "", fmt.Errorf("find out whose rights calls have: %w", err)
		}
		d.role = &role
	}
	return d.pool, *d.role, nil
}

func (d *Door) roles() []string {
	if d.o.DBRole != "" {
		return []string{d.o.DBRole}
	}
	return []string{"authenticated", "gem_frontend"}
}
