// Package audit checks GEM's promises in a whole database or in archives of pruned calls.
//
// The checks are SQL statements in the folder sql, one for each subject. [Database] runs them in one read-only snapshot
// while workers continue. [Archives] runs them over temporary tables that it fills with the calls of archives.
package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Check is one check of an audit.
type Check struct {
	Name   string
	Proves string // the guarantee, if nothing is found
	Remark bool   // findings are not faults, but worth knowing

	counts string // the objects that it checks, a name of sizes.sql
	file   string // in the folder sql
	only   source // empty: in every source
	needs  string // a table of a domain, without which it is skipped
}

// source is the place of the calls to check.
type source string

const (
	databases source = "databases"
	archives  source = "archives"
)

// Checks are all checks in the order of the report. Checks of the same statement are adjacent.
var Checks = []Check{
	{Name: "guards", counts: "guards", file: "guards.sql", only: databases,
		Proves: "The triggers, unique indexes and constraints with which the database itself enforces the promises exist."},
	{Name: "rights", counts: "tables and views", file: "rights.sql", only: databases,
		Proves: "No policy or grant of others opens GEM's tables. Allowed are inserts of calls with the columns that GEM " +
			"grants, and reads of the tools' tables. Skip this check if you granted more."},

	{Name: "receipt-missing", counts: "finished calls", file: "receipts.sql",
		Proves: "A call in a final status has a receipt."},
	{Name: "receipt-second", counts: "receipts", file: "receipts.sql",
		Proves: "No call has two receipts."},
	{Name: "receipt-early", counts: "receipts", file: "receipts.sql",
		Proves: "A call that has not ended has no receipt."},
	{Name: "receipt-orphan", counts: "receipts", file: "receipts.sql",
		Proves: "The call of every receipt exists."},
	{Name: "receipt-status", counts: "finished calls", file: "receipts.sql",
		Proves: "A call and its receipt have the same status."},
	{Name: "receipt-error", counts: "finished calls", file: "receipts.sql",
		Proves: "A failed call has the error of its receipt, and no other call has an error."},
	{Name: "receipt-attempt", counts: "finished calls", file: "receipts.sql",
		Proves: "The last attempt of a call wrote its receipt, on that attempt's worker, and the receipt names the call's " +
			"tool."},
	{Name: "receipt-result", counts: "receipts", file: "receipts.sql",
		Proves: "A receipt's result has the form of its status: an output, an error with code and message, or the missing " +
			"setup."},
	{Name: "effects-form", counts: "receipts", file: "receipts.sql",
		Proves: "A receipt's effects have one list for each kind of effect."},

	{Name: "journal-gaps", counts: "calls", file: "journal.sql",
		Proves: "The events of a journal are numbered 1, 2, 3 without gaps, up to the number of events in the call's row."},
	{Name: "journal-order", counts: "events", file: "journal.sql",
		Proves: "Each event may follow the previous one, by the picture in migrations/functions/states.sql."},
	{Name: "journal-holder", counts: "events", file: "journal.sql",
		Proves: "An attempt wrote its events while it held the call, under its number and its worker."},
	{Name: "journal-replay", counts: "calls", file: "journal.sql",
		Proves: "Replaying a call's journal gives its row."},
	{Name: "journal-receipt", counts: "finished calls", file: "journal.sql",
		Proves: "The last event of a finished call names its receipt and has the same time, and the receipt's duration is " +
			"the time since the last claim."},
	{Name: "journal-orphan", counts: "events", file: "journal.sql",
		Proves: "The call of every event exists."},

	{Name: "step-once", counts: "events", file: "steps.sql",
		Proves: "Each step of a call has ended at most once."},
	{Name: "step-effects", counts: "receipts", file: "steps.sql",
		Proves: "A receipt lists each effect of the call's steps, as often as it happened, and its number of steps is the " +
			"number in the journal, or one less if the worker abandoned the handler during the last step."},

	{Name: "child-called", counts: "children", file: "children.sql",
		Proves: "A parent's journal names each call that its handler made exactly once, and no other call."},
	{Name: "child-returned", counts: "children", file: "children.sql",
		Proves: "A parent's journal has the end of each child once, with its outcome, unless the parent had already ended."},

	{Name: "again-same", counts: "calls", file: "children.sql",
		Proves: "A call that an operator repeated has the tool, input, session, caller and key of the first call, and " +
			"names the operator."},

	{Name: "answer-once", counts: "events", file: "answers.sql",
		Proves: "No call has two answers under one name."},
	{Name: "answer-by", counts: "receipts", file: "answers.sql",
		Proves: "The receipt of a question has the answer and the answerer from its journal."},
	{Name: "approval-given", counts: "receipts", file: "answers.sql",
		Proves: "An approval on a receipt is the answer to a question about that call, by the person whom it names."},
	{Name: "approval-denied", counts: "calls", file: "answers.sql",
		Proves: "No call succeeded in an attempt that was claimed after a person had denied the call."},
	{Name: "question-input", counts: "calls", file: "answers.sql",
		Proves: "The columns that lists of questions read match the question's input: the people who may answer it, and " +
			"the deadline."},

	{Name: "hit-source", counts: "hits", file: "keys.sql",
		Proves: "A hit repeats the receipt of a call that ran and succeeded, with the same tool, key and result."},
	{Name: "hit-orphan", counts: "hits", file: "once.sql", only: databases,
		Proves: "The receipt that a hit repeats exists, or was pruned and its key kept."},
	{Name: "hit-effects", counts: "receipts", file: "keys.sql",
		Proves: "A hit is marked as a hit and lists no other effect. No other receipt is marked as a hit."},
	{Name: "key-once", counts: "receipts", file: "once.sql", only: databases,
		Proves: "At most one call with a key ran and succeeded, including pruned calls whose key was kept."},
	{Name: "key-running", counts: "calls", file: "keys.sql", only: databases,
		Proves: "No two calls hold the same key. A running call holds its key, and a durable call also between its " +
			"attempts."},
	{Name: "key-computed", counts: "receipts", file: "keys.sql",
		Proves: "A receipt has the key of its call, which follows from the call's input, or from the client's key and the " +
			"caller."},

	{Name: "restored-listed", counts: "finished calls", file: "epochs.sql", only: databases,
		Proves: "The list of a change of the Postgres server has exactly the receipts that were restored after it."},

	{Name: "rule-counted", counts: "counted calls", file: "rules.sql", only: databases,
		Proves: "The limits of rules counted only claimed calls, numbered without gaps in the order of their times, with " +
			"correct totals."},
	{Name: "rule-window", counts: "counted calls", file: "rules.sql", only: databases,
		Proves: "No limit of a rule that blocks or delays calls passed more calls in its window than that version of the " +
			"rules allows."},

	{Name: "place-counted", counts: "places", file: "places.sql", only: databases,
		Proves: "The rows of a running rule's counter are numbered without gaps. Each follows from the row before, and a " +
			"free place goes to the first call of the queue."},
	{Name: "place-most", counts: "places", file: "places.sql", only: databases,
		Proves: "No running rule let more calls run at the same time than that version of the rules allows."},
	{Name: "place-held", counts: "places", file: "places.sql", only: databases,
		Proves: "A call that has a place runs or is about to, and each open call that has a place or waits for one is in a " +
			"counter."},
	{Name: "place-idle", Remark: true, counts: "places", file: "places.sql", only: databases,
		Proves: "No call waits for over a minute although a place is free."},

	{Name: "instant-covered", counts: "occurrences", file: "schedules.sql", only: databases,
		Proves: "Each time of a schedule has one call or one reason why it has none."},
	{Name: "llm-call", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "Each request to a model belongs to an existing call and attempt, and the requests of a call are numbered " +
			"without gaps."},
	{Name: "llm-entries", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "A receipt lists each request to a model in the ledger once, with the same target, outcome and cost."},
	{Name: "llm-usage", counts: "model requests", file: "llm.sql", only: databases,
		Proves: "The usage on a receipt is the sum of the call's requests."},
	{Name: "llm-due", Remark: true, counts: "model requests", file: "llm.sql", only: databases,
		Proves: "No request is open whose call ended over an hour ago. It stays open if no worker was alive to close it."},
	{Name: "llm-spend", counts: "budgets", file: "budgets.sql", only: databases,
		Proves: "The spent and reserved amounts of a budget are the sums of its requests, including pruned ones."},

	{Name: "extract-text", counts: "receipts", file: "extract.sql",
		Proves: "A receipt of extract.run has the hash of the text in its call's input, if the input has the text."},
	{Name: "extract-quote", counts: "receipts", file: "extract.sql",
		Proves: "The quote of each extraction is at the stated position of the text in its call's input, if the input has " +
			"the text."},
	{Name: "extract-shard", counts: "receipts", file: "extract.sql",
		Proves: "For each shard that a receipt lists as read, a child of the call succeeded, as a hit if the receipt " +
			"states so."},
	{Name: "extract-part", counts: "document parts", file: "documents.sql", only: databases,
		needs: "public.extract_document_parts",
		Proves: "The parts of a document are numbered without gaps, belong to its user, and have the hash and the size of " +
			"their text."},

	{Name: "effects-missing", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "The rows that receipts list as written exist, in every existing table with a column id. The check also " +
			"reports rows that people deleted: skip it if they do that."},
	{Name: "effects-foreign", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "A row that a receipt lists as inserted has that call's id."},
	{Name: "effects-unlisted", counts: "receipts", file: "effects.sql", only: databases,
		Proves: "The receipt of a call lists every row with the call's id: the handler's rows and the receipt appeared " +
			"together."},

	{Name: "queue-level", counts: "queued calls", file: "queue.sql", only: databases,
		Proves: "Claims search the level of every queued call."},
	{Name: "call-parent", counts: "calls", file: "queue.sql", only: databases,
		Proves: "The parent of every call exists."},
	{Name: "recovery-due", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call runs on a worker that was lost over a minute ago. It does if no other worker is alive to recover " +
			"it."},
	{Name: "waiting-due", Remark: true, counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "No call has waited for over a minute for a key that no call holds."},
	{Name: "wake-due", Remark: true, counts: "calls", file: "queue.sql", only: databases,
		Proves: "No call waits beyond its wake time by over a minute, and no call that ended over a minute ago has open " +
			"children without a request to cancel them."},
	{Name: "wait-stuck", Remark: true, counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "No call waits for children, answers and times that have all arrived."},
	{Name: "cancel-due", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call runs for over a minute after its cancellation was requested."},
	{Name: "cancel-waits", counts: "waiting calls", file: "queue.sql", only: databases,
		Proves: "After its cancellation was requested, a call waits only to clean up, or for a program that can continue " +
			"it."},
	{Name: "overdue", Remark: true, counts: "running calls", file: "queue.sql", only: databases,
		Proves: "No call exceeds the timeout of its tool by over half a minute. It does if its worker cannot write its end."},
	{Name: "registry-recorded", Remark: true, counts: "receipts", file: "queue.sql", only: databases,
		Proves: "The registry of every receipt is recorded."},

	{Name: "archive-line", counts: "lines", file: "archive.sql", only: archives,
		Proves: "Every line of an archive can be read."},
	{Name: "archive-unfinished", counts: "calls", file: "archive.sql", only: archives,
		Proves: "Every call in an archive has ended."},
	{Name: "archive-differs", counts: "lines", file: "archive.sql", only: archives,
		Proves: "If a call is in archives twice, for example after an interrupted run, both lines are the same."},
	{Name: "archive-repeated", Remark: true, counts: "lines", file: "archive.sql", only: archives,
		Proves: "No call is in archives twice."},
	{Name: "archive-torn", Remark: true, counts: "lines", file: "archive.sql", only: archives,
		Proves: "The last line of an archive is complete. If it is not, a run was interrupted before it removed that " +
			"line's call: " +
			"the call is still in the database, and the next run removes the rest of the line."},
}

// Known reports whether a check has that name.
func Known(name string) bool {
	return slices.ContainsFunc(Checks, func(c Check) bool { return c.Name == name })
}

// Options configure an audit. The zero value makes all checks.
type Options struct {
	// Skip names the checks to skip.
	Skip []string
	// Examples is the number of findings of each check in the report. Default: 5.
	Examples int
	// Timeout limits each statement. Default: 15 minutes. A check that takes longer is undecided.
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
