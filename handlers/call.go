// Package handlers is the contract between a worker and the Go code of tools.
//
// A domain is a Go type, and each of its exported methods is a tool: leads.create is Leads.Create, comms.send_sms is
// Comms.SendSMS. A program lists its domains: plain values, or a [Domain] where one needs configuration or tables. [Bind]
// finds their methods. The domains that come with GEM are packages below this one; none is needed.
//
// A method has one of three signatures. The choice tells the worker what it may do when a process dies:
//
//	// All effects are rows in Postgres: they commit together with the receipt, once, or not at all.
//	func (Leads) Create(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Create) (Created, error)
//
//	// Effects outside Postgres, such as a mail or an HTTP request: they cannot be taken back.
//	func (Comms) SendSMS(ctx context.Context, call *handlers.Call, in SendSMS) (SMSSent, error)
//
//	// Several effects of any kind: each is a step, whose result is kept, and the handler goes on where it was: see [Step].
//	func (Quotes) Send(ctx context.Context, call *handlers.Durable, in SendQuote) (QuoteSent, error)
//
// In is a struct that the call's input is decoded into; Out is encoded as the receipt's result. An error ends the call as
// failed, unless it is a [NotConfigured] or a [TransientError]; a [Failure] adds a code and details. A method must return
// when its context ends. An In that is a [Checked] may refuse a call before its key counts.
package handlers

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB runs statements. A pgx pool, connection or transaction is one.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Tx is the transaction in which a call's rows and its receipt appear together. The worker begins it with the handler's
// first statement, and commits it with the receipt or rolls it back. It ends with the call: a later statement is refused.
type Tx interface{ DB }

// Call describes the call that a handler serves, and records what the handler did. It is safe for concurrent use.
type Call struct {
	// ID is the call's id, the same in every attempt: give it to services that take an idempotency key.
	ID string
	// Tool is the registered name, such as leads.create.
	Tool string
	// Attempt counts the claims of this call, from 1.
	Attempt int
	// SessionID groups the calls of one conversation; empty if the frontend set none.
	SessionID string
	// CreatedBy is the user that the database took from the frontend's token; empty if there was none.
	CreatedBy string
	// SignedIn reports whether the call was made with the token of a user: it came from outside, and not from a server of yours.
	SignedIn bool
	// Input is the validated input as it stands in the row.
	Input json.RawMessage

	mu      sync.Mutex
	effects Effects
}
