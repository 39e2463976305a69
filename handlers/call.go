// Package handlers holds what a tool call does: one Go type a domain, one method a tool.
//
// A domain lives in the file of its name, and `domain.method` is the method of that name: leads.create is Leads.Create in
// leads.go, integrations.google_drive.search is Integrations.GoogleDriveSearch in integrations.go. See [Bind] for the rule.
//
// A method has one of two signatures, and its choice tells the worker what it may do when a process dies:
//
//	// All effects are rows in Postgres: they commit together with the receipt, once, or not at all.
//	func (Leads) Create(ctx context.Context, tx Tx, call *Call, in CreateLead) (LeadCreated, error)
//
//	// Effects outside Postgres (a mail, an HTTP request): they can not be taken back.
//	func (Comms) SendSMS(ctx context.Context, call *Call, in SendSMS) (SMSSent, error)
//
// The package knows neither the worker that runs it nor the receipts that record it.
package handlers

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB runs statements. A pgx pool, connection or transaction is one.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Tx is the transaction in which a call's rows and its receipt appear together. The worker begins it with the first
// statement, and commits it with the receipt or rolls it back: a handler only runs statements on it. It ends with the
// call: a statement after that is refused.
type Tx interface{ DB }

// Call is what a handler knows of the call that it serves, and where it records what it did.
// A handler may use it from several goroutines.
type Call struct {
	// ID is the call's id, the same in every attempt: the key to hand to services that take one.
	ID string
	// Tool is the registered name, such as leads.create.
	Tool string
	// Attempt counts the claims of this call, from 1.
	Attempt int
	// SessionID groups the calls of one conversation; empty when the frontend set none.
	SessionID string
	// CreatedBy is the user that the database took from the frontend's token; empty when there was none.
	CreatedBy string
	// Input is the validated input as it stands in the row.
	Input json.RawMessage

	effects recorder
}
