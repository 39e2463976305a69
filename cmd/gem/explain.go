package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain CALL_ID",
		Short: "Say why a call waits, or why it ended as it did, and what to do",
		Long: describe("Say why a call waits, or why it ended as it did, and what to do", `
One or two sentences, from the call's row, its journal, its receipt and the
workers that are alive. gem trace shows every step. Needs DATABASE_URL.`),
		Example: "  gem explain 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55",
		Args:    takes("one call id", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := callID(args[0])
			if err != nil {
				return err
			}
			db, err := connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.Close()
			said, err := explain(cmd.Context(), db, id)
			if err != nil {
				return refusal(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
}

func explain(ctx context.Context, db store.DB, id string) (string, error) {
	c, err := readCall(ctx, db, id)
	if err != nil {
		return "", err
	}
	journal, err := store.Journal(ctx, db, id)
	if err != nil {
		return "", err
	}
	switch c.Status {
	case "queued":
		return explainQueued(ctx, db, c, journal)
	case "running":
		return explainRunning(ctx, db, c)
	case "waiting":
		return explainWaiting(ctx, db, c)
	}
	r, err := store.Receipt(ctx, db, id)
	if err != nil {
		return "", err
	}
	switch r.Status {
	case receipts.Succeeded:
		return explainSucceeded(ctx, db, r)
	case receipts.NotConfigured:
		return explainNotConfigured(r), nil
	}
	return explainFailed(r), nil
}

// explainQueued says what brought the call here, and what it waits for: its time, a worker, or its turn.
func explainQueued(ctx context.Context, db store.DB, c *call, journal []receipts.Event) (string, error) {
	before := ""
	if len(journal) > 0 {
		before = howItCameBack(journal[len(journal)-1])
	}
	if pause := c.RunAt.Sub(c.Now); pause > 0 {
		if before != "" {
			return fmt.Sprintf("%s The next attempt starts in %s, at %s.", before, span(pause), moment(c.RunAt)), nil
		}
		return fmt.Sprintf("It is queued to run not before %s, in %s, as its run_at says.", moment(c.RunAt), span(pause)), nil
	}

	workers, err := readWorkers(ctx, db)
	if err != nil {
		return "", err
	}
	if workers.alive == 0 {
		return strings.TrimSpace(before + " It is queued, and no worker is running that could take it" + workers.lastSign(c.Now) +
			". Start one: gem worker"), nil
	}
	if c.Losses >= 2 {
		return fmt.Sprintf("%s It is queued, and since it lost %d workers, which it may have killed, a worker takes it only while it runs no other such call.",
			before, c.Losses), nil
	}
	ahead, err := callsAhead(ctx, db, c)
	if err != nil {
		return "", err
	}
	place := "It is queued and next in line"
	if ahead == 1 {
		place = "It is queued behind 1 other call"
	} else if ahead > 1 {
		place = fmt.Sprintf("It is queued behind %d other calls", min(ahead, mostAhead))
		if ahead > mostAhead {
			place = fmt.Sprintf("It is queued behind more than %d other calls", mostAhead)
		}
	}
	busy := fmt.Sprintf("%d of the %s of %s %s busy", workers.running, count(workers.slots, "slot"), count(workers.alive, "worker"), areIs(workers.running))
	hint := ""
	if workers.running >= workers.slots {
		hint = " More slots (WORKER_CONCURRENCY) or more workers take calls sooner."
	} else if ahead == 0 {
		hint = " A worker is about to take it."
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s: %s.%s", before, place, busy, hint)), nil
}

func areIs(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// howItCameBack says why a call is in the queue again; nothing for one that was never claimed.
func howItCameBack(last receipts.Event) string {
	var data struct {
		Error      receipts.Error `json:"error"`
		LostWorker string         `json:"lost_worker"`
	}
	_ = json.Unmarshal(last.Data, &data) // what is not there stays empty
	switch last.Event {
	case "retried":
		return fmt.Sprintf("Attempt %d ended with an error that may pass: %s", last.Attempt, sentence(cut(data.Error.Message, 500)))
	case "lost":
		return fmt.Sprintf("Attempt %d lost its worker, %s, which died.", last.Attempt, data.LostWorker)
	case "released":
		return fmt.Sprintf("The worker of attempt %d stopped and handed it over.", last.Attempt)
	case "woken":
		return "The call with the same key, for which it waited, is out of the way."
	}
	return ""
}

// mostAhead is up to how many calls that come first are counted.
const mostAhead = 1000

// callsAhead counts the calls that are to be claimed before this one, up to one more than mostAhead.
func callsAhead(ctx context.Context, db store.DB, c *call) (n int, err error) {
	err = db.QueryRow(ctx, `
		select count(*) from (
			(select from public.core_tool_calls
			 where status = 'queued' and priority > $1 and run_at <= clock_timestamp() limit $4)
			union all
			(select from public.core_tool_calls
			 where status = 'queued' and priority = $1 and (run_at, seq) < ($2, $3) limit $4)
			limit $4
		) ahead`, c.Priority, c.RunAt, c.Seq, mostAhead+1).Scan(&n)
	return n, err
}

// workers is what core_workers says at a moment.
type workers struct {
	alive   int
	slots   int // of those alive
	running int // calls that they run
	last    string
	lastAt  *time.Time // the last heartbeat or stop of any
}

func readWorkers(ctx context.Context, db store.DB) (w workers, err error) {
	err = db.QueryRow(ctx, `
		with alive as (select worker_id, concurrency from public.core_workers where `+living+`)
		select (select count(*) from alive), (select coalesce(sum(concurrency), 0) from alive),
		       (select count(*) from public.core_tool_calls where status = 'running' and claimed_by in (select worker_id from alive))`).
		Scan(&w.alive, &w.slots, &w.running)
	if err != nil || w.alive > 0 {
		return w, err
	}
	err = db.QueryRow(ctx, `
		select worker_id, coalesce(stopped_at, heartbeat_at) from public.core_workers
		order by coalesce(stopped_at, heartbeat_at) desc limit 1`).Scan(&w.last, &w.lastAt)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return w, err
}

// lastSign says when the last worker was seen, as the end of a sentence.
func (w workers) lastSign(now time.Time) string {
	if w.lastAt == nil {
		return "; none was ever"
	}
	return fmt.Sprintf("; the last one, %s, was seen %s ago", w.last, span(now.Sub(*w.lastAt)))
}

func explainRunning(ctx context.Context, db store.DB, c *call) (string, error) {
	var (
		alive     bool
		silent    *float64
		timeoutMS *int64
	)
	// The timeout is that of the registry with which the worker runs.
	err := db.QueryRow(ctx, `
		select coalesce(`+living+`, false), extract(epoch from clock_timestamp() - heartbeat_at)::float8,
		       (select (tool ->> 'timeout_ms')::float8::bigint
		        from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') tool
		        where v.version = w.registry_version and tool ->> 'name' = $2 limit 1)
		from (select) one left join public.core_workers w on w.worker_id = $1`, c.ClaimedBy, c.Tool).Scan(&alive, &silent, &timeoutMS)
	if err != nil {
		return "", err
	}
	since := c.Now
	if c.ClaimedAt != nil {
		since = *c.ClaimedAt
	}
	said := fmt.Sprintf("It is running on %s since %s, %s ago, in attempt %d", c.ClaimedBy, moment(since), span(c.Now.Sub(since)), c.Attempt)
	if timeoutMS != nil {
		said += fmt.Sprintf("; its timeout is %s", span(time.Duration(*timeoutMS)*time.Millisecond))
	}
	if alive && c.Cancel {
		return said + ". Someone asked to cancel it, and its worker is about to end it.", nil
	}
	if alive {
		return said + ".", nil
	}
	workers, err := readWorkers(ctx, db)
	if err != nil {
		return "", err
	}
	quiet := "but nothing is known of that worker"
	if silent != nil {
		quiet = fmt.Sprintf("but that worker was last seen %s ago", span(time.Duration(*silent*float64(time.Second))))
	}
	if workers.alive == 0 {
		return fmt.Sprintf("%s, %s, and no other is running to take the call over. Start one: gem worker", said, quiet), nil
	}
	return fmt.Sprintf("%s, %s: another one takes the call over within seconds.", said, quiet), nil
}

func explainWaiting(ctx context.Context, db store.DB, c *call) (string, error) {
	var holder, worker string
	var since time.Time
	err := db.QueryRow(ctx, `
		select id::text, claimed_by, claimed_at from public.core_tool_calls
		where status = 'running' and computed_key = $1`, c.Key).Scan(&holder, &worker, &since)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Sprintf("It waits for its key, %s, which another call held that is no longer running: a worker takes it up within seconds.", c.Key), nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("It waits for call %s, which holds the same key, %s, and runs on %s since %s. "+
		"If that one succeeds, its result is repeated; if not, this one runs.", holder, c.Key, worker, moment(since)), nil
}

func explainSucceeded(ctx context.Context, db store.DB, r *receipts.Receipt) (string, error) {
	if r.ReplayOf != "" {
		var first string
		err := db.QueryRow(ctx, `select call_id::text from public.core_tool_receipts where id = $1`, r.ReplayOf).Scan(&first)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("It succeeded by repeating receipt %s of call %s, which had succeeded with the same key, %s: nothing ran again. The result: %s",
			r.ReplayOf, first, r.IdempotencyKey, cut(upshot(r), 300)), nil
	}
	took := ""
	if r.DurationMS > 0 {
		took = " in " + span(milliseconds(r.DurationMS))
	}
	return fmt.Sprintf("It succeeded%s, in attempt %d on %s. The result: %s", took, r.Attempt, r.WorkerID, cut(upshot(r), 300)), nil
}

func explainNotConfigured(r *receipts.Receipt) string {
	m := missingSetup(r)
	said := "The tool exists, and its setup is missing: " + sentence(cut(m.Reason, 1000))
	if len(m.RequiredEnv) > 0 {
		said += fmt.Sprintf(" Set %s for the worker, and make the call again.", strings.Join(m.RequiredEnv, ", "))
	} else if len(m.NextSteps) > 0 {
		for i, step := range m.NextSteps {
			m.NextSteps[i] = sentence(cut(step, 300))
		}
		said += " What to do: " + strings.Join(m.NextSteps, " ")
	}
	return said
}

// explainFailed says what the error code means and what to do about it. The codes are those of receipts.Code.
func explainFailed(r *receipts.Receipt) string {
	e, ok := r.Error()
	if !ok {
		return "It failed, and its receipt does not say why."
	}
	message, tool := sentence(cut(e.Message, 1000)), cut(r.ToolName, 200)
	switch e.Code {
	case receipts.UnknownTool:
		return fmt.Sprintf("The registry of the worker (version %s) has no tool %s. "+
			"Compare the name with `gem registry list`, or add the tool to the registry and start the workers anew; then make the call again.", r.RegistryVersion, tool)
	case receipts.ValidationError:
		return fmt.Sprintf("Its input does not fit what %s takes: %s. Correct that and make a new call.", tool, faults(e))
	case receipts.Timeout:
		return message + " It was ended there: make the call again, or raise the tool's timeout_ms in the registry if it needs more time."
	case receipts.Panic:
		return message + fmt.Sprintf(" That is a fault in the handler's code: the worker's log has the stack, under call_id %s.", r.CallID)
	case receipts.OutputInvalid:
		return fmt.Sprintf("The handler ran, and what it returned can not be a result: %s Correct the handler or the tool's output_schema.", orFaults(message, e))
	case receipts.OutcomeUnknown:
		return message + " The effects that are known of are on the receipt."
	case receipts.Cancelled:
		return message + " Make a new call if it is to run after all."
	case receipts.WorkerLost:
		return message + " What the workers' last log lines say tells why: most often the memory ran out. Make a new call when that is mended."
	case receipts.ExecutionError:
		return fmt.Sprintf("The handler of %s returned an error: %s If the input is at fault, correct it; then make a new call.", tool, message)
	}
	return fmt.Sprintf("The handler of %s failed with its own code %s: %s", tool, cut(string(e.Code), 100), message)
}

// faults lists what is wrong with each field, or the message where the details list nothing.
func faults(e receipts.Error) string {
	var list []struct{ Path, Message string }
	if json.Unmarshal(e.Details, &list) != nil || len(list) == 0 {
		return strings.TrimSuffix(cut(e.Message, 1000), ".")
	}
	const most = 10
	var said []string
	for i, f := range list {
		if i == most {
			said = append(said, fmt.Sprintf("and %d more", len(list)-most))
			break
		}
		said = append(said, strings.TrimPrefix(f.Path+": ", ": ")+strings.TrimSuffix(f.Message, "."))
	}
	return cut(strings.Join(said, "; "), 1000)
}

func orFaults(message string, e receipts.Error) string {
	without := strings.TrimSuffix(message, ".")
	if listed := faults(e); listed != without {
		return without + " (" + listed + ")."
	}
	return message
}
