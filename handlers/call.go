// Package handlers is the contract between a worker and the Go code of tools.
//
// A domain is a Go type, and each of its exported methods is a tool: leads.create is Leads.Create, comms.send_sms is
// Comms.SendSMS. A program lists each domain as a plain value or, if the domain needs configuration, connections or
// tables, as a [Domain]. Package binding finds their methods. GEM's own domains are packages below this one. All are
// optional except wait, which every program has.
//
// A method has one of three signatures. The signature determines what a worker may do with a call after the process
// that ran it has died:
//
//	// All effects are rows in Postgres, which commit together with the receipt, or not at all.
//	func (Leads) Create(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Create) (Created, error)
//
//	// The effects are outside of Postgres, such as an email or an HTTP request. They cannot be rolled back.
//	func (Comms) SendSMS(ctx context.Context, call *handlers.Call, in SendSMS) (SMSSent, error)
//
//	// Several effects of any kind. Each is a step whose result is in the journal, so that the handler can continue
//	// after a crash: see [Step].
//	func (Quotes) Send(ctx context.Context, call *handlers.Durable, in SendQuote) (QuoteSent, error)
//
// The input is decoded into the last parameter, a struct. The output is encoded as the receipt's result. An error ends
// the call as failed, unless it is a [NotConfigured] or a [TransientError]; a [Failure] adds a code and details. A
// method must return when its context ends. An input struct that implements [Checked] can refuse a call before the
// worker takes the call's idempotency key.
package handlers

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/gemworker/gem/receipts"
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
// first statement, and commits it with the receipt or rolls it back. It ends with the call, and then rejects
// statements.
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
	// CreatedBy is the user on whose behalf the call was made, normally from the frontend's token; empty if there is none.
	CreatedBy string
	// SignedIn reports whether a signed-in user made the call, rather than one of your servers.
	SignedIn bool
	// Input is the validated input of the row.
	Input json.RawMessage

	mu      sync.Mutex
	effects receipts.HandlerEffects
}

// Checked is an input that can refuse its call. The worker calls Check before it takes the call's key, so a refused
// call affects no other call. Use it if the fields of an input may contradict each other, for example if one field must
// be the hash of the others. An error ends the call like a handler's error. Check must depend only on the input and the
// call, because the worker calls it before each attempt until a step is recorded.
type Checked interface {
	Check(call *Call) error
}
