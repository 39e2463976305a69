// Package audit checks that what GEM promises holds, in a whole database or in archives of pruned calls.
//
// The checks are SQL statements in the folder sql, one for each subject. [Database] runs them in one read-only snapshot while
// workers go on. [Archives] runs them over temporary tables that it fills with the calls of archives.
package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Check is one rule that an audit checks.
type Check struct {
	Name   string
	Proves string // what holds if nothing is found
	Remark bool   // findings are worth knowing and not faults

	counts string // what it looks at, a name of sizes.sql
	file   string // in the folder sql
	only   source // empty: in every source
	needs  string // a table of a domain, without which it is not made
}

// source is where calls are checked.
type source string

const (
	databases source = "databases"
	archives  source = "archives"
)

// Checks are all checks in the order in which they are reported. Those of one statement stand together.
var Checks = []Check{
	{Name: "guards", counts: "guards", file: "guards.sql", only: databases,
		Proves: "The triggers, unique indexes and constraints by which the database itself keeps the promises are in place."},

	{Name: "receipt-missing", counts: "finished calls", file: "receipts.sql",
		Proves: "A call in a final status has a receipt."},
	{Name: "receipt-second", counts: "receipts", file: "receipts.sql",
		Proves: "No call has two receipts."},
	{Name: "receipt-early", counts: "receipts", file: "receipts.sql",
		Proves: "A call that has not ended has no receipt."},
	{Name: "receipt-orphan", counts: "receipts", file: "receipts.sql",
		Proves: "Every receipt is of a call that exists."},
	{Name: "receipt-status", counts: "finished calls", file: "receipts.sql",
		Proves: "A call and its receipt have the same status."},
	{Name: "receipt-error", counts: "finished calls", file: "receipts.sql",
		Proves: "A failed call has its receipt's error, and no other call has one."},
	{Name: "receipt-attempt", counts: "finished calls", file: "receipts.sql",
		Proves: "A receipt was written by the last attempt of its call and by that attempt's worker, and names the call's tool."},
	{Name: "receipt-result", counts: "receipts", file: "receipts.sql",
		Proves: "A receipt's result has the form of its status: an output, an error with code and message, or the missing setup."},
	{Name: "effects-form", counts: "receipts", file: "receipts.sql",
		Proves: "A receipt's effects are one list for each kind of effect."},

	{Name: "journal-gaps", counts: "calls", file: "journal.sql",
		Proves: "A journal is numbered 1, 2, 3 without gaps, up to the number that the call counts."},
	{Name: "journal-order", counts: "events", file: "journal.sql",
		Proves: "Each event may follow the one before it, by the picture in migrations/functions/states.sql."},
	{Name: "journal-holder", counts: "events", file: "journal.sql",
		Proves: "An attempt wrote its events while it held the call, by its number and its worker."},
	{Name: "journal-replay", counts: "calls", file: "journal.sql",
		Proves: "Replaying a call's journal gives its row."},
	{Name: "journal-receipt", counts: "finished calls", file: "journal.sql",
		Proves: "The last event of a finished call names its receipt and was written at the same moment, and the receipt's duration is from the last claim to that."},
	{Name: "journal-orphan", counts: "events", file: "journal.sql",
		Proves: "Every event is of a call that exists."},

	{Name: "step-once", counts: "events", file: "steps.sql",
		Proves: "Each step of a call has ended at most once."},
	{Name: "step-effects", counts: "receipts", file: "steps.sql",
		Proves: "What the steps of a call did is on its receipt, as often as they did it, and the receipt counts the steps that the journal has, but for a last one whose handler was given up while it was written."},

	{Name: "child-called", counts: "children", file: "children.sql",
		Proves: "Its parent's journal names each call of a handler once, and names no other."},
	{Name: "child-returned", counts: "children", file: "children.sql",
		Proves: "The end of a call that a handler made is in its parent's journal once, as it was, if the parent had not ended before."},

	{Name: "again-same", counts: "calls", file: "children.sql",
		Proves: "A call that an operator had made again has the tool, input, session, caller and key of the other, and names the operator."},

	{Name: "answer-once", counts: "events", file: "answers.sql",
		Proves: "Nothing has two answers under one name."},
	{Name: "answer-by", counts: "receipts", file: "answers.sql",
		Proves: "The receipt of a question has the answer that its journal has, and who gave it."},
	{Name: "approval-given", counts: "receipts", file: "answers.sql",
		Proves: "An approval on a receipt was given to a question about that call, by whom it names."},

	{Name: "hit-source", counts: "hits", file: "keys.sql",
		Proves: "A hit repeats a receipt that succeeded by running, of the same tool and key, with the same result."},
	{Name: "hit-orphan", counts: "hits", file: "keys.sql", only: databases,
		Proves: "The receipt that a hit repeats exists."},
	{Name: "hit-effects", counts: "receipts", file: "keys.sql",
		Proves: "A hit says that it is one and lists no other effect. No other receipt says so."},
	{Name: "key-once", counts: "receipts", file: "keys.sql", only: databases,
		Proves: "A key succeeded by running at most once."},
	{Name: "key-running", counts: "calls", file: "keys.sql", only: databases,
		Proves: "No two calls hold the same key: running ones, and durable ones also between their attempts."},
	{Name: "key-computed", counts: "receipts", file: "keys.sql",
		Proves: "A receipt's key is its call's, and follows from the call's input, or from the client's key and the caller."},

	{Name: "rule-counted", counts: "counted calls", file: "rules.sql", only: databases,
		Proves: "What limits of rules counted are calls that were claimed, numbered without gaps, in the order of their times, and adds up."},
	{Name: "rule-window", counts: "counted calls", file: "rules.sql", only: databases,
		Proves: "No limit of a rule that blocks, or lets calls wait, let more through in its time than the rules of that version say."},

	{Name: "llm-call", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "A request to a model is of a call and of an attempt that it had, and those of a call are numbered without gaps."},
	{Name: "llm-entries", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "The requests to models on a receipt are those of the ledger, each once, with its arm, its end and its cost."},
	{Name: "llm-usage", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "What a receipt says that the requests of its call came to is their sum."},
	{Name: "llm-due", Remark: true, counts: "model requests", file: "llm.sql", only: databases,
		Proves: "No request is still sent whose call ended over an hour ago. One is if no worker was there to close it."},
	{Name: "llm-spend", counts: "budgets", file: "budgets.sql", only: databases,
		Proves: "What a budget has spent and reserved is the sum of its requests, and of those that were pruned."},

	{Name: "extract-text", counts: "receipts", file: "extract.sql",
		Proves: "The hash of the document that a receipt of extract.run names is that of the text in its call's input, if it is there."},
	{Name: "extract-quote", counts: "receipts", file: "extract.sql",
		Proves: "The quote of each extraction stands where its receipt says, in the text of its call's input, if it is there."},
	{Name: "extract-shard", counts: "receipts", file: "extract.sql",
		Proves: "A shard that a receipt says was read is a child of its call that succeeded, and one that it says was a hit was one."},
	{Name: "extract-part", counts: "document parts", file: "documents.sql", only: databases, needs: "public.extract_document_parts",
		Proves: "The parts of a document are numbered without gaps, are all of its user, and have the hash and the size of their text."},

	{Name: "effects-missing", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "The rows that receipts say were written are there, in every table that exists and has a column id. " +
			"Rows that people deleted are found too: skip this check if they do that."},
	{Name: "effects-foreign", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "A row that a receipt says was inserted carries that call's id."},
	{Name: "effects-unlisted", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "A row with a call's id is listed on that call's receipt: the handler's rows and the receipt appeared together."},

	{Name: "queue-level", counts: "queued calls", file: "queue.sql", only: databases,
		Proves: "Claims look at the level of every queued call."},
	{Name: "call-parent", counts: "calls", file: "queue.sql", only: databases,
		Proves: "The parent of every call exists."},
	{Name: "recovery-due", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call runs on a worker that was lost over a minute ago. One does if no other worker is left to recover it."},
	{Name: "waiting-due", Remark: true, counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "No call has waited for over a minute for a key that no call holds."},
	{Name: "wake-due", Remark: true, counts: "calls", file: "queue.sql", only: databases,
		Proves: "No call waits whose time came over a minute ago, and none that ended over a minute ago has children that nobody asked to end."},
	{Name: "wait-stuck", Remark: true, counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "No call waits for children, answers and times that have all come."},
	{Name: "cancel-due", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call still runs that someone asked to cancel over a minute ago."},
	{Name: "cancel-waits", counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "A call that someone asked to cancel waits only to clean up, or for a program that can continue it."},
	{Name: "overdue", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call runs for longer than its tool may, and half a minute. One does if its worker cannot write its end."},
	{Name: "registry-recorded", Remark: true, counts: "receipts", file: "queue.sql", only: databases,
		Proves: "The registry that a receipt names is recorded."},

	{Name: "archive-line", counts: "lines", file: "archive.sql", only: archives,
		Proves: "Every line of an archive can be read."},
	{Name: "archive-unfinished", counts: "calls", file: "archive.sql", only: archives,
		Proves: "Every call in an archive has ended."},
	{Name: "archive-differs", counts: "lines", file: "archive.sql", only: archives,
		Proves: "A call that archives have twice, as after an interrupted run, is the same both times."},
	{Name: "archive-repeated", Remark: true, counts: "lines", file: "archive.sql", only: archives,
		Proves: "Archives have no call twice."},
	{Name: "archive-torn", Remark: true, counts: "lines", file: "archive.sql", only: archives,
		Proves: "The last line of an archive is complete. If it is not, a run was interrupted before it removed that line's call: " +
			"the call is still in the database, and the next run removes the rest of the line."},
}

// Known reports whether a check has that name.
func Known(name string) bool {
	return slices.ContainsFunc(Checks, func(c Check) bool { return c.Name == name })
}

// Options of an audit. The zero value makes all checks.
type Options struct {
	// Skip names checks that are left out.
	Skip []string
	// Examples is how many findings of a check the report has. Default: 5.
	Examples int
	// Timeout is how long a statement may take. Default: 15 minutes. A check that takes longer is undecided.
	Timeout time.Duration
	// Each, if set, gets the result of each check as soon as it is known.
	Each func(Result)
}

// check fills in the defaults. Its error names a check that does not exist.
func (o *Options) check() error {
	o.Examples, o.Timeout = cmp.Or(o.Examples, 5), cmp.Or(o.Timeout, 15*time.Minute)
	for _, name := range o.Skip {
		if !Known(name) {
			return fmt.Errorf("unknown check %q", name)
		}
	}
	return nil
}
