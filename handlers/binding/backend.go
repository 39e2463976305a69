package binding

import (
	"context"
	"encoding/json"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/exchange"
)

// Backend has tools that are not Go methods: SQL functions, tools behind HTTP, or tools of an MCP server.
type Backend interface {
	// For returns the handler of a tool, and whether the backend has the tool. It is called before each attempt of a
	// call, by many goroutines at once, and its result may change.
	For(tool string) (*Handler, bool)
}

// Add adds a backend. [Handlers.For] looks for Go methods first, and then in the backends, in the order in which they
// were added. Add must not be called after a worker has begun to use the handlers.
func (h *Handlers) Add(b Backend) { h.backends = append(h.backends, b) }

// NewHandler returns the handler of a tool of a backend. file names the kind of backend in one word, and fn the tool
// within it, as in ("HTTP", "https://example.com/crm/refund"). Neither may contain a secret. If the handler is
// transactional, run may use the transaction, like a method with a [handlers.Tx]; otherwise run must not use tx, and
// the handler is Remote. run gets a valid input, must return when its context ends, and returns the output, which the
// worker checks, or an error as a method does. It must not keep call after it has returned.
func NewHandler(file, fn string, transactional bool,
	run func(ctx context.Context, tx handlers.Tx, call *handlers.Call) (json.RawMessage, error)) *Handler {
	return &Handler{File: file, Func: fn, Transactional: transactional, Remote: !transactional, run: run}
}

// NewDurableHandler returns the handler of a durable tool of a backend. It is Remote. run gets the attempt, which has
// the journal and records what the service answers.
func NewDurableHandler(file, fn string,
	run func(ctx context.Context, call *handlers.Call, attempt exchange.Attempt) (json.RawMessage, error)) *Handler {
	return &Handler{File: file, Func: fn, Durable: true, Remote: true, converse: run}
}

// UsesBackend reports whether a backend runs the tool. Such a handler has no Input and Output.
func (h *Handler) UsesBackend() bool { return h.run != nil || h.converse != nil }
