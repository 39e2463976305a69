package handlers

import (
	"context"
	"encoding/json"
)

// Place is where tools live that are no Go methods: in SQL functions, behind HTTP, or in an MCP server. Tools that live there are not durable.
type Place interface {
	// For returns the handler of a tool, and whether it lives there. It may be called by many goroutines at once, before each attempt
	// of a call, and answer otherwise later.
	For(tool string) (*Handler, bool)
}

// Add adds a place. [Handlers.For] asks Go's methods first, and then the places in the order in which they were added. It must not be
// called once a worker uses the handlers.
func (h *Handlers) Add(p Place) { h.places = append(h.places, p) }

// NewHandler returns the handler of a tool that lives elsewhere. file says where, in one word, and fn names it there, as in ("HTTP",
// "https://example.com/crm/refund"): neither may hold a secret. Where it is transactional, run may use the transaction, as a method with a
// [Tx] may; otherwise tx is not to be used, and the handler is Remote. run gets a valid input, must return when its context ends, and returns the output, which the
// worker checks, or an error as a method does. It must not keep call after it has returned.
func NewHandler(file, fn string, transactional bool, run func(ctx context.Context, tx Tx, call *Call) (json.RawMessage, error)) *Handler {
	return &Handler{File: file, Func: fn, Transactional: transactional, Remote: !transactional, run: run}
}

// Elsewhere reports whether the tool is no Go method: its handler has no Input and Output.
func (h *Handler) Elsewhere() bool { return h.run != nil }
