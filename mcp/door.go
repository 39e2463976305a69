// Package mcp is the door for agents: an MCP server that offers the tools of a registry. Each tools/call is a row of core_tool_calls, inserted with the
// rights of whoever calls and answered from its receipt. The door runs nothing: workers do, and a call goes on when the door or its client is gone.
package mcp

import (
	"cmp"
	"context"
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
	// Pool opens the database, without waiting for it. It is asked at the first statement, and again after an error: start, discover and list need
	// no database. The door closes the pool.
	Pool func(context.Context) (*pgxpool.Pool, error)
	// ListenURL is the connection string of a connection that is told of the ends of calls, for a door with many clients. Without it the door asks for them.
	ListenURL string
	// DBRole is the role whose rights statements have. By default it is authenticated where that role is, otherwise gem_frontend.
	DBRole string
	// Subject is the created_by of calls over stdio. The default is mcp.
	Subject string
	// Dots lists tools as the registry names them, such as leads.create. By default dots become underscores. Calls are understood in both forms.
	Dots bool
	// Tools are patterns of the tools that are offered, such as leads.* and os.list_tasks; none means all. Those of the domain wait, and those that
	// are closed to signed-in users, are never offered.
	Tools []string
	// ReadOnly leaves out the tools that have a permission other than read:….
	ReadOnly bool
	// Wait is how long a request waits for its call, at most; after that it is answered as pending. The default is 45 s.
	Wait time.Duration
	// TaskAfter is when a call becomes a task for clients that declare tasks; 0 means at once.
	TaskAfter time.Duration
	// KeepOnCancel lets a call go on whose request the client cancelled. By default the call is cancelled too.
	KeepOnCancel bool
	// CancelOnDisconnect cancels a call whose client went away while it waited. By default the call goes on.
	CancelOnDisconnect bool
	// MaxResult is how many bytes of JSON a result may take; a larger one is answered by a link to its receipt. The default is 100 KiB.
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

// Door serves any number of clients. Between two requests it keeps nothing about them.
type Door struct {
	o      Options
	tools  []*tool          // those that are offered, by their listed names
	byName map[string]*tool // the same, by both forms of their names
	closed []*registry.Tool // those that are not, since signed-in users may not call them
	server *sdk.Server

	glances glances // of tasks
	prompts prompts

	patience time.Duration   // see usualPatience
	closing  context.Context // ends when no wait is to go on
	grace    time.Duration   // for answers over HTTP after the end
	late     context.Context // ends soon after that: requests are answered with what is known then
	stop     context.CancelFunc
	cut      context.CancelFunc

	mu     sync.Mutex
	pool   *pgxpool.Pool
	waiter *client.Waiter
	dbRole *string // found out at the first statement
	apart  bool    // callers are many: without a role that keeps them apart there are no statements
}

// New returns a door. Its error says which option is wrong.
func New(o Options) (*Door, error) {
	o.Subject, o.Wait, o.MaxResult = cmp.Or(o.Subject, "mcp"), cmp.Or(o.Wait, 45*time.Second), cmp.Or(o.MaxResult, 100<<10)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	d := &Door{o: o, grace: stopTimeout, patience: usualPatience}
	if err := d.choose(); err != nil {
		return nil, err
	}
	d.closing, d.stop = context.WithCancel(context.Background())
	d.late, d.cut = context.WithCancel(context.Background())
	d.server = sdk.NewServer(&sdk.Implementation{Name: "gem", Title: "GEM", Version: cmp.Or(o.Version, "dev")}, &sdk.ServerOptions{
		Instructions: instructions,
		PageSize:     max(len(d.tools)+len(ownTools), sdk.DefaultPageSize), // one page: clients forget to ask for the next
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{}, Extensions: map[string]any{tasksExtension: struct{}{}}},
		SetCacheable: cacheable,
	})
	d.addTools()
	d.addResources()
	if err := d.addTasks(); err != nil {
		return nil, err
	}
	d.server.AddReceivingMiddleware(withCodes, d.survive, d.bothNames, d.withTasks)
	return d, nil
}

// survive makes a panic the answer to one request. Requests run in goroutines of the SDK, in which it would end the process, and with it the requests
// of all.
func (d *Door) survive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				d.o.Log.Error("a request panicked", zap.String("method", method), zap.Any("panic", p), zap.Stack("stack"))
				result, err = nil, internal("the server failed; the call, if there is one, goes on")
			}
		}()
		return next(ctx, method, req)
	}
}

const instructions = "Each call of a tool is recorded, runs once and ends with one receipt, whether or not anyone waits for it. An answer with gem_pending " +
	"means that the call was accepted and continues: call gem_result for its result, and do not make the call again. If it waits for a person, tell your user " +
	"what has to be decided, and leave the decision to people."

// cacheable says for how long clients may keep what they were told: the lists, which are the same until the process ends.
func cacheable(_ context.Context, req sdk.Request, c *sdk.Cacheable) {
	if _, read := req.GetParams().(*sdk.ReadResourceParams); read {
		c.CacheScope = "private" // of a call of this caller
		return
	}
	c.TTLMs = 60_000
}

// Stop lets all waits end, and none begin: their requests are answered as pending.
func (d *Door) Stop() {
	d.stop()
	time.AfterFunc(lastLooks, d.cut)
}

// lastLooks is how long waits have, once the door has stopped, to see how their calls stand: a thousand of them share few connections.
const lastLooks = 700 * time.Millisecond

// Close stops the door and closes its connections.
func (d *Door) Close() {
	d.Stop()
	d.cut()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiter != nil {
		d.waiter.Close()
	}
	if d.pool != nil {
		d.pool.Close()
	}
	d.pool, d.waiter = nil, nil
}
