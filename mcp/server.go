// Package mcp is an MCP server that offers the tools of a registry to agents. Each tools/call is a row of
// core_tool_calls, inserted with the rights of its caller and answered from its receipt. The server itself runs no
// tool: workers do, and a call continues when the server or its client is gone.
package mcp

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/shares"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
)

// Options configure a Server. Only Registry and Pool are required.
type Options struct {
	Registry *registry.Registry
	// Pool opens the database, without waiting for it. It is called at the first statement, and again after an error:
	// start, discover and list need no database. The Server closes the pool.
	Pool func(context.Context) (*pgxpool.Pool, error)
	// ListenURL is the connection string for notifications about finished calls, for a server with many clients. If
	// it is empty, the server polls.
	ListenURL string
	// DBRole is the role whose rights statements have. The default is authenticated if that role exists, otherwise
	// gem_frontend.
	DBRole string
	// Subject is the created_by of calls over stdio. The default is mcp.
	Subject string
	// Dots lists tools under their names in the registry, such as leads.create. By default dots become underscores.
	// Calls may use both forms.
	Dots bool
	// Tools are patterns of the tools to offer, such as leads.* and os.list_tasks; empty means all. Tools of the
	// domain wait and tools that are closed to signed-in users are never offered.
	Tools []string
	// ReadOnly leaves out the tools that have a permission other than read:….
	ReadOnly bool
	// Wait limits how long a request waits for its call; after that the answer is pending. The default is 45 s.
	Wait time.Duration
	// TaskAfter is the time after which a call becomes a task, for clients that declare tasks; 0 means at once.
	TaskAfter time.Duration
	// KeepOnCancel lets a call continue after the client cancels its request. By default the call is cancelled too.
	KeepOnCancel bool
	// CancelOnDisconnect cancels a call whose client disconnects while it waits. By default the call continues.
	CancelOnDisconnect bool
	// MaxResult limits the bytes of JSON in a result; a larger one is replaced by a link to its receipt. The default
	// is 100 KiB.
	MaxResult int
	// KeyArgument adds an optional gem_key to the input of tools that write, for clients that cannot send _meta.
	KeyArgument bool
	// DashboardURL is where people answer questions; it may be empty.
	DashboardURL string
	// Version is the program's version, for clients.
	Version string
	// Log gets messages for operators. The default logs nothing.
	Log *zap.Logger
}

// Server is the MCP server. It serves any number of clients and keeps no state about them between requests.
type Server struct {
	o      Options
	tools  []*tool          // the offered tools, by their listed names
	byName map[string]*tool // the same, by both forms of their names
	closed []*registry.Tool // the tools that signed-in users may not call
	sdk    *sdk.Server

	glances glances // of tasks
	prompts prompts
	shares  shares.Shares[string] // of the connections, by subject

	patience time.Duration   // see usualPatience
	tryFor   time.Duration   // see oneTry
	closing  context.Context // ends when all waits must end
	grace    time.Duration   // for answers over HTTP after the end
	late     context.Context // ends soon after that: requests are then answered with the current state
	stop     context.CancelFunc
	cut      context.CancelFunc

	mu     sync.Mutex
	pool   *pgxpool.Pool
	waiter *client.Waiter
	dbRole *string // found at the first statement
	apart  bool    // there are many callers: statements need a role that separates them
	shared bool    // callers have tokens, and share the connections: each may use half of them
}

// New returns a Server, or an error that names the invalid option.
func New(o Options) (*Server, error) {
	o.Subject, o.Wait, o.MaxResult = cmp.Or(o.Subject, "mcp"), cmp.Or(o.Wait, 45*time.Second), cmp.Or(o.MaxResult, 100<<10)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	d := &Server{o: o, grace: stopTimeout, patience: usualPatience, tryFor: oneTry}
	if err := d.choose(); err != nil {
		return nil, err
	}
	d.closing, d.stop = context.WithCancel(context.Background())
	d.late, d.cut = context.WithCancel(context.Background())
	d.sdk = sdk.NewServer(&sdk.Implementation{Name: "gem", Title: "GEM", Version: cmp.Or(o.Version, "dev")},
		&sdk.ServerOptions{
			Instructions: instructions,
			PageSize:     max(len(d.tools)+len(ownTools), sdk.DefaultPageSize), // one page: some clients do not request the next
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{},
				Extensions: map[string]any{tasksExtension: struct{}{}}},
			SetCacheable: cacheable,
		})
	d.addTools()
	d.addResources()
	if err := d.addTasks(); err != nil {
		return nil, err
	}
	d.sdk.AddReceivingMiddleware(withCodes, d.survive, d.bothNames, d.withTasks)
	return d, nil
}

// survive turns a panic into an error for one request. Requests run in goroutines of the SDK, where a panic would end
// the process and every other request.
func (d *Server) survive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				d.o.Log.Error("a request panicked", zap.String("method", method), zap.Any("panic", p), zap.Stack("stack"))
				result, err = nil, internal("the server failed; the call, if there is one, continues")
			}
		}()
		return next(ctx, method, req)
	}
}

const instructions = "Each call to a tool is recorded, runs once and ends with one receipt, whether or not anyone " +
	"waits for it. An answer with gem_pending " +
	"means that the call was accepted and continues: call gem_result for its result, and do not make the call again. If " +
	"it waits for a person, tell your user " +
	"what has to be decided, and leave the decision to people."

// cacheable sets how long clients may cache an answer: lists do not change until the process ends.
func cacheable(_ context.Context, req sdk.Request, c *sdk.Cacheable) {
	if _, read := req.GetParams().(*sdk.ReadResourceParams); read {
		c.CacheScope = "private" // of a call of this caller
		return
	}
	c.TTLMs = 60_000
}

// Stop ends all waits, and allows no new ones: their requests are answered as pending.
func (d *Server) Stop() {
	d.stop()
	time.AfterFunc(lastLooks, d.cut)
}

// lastLooks is how long waits may read the state of their calls after Stop: a thousand of them share few connections.
const lastLooks = 700 * time.Millisecond

// Close stops the server and closes its connections.
func (d *Server) Close() {
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
