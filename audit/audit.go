// Package audit checks that what GEM promises holds: over a whole database, or over an archive of pruned calls.
//
// A database is checked by the statements of the folder sql, one for each subject, all in one read-only snapshot, so that
// workers may go on meanwhile. An archive is read line by line, and its calls are judged by the same rules, written in Go
// (archive.go, journal.go); a test holds the two against each other.
package audit

import (
	"fmt"
	"slices"
)

// Check is one thing that is looked at.
type Check struct {
	Name   string
	Proves string // what holds when nothing is found
	// Remark says that what the check finds is worth knowing and no fault.
	Remark bool

	of   string // what is looked at, a count of sizes.sql
	file string // of the folder sql; empty for a check of archives alone
}

// Checks are all checks, in the order in which they are reported: those of a file together.
var Checks = []Check{
	{Name: "guards", of: "guards", file: "guards.sql",
		Proves: "The triggers, unique indexes and constraints are in place by which the database itself keeps the promises."},

	{Name: "receipt-missing", of: "finished calls", file: "receipts.sql",
		Proves: "A call in a final status has a receipt."},
	{Name: "receipt-second", of: "receipts", file: "receipts.sql",
		Proves: "No call has two receipts."},
	{Name: "receipt-early", of: "receipts", file: "receipts.sql",
		Proves: "A call that has not ended has none."},
	{Name: "receipt-orphan", of: "receipts", file: "receipts.sql",
		Proves: "Every receipt is of a call that exists."},
	{Name: "receipt-status", of: "finished calls", file: "receipts.sql",
		Proves: "A call and its receipt have the same status."},
	{Name: "receipt-error", of: "finished calls", file: "receipts.sql",
		Proves: "A failed call has its receipt's error, and no other call has one."},
	{Name: "receipt-attempt", of: "finished calls", file: "receipts.sql",
		Proves: "A receipt was written by the last attempt of its call, by the worker that had it, and names the call's tool."},
	{Name: "receipt-result", of: "receipts", file: "receipts.sql",
		Proves: "A receipt's result has the form of its status: an output, an error with code and message, or what setup is missing."},
	{Name: "effects-form", of: "receipts", file: "receipts.sql",
		Proves: "A receipt's effects are lists of what was done, by kind."},

	{Name: "journal-gaps", of: "calls", file: "journal.sql",
		Proves: "A journal is numbered 1, 2, 3 without gaps, up to the number that the call counts."},
	{Name: "journal-order", of: "events", file: "journal.sql",
		Proves: "Each event may follow the one before it, as the picture in migrations/00001_calls.sql has it."},
	{Name: "journal-holder", of: "events", file: "journal.sql",
		Proves: "What an attempt wrote was written while that attempt, by its number and its worker, held the call."},
	{Name: "journal-replay", of: "calls", file: "journal.sql",
		Proves: "Replaying a call's journal gives its row."},
	{Name: "journal-receipt", of: "finished calls", file: "journal.sql",
		Proves: "The last event of a finished call names its receipt, and was written in the same moment."},
	{Name: "journal-orphan", of: "events", file: "journal.sql",
		Proves: "Every event is of a call that exists."},

	{Name: "hit-source", of: "hits", file: "keys.sql",
		Proves: "A hit repeats a receipt that succeeded by running, of the same tool and key, with the same result."},
	{Name: "hit-effects", of: "receipts", file: "keys.sql",
		Proves: "A hit says that it is one and lists nothing else that it did; and what says so is one."},
	{Name: "key-once", of: "receipts", file: "keys.sql",
		Proves: "A key succeeded by running once at most."},
	{Name: "key-running", of: "running calls", file: "keys.sql",
		Proves: "No two calls run with the same key."},
	{Name: "key-computed", of: "receipts", file: "keys.sql",
		Proves: "A receipt's key is its call's, and follows from the call's input, or from its client's key and its caller."},

	{Name: "effects-missing", of: "receipts", file: "effects.sql",
		Proves: "The rows that receipts say were written are there, in the tables of the built-in domains. " +
			"Rows that people delete by themselves are found here too: leave the check out where they do."},
	{Name: "effects-foreign", of: "receipts", file: "effects.sql",
		Proves: "A row that a receipt says was inserted carries that call's id."},
	{Name: "effects-unlisted", of: "receipts", file: "effects.sql",
		Proves: "A row that carries a call's id stands on that call's receipt: what a handler wrote and the receipt appeared together."},

	{Name: "queue-priority", of: "queued calls", file: "queue.sql",
		Proves: "The priority of every queued call is one that claims look at."},
	{Name: "call-parent", of: "calls", file: "queue.sql",
		Proves: "The parent of every call exists."},
	{Name: "recovery-due", Remark: true, of: "running calls", file: "queue.sql",
		Proves: "No call runs on a worker that was lost over a minute ago. One does while no worker is left that could take it in."},
	{Name: "waiting-due", Remark: true, of: "waiting calls", file: "queue.sql",
		Proves: "No call has waited for over a minute for a key with which no call runs."},
	{Name: "cancel-due", Remark: true, of: "running calls", file: "queue.sql",
		Proves: "No call runs on that someone asked to cancel over a minute ago."},
	{Name: "registry-recorded", Remark: true, of: "receipts", file: "queue.sql",
		Proves: "The registry that a receipt was validated against is recorded."},

	{Name: "archive-line", of: "lines",
		Proves: "Every line of an archive can be read."},
	{Name: "archive-differs", of: "lines",
		Proves: "A call that stands in an archive twice, as after an interrupted run, is the same both times."},
	{Name: "archive-repeated", Remark: true, of: "lines",
		Proves: "No call stands in an archive twice."},
	{Name: "archive-torn", Remark: true, of: "lines",
		Proves: "The last line of an archive is whole. Where it is not, a run was interrupted before it removed that line's call, " +
			"which is in the database still, and the next run cuts the rest of the line off."},
}

// Known reports whether there is a check of that name.
func Known(name string) bool {
	return slices.ContainsFunc(Checks, func(c Check) bool { return c.Name == name })
}

// Options says what an audit does. The zero value is good.
type Options struct {
	// Skip names checks that are left out.
	Skip []string
	// Examples is how many findings of a check are told. Default: 5.
	Examples int
	// Each, when set, is told the result of each check as soon as it is there.
	Each func(Result)
}

func (o *Options) check() error {
	if o.Examples == 0 {
		o.Examples = 5
	}
	for _, name := range o.Skip {
		if !Known(name) {
			return fmt.Errorf("there is no check %q", name)
		}
	}
	return nil
}

func (o *Options) skips(name string) bool { return slices.Contains(o.Skip, name) }
