package prose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// Explanation describes the state of a call, the reason, and what to do.
func Explanation(e *client.Explanation) string {
	said := explanation(e)
	if e.Receipt == nil && e.Call.Status != "running" && !e.CancelAt.IsZero() {
		said += requestedEnd(e)
	}
	if e.AgainOf != "" {
		said = fmt.Sprintf("%s repeated the call %s with this one%s. %s", Person(e.Again), e.AgainOf, Because(e.Again),
			said)
	}
	return said
}

// requestedEnd reports that the cancellation of a call without a worker was requested, and how long its handler may
// clean up.
func requestedEnd(e *client.Explanation) string {
	return fmt.Sprintf(" Its cancellation was requested at %s by %s%s. Its handler may clean up until %s. To end it "+
		"without "+
		"that: gem cancel %s",
		Moment(e.CancelAt), Person(e.Cancel), Because(e.Cancel), Moment(e.CancelAt.Add(time.Hour)), e.Call.ID)
}

func explanation(e *client.Explanation) string {
	c := &e.Call
	switch {
	case e.Receipt != nil:
		return explainEnded(e)
	case c.Status == "running":
		return explainRunning(e)
	case e.WaitsFor == client.ForCode:
		said := "It waits for a program that can continue it: " + Sentence(Cut(Printable(e.Misfit.Message), 500))
		if e.Misfit.Name != "" {
			said += fmt.Sprintf(" That is the name %q in its journal.", e.Misfit.Name)
		}
		return said + fmt.Sprintf(" Start workers of a program that fits: docs/durable.md explains how code may change. "+
			"GEM tries again at %s, "+
			"when a worker starts, and after gem resume %s.", Moment(c.WakeAt), c.ID)
	case e.WaitsFor == client.ForPlace:
		said := fmt.Sprintf("It waits for a place: the rule %s lets %d of these calls run at the same time. Calls that "+
			"asked before it go first.", e.Place.Rule, e.Place.Max)
		if !c.WakeAt.IsZero() {
			said += fmt.Sprintf(" If it gets none by %s, it ends with %s.", Moment(c.WakeAt), receipts.LimitReached)
		}
		return said
	case e.WaitsFor == client.ForApproval:
		return explainApprovals(e)
	case e.WaitsFor == client.ForAnswer:
		return explainQuestion(e)
	case e.WaitsFor == client.ForCalls || c.Status == "waiting" && e.WaitsFor == client.ForTime:
		return explainParked(e)
	case c.Status == "waiting" && e.KeyHolder == nil:
		return fmt.Sprintf("It waits for its key, %s, whose holder no longer runs: a worker claims it within seconds.", c.Key)
	case c.Status == "waiting":
		h := e.KeyHolder
		if h.Status != "running" {
			return fmt.Sprintf("It waits for call %s, which holds the same key, %s, and is %s. If that call succeeds, its "+
				"result is repeated; "+
				"otherwise this one runs.", h.ID, c.Key, h.Status)
		}
		return fmt.Sprintf("It waits for call %s, which holds the same key, %s, and has been running on %s since %s. "+
			"If that call succeeds, its result is repeated; otherwise this one runs.", h.ID, c.Key, h.WorkerID,
			Moment(h.ClaimedAt))
	}
	return strings.TrimSpace(cameBack(e) + " " + explainQueued(e))
}

// explainParked explains what a durable handler waits for.
func explainParked(e *client.Explanation) string {
	c := &e.Call
	at := ""
	if !c.WakeAt.IsZero() {
		at = fmt.Sprintf(" It continues at %s, in %s.", Moment(c.WakeAt), Span(c.WakeAt.Sub(e.At)))
	}
	if e.WaitsFor == client.ForTime {
		return "Its handler sleeps." + at
	}
	open := make([]string, 0, len(e.Children))
	for _, child := range e.Children {
		open = append(open, fmt.Sprintf("%s %s (%s)", Cut(child.Tool, 200), child.ID, child.Status))
	}
	said := "Its handler waits for calls that it made"
	if len(open) == client.MaxChildren {
		open = append(open, "and maybe others")
	}
	if len(open) > 0 {
		said += ". These have not ended: " + strings.Join(open, ", ")
	}
	said += "."
	if len(e.Asked) > 0 && !slices.ContainsFunc(e.Children, func(c client.Call) bool { return !IsQuestion(c.Tool) }) {
		said = "" // its questions say it
	}
	for _, q := range e.Asked {
		said = strings.TrimSpace(said + " " + Sentence(AskedFor(q, "")))
	}
	if at != "" {
		at = strings.Replace(at, "It continues at", "If they take too long, it is woken at", 1)
	}
	return said + at
}

// explainQuestion describes the question, and how to answer it.
func explainQuestion(e *client.Explanation) string {
	c := &e.Call
	said, give := "It waits for an answer: gem answer "+c.ID+" VALUE", "answer it"
	if len(e.Answers) > 0 && e.Answers[0] != "answer" {
		said += " --name " + Argument(e.Answers[0])
	}
	if c.Tool == "wait.approval" {
		said, give = fmt.Sprintf("It waits for a decision: gem approve %s, or gem deny %[1]s", c.ID), "decide"
	}
	var asks struct {
		Text  string
		Tool  string
		Input json.RawMessage
		By    []string
		Until time.Time
	}
	parts := []string{said}
	if IsQuestion(c.Tool) && json.Unmarshal(c.Input, &asks) == nil {
		parts = append(parts, Asker(e.AskedFor, c.CreatedBy, e.AskedInside))
		if asks.Text != "" {
			parts = append(parts, "It asks "+Said(asks.Text, 300))
		}
		if c.Tool == "wait.approval" {
			parts = append(parts, "It is about "+oneline.Value(asks.Tool)+" with "+Cut(Printable(string(asks.Input)), 300))
		}
		if len(asks.By) > 0 {
			parts = append(parts, "Only "+Answerers(asks.By)+" may "+give)
		}
	}
	if !asks.Until.IsZero() {
		parts = append(parts, "It expires at "+Moment(asks.Until))
	}
	for i := range parts {
		parts[i] = Sentence(parts[i])
	}
	return strings.Join(parts, " ")
}

// cameBack explains why a call is in the queue again.
func cameBack(explained *client.Explanation) string {
	e := explained.CameBack
	if e == nil {
		return ""
	}
	switch data := DataOf(*e); e.Event {
	case "delayed":
		return delayedBy(explained)
	case "retried":
		said := fmt.Sprintf("Attempt %d ended with a transient error: %s", e.Attempt, Sentence(Cut(data.Error.Message, 500)))
		return strings.TrimSpace(said + " " + causeOf(data.Error.Message))
	case "lost":
		return fmt.Sprintf("Attempt %d lost its worker, %s, which died.", e.Attempt, data.LostWorker)
	case "released":
		if tool, ok := strings.CutPrefix(data.Needs, "tool "); ok {
			return fmt.Sprintf("The worker of attempt %d does not have %s, and left the call to one that does.", e.Attempt,
				Cut(tool, 200))
		}
		return fmt.Sprintf("The worker of attempt %d stopped and handed it over.", e.Attempt)
	case "woken":
		return "It was woken."
	}
	return ""
}

func explainQueued(e *client.Explanation) string {
	c, w := &e.Call, e.Workers
	switch e.WaitsFor {
	case client.ForTime, client.ForLimit:
		if e.ClockBack > 0 {
			return fmt.Sprintf("It is scheduled for %s. Postgres's clock was set back by %s, and has not caught up.",
				Moment(c.RunAt), Span(e.ClockBack))
		}
		pause := Span(c.RunAt.Sub(e.At))
		if e.WaitsFor == client.ForLimit {
			return fmt.Sprintf("It runs in %s, at %s.", pause, Moment(c.RunAt))
		}
		if e.CameBack != nil {
			return fmt.Sprintf("The next attempt is scheduled: it starts in %s, at %s.", pause, Moment(c.RunAt))
		}
		return fmt.Sprintf("It is scheduled to run no earlier than %s, in %s, by its run_at.", Moment(c.RunAt), pause)
	case client.ForWorker:
		last := "no worker has ever connected"
		if w.Last != "" {
			last = fmt.Sprintf("the last one, %s, was seen %s ago", w.Last, Span(e.At.Sub(w.LastAt)))
		}
		return fmt.Sprintf("It is queued, and no worker is running that could claim it; %s. Start one: gem worker", last)
	case client.ForCapability:
		tool := strings.TrimPrefix(c.Needs, "tool ")
		return fmt.Sprintf("It is queued for a worker whose registry has %s, and none is alive. Start the program that has "+
			"it, or cancel the call: gem cancel %s. After some minutes without one, any worker ends it.",
			Cut(tool, 200), c.ID)
	case client.ForIdleWorker:
		return fmt.Sprintf("It is queued. It has lost %d workers and may have killed them, "+
			"so a worker claims it only while running no other such call.", c.Kills)
	}

	place := "next in line"
	switch {
	case e.Ahead > client.MaxAhead:
		place = fmt.Sprintf("behind more than %d other calls", client.MaxAhead)
	case e.Ahead > 0:
		place = "behind " + Count(e.Ahead, "other call")
	}
	verb := "are"
	if w.Running == 1 {
		verb = "is"
	}
	said := fmt.Sprintf("It is queued %s: %d of the %s of %s %s busy.",
		place, w.Running, Count(w.Slots, "slot"), Count(w.Alive, "worker"), verb)
	switch {
	case w.Running >= w.Slots:
		return said + " More slots (WORKER_CONCURRENCY) or more workers claim calls sooner."
	case e.Ahead == 0:
		return said + " A worker will claim it soon."
	}
	return said
}

func explainRunning(e *client.Explanation) string {
	c := &e.Call
	said := fmt.Sprintf("It has been running on %s since %s, for %s, in attempt %d",
		c.WorkerID, Moment(c.ClaimedAt), Span(e.At.Sub(c.ClaimedAt)), c.Attempt)
	if e.Timeout > 0 {
		said += "; its timeout is " + Span(e.Timeout)
	}
	if e.WaitsFor == client.ForHandler {
		if c.CancelRequested {
			return said + "; " + Person(e.Cancel) + " asked to cancel it" + Because(e.Cancel) +
				", and its worker will end it soon."
		}
		if e.Timeout > 0 && e.At.Sub(c.ClaimedAt) > e.Timeout+time.Minute {
			return said + ". That time is over: its worker knows how it ended, and keeps trying to write the receipt. The " +
				"worker's log says why it cannot."
		}
		return said + "."
	}
	silent := "but the database does not know that worker"
	if e.Worker != nil {
		silent = fmt.Sprintf("but that worker was last seen %s ago", Span(e.Worker.Silent))
	}
	if e.WaitsFor == client.ForWorker {
		return fmt.Sprintf("%s, %s, and no other is running to take the call over. Start one: gem worker", said, silent)
	}
	return fmt.Sprintf("%s, %s: another one takes the call over within seconds.", said, silent)
}

func explainEnded(e *client.Explanation) string {
	r := e.Receipt
	switch r.Status {
	case receipts.Failed:
		return explainFailed(e)
	case receipts.NotConfigured:
		return explainNotConfigured(r)
	}
	var effects receipts.Effects
	_ = json.Unmarshal(r.Effects, &effects) // an imported receipt may have another form
	key := effects.Idempotency
	if r.ReplayOf != "" {
		differs := ""
		if key.InputDiffers {
			differs = " The input of that call was different."
		}
		return fmt.Sprintf("It succeeded by repeating receipt %s of call %s, which had succeeded with the same key, %s: "+
			"nothing ran again.%s%s",
			r.ReplayOf, e.RepeatedCall, r.IdempotencyKey, differs, theResult(r))
	}
	took, ignored, run := "", "", "attempt"
	if key.KeyIgnored {
		ignored = " Its idempotency_key was ignored, since the tool's mode is " + key.Mode + "."
	}
	if effects.Durable != nil {
		took, run = " "+Span(r.CreatedAt.Sub(e.Call.CreatedAt))+" after it was made", "run"
	} else if r.DurationMS > 0 {
		took = " in " + Span(Milliseconds(r.DurationMS))
	}
	if r.Attempt > 1 && e.Call.Retries+e.Call.Losses == 0 { // the call waited
		run = "run"
	}
	if said := decided(e); said != "" {
		return said
	}
	if r.Attempt == 0 && IsQuestion(r.ToolName) { // no worker claimed it
		return fmt.Sprintf("It was answered %s after it was made.%s", Span(r.CreatedAt.Sub(e.Call.CreatedAt)), theResult(r))
	}
	return fmt.Sprintf("It succeeded%s, in %s %d on %s.%s%s%s",
		took, run, r.Attempt, r.WorkerID, ignored, warned(effects.Rules), theResult(r))
}

// theResult returns a sentence about the result, if it was read: not everyone may see it.
func theResult(r *receipts.Receipt) string {
	if r.Result == nil {
		return ""
	}
	return " The result: " + Cut(Upshot(r), 300)
}

func explainNotConfigured(r *receipts.Receipt) string {
	m := MissingSetup(r)
	said := "The tool exists, but its setup is missing: " + Sentence(Cut(m.Reason, 1000))
	if len(m.RequiredEnv) > 0 {
		return said + fmt.Sprintf(" Set %s for the worker, and repeat the call.", strings.Join(m.RequiredEnv, ", "))
	}
	if len(m.NextSteps) > 0 {
		said += " Next steps:"
	}
	for _, step := range m.NextSteps {
		said += " " + Sentence(Cut(step, 300))
	}
	return said
}

func explainFailed(explained *client.Explanation) string {
	r := explained.Receipt
	e, ok := r.Error()
	if !ok {
		return "It failed, and its receipt gives no reason."
	}
	message, tool := Sentence(Cut(e.Message, 1000)), Cut(r.ToolName, 200)
	if (e.Code == receipts.UnknownTool || e.Code == receipts.ValidationError) && durable(r) { // its handler ran
		return fmt.Sprintf("A call that the handler of %s made failed with %s: %s `gem trace %s` shows it.", tool, e.Code,
			message, r.CallID)
	}
	switch e.Code {
	case receipts.UnknownTool:
		if _, own := registry.Own().Tool(tool); own {
			return fmt.Sprintf(`The registry of the worker (version %s) has no tool %s, which comes with GEM: add %[2]q to `+
				`"include" in the registry, and restart the workers; then repeat the call.`, r.RegistryVersion, tool)
		}
		return fmt.Sprintf("The registry of the worker (version %s) has no tool %s%s Compare the name with `gem registry "+
			"list`, "+
			"or add the tool to the registry and restart the workers; then repeat the call.", r.RegistryVersion, tool,
			suggestion(e.Message))
	case receipts.ValidationError:
		return fmt.Sprintf("Its input does not fit the schema of %s: %s. Correct it and make a new call.", tool, faults(e))
	case receipts.Timeout:
		if strings.Contains(string(e.Details), "deadline_ms") {
			return message + " Repeat the call, or raise the tool's deadline_ms in the registry if it needs more time."
		}
		return message + " Repeat the call, or raise the tool's timeout_ms in the registry if it needs more time."
	case receipts.Panic:
		return message + fmt.Sprintf(" That is a fault in the handler's code: the worker's log has the stack, under "+
			"call_id %s.", r.CallID)
	case receipts.OutputInvalid:
		if listed := faults(e); listed != strings.TrimSuffix(message, ".") {
			message = fmt.Sprintf("%s (%s).", strings.TrimSuffix(message, "."), listed)
		}
		return fmt.Sprintf("The handler ran, but its output cannot be a result: %s Correct the handler or the tool's "+
			"output_schema.", message)
	case receipts.OutcomeUnknown:
		return message + " The known effects are on the receipt."
	case receipts.Cancelled:
		if explained.Cancel.By != "" {
			message = fmt.Sprintf("Cancelled by %s%s. %s", Person(explained.Cancel), Because(explained.Cancel), message)
		}
		return message + " Make a new call if it should run after all."
	case receipts.JournalFull, receipts.KeyDeadlock, receipts.NotAllowed:
		return message
	case receipts.RuleBlocked, receipts.LimitReached, receipts.ApprovalDenied, receipts.ApprovalExpired,
		receipts.RuleError:
		return explainRuled(explained, e, message)
	case receipts.KeyReused:
		return message + " The earlier receipt is in the details."
	case receipts.WorkerLost:
		return message + " The last log lines of those workers show why: most often they ran out of memory. Make a new " +
			"call when that is solved."
	case receipts.ExecutionError:
		return fmt.Sprintf("The handler of %s returned an error: %s %s", tool, message, whatNext(r, e))
	}
	said := fmt.Sprintf("The handler of %s failed with its own code %s: %s %s", tool, Cut(string(e.Code), 100), message,
		whatNext(r, e))
	return strings.TrimSpace(said)
}

// suggestion returns the part of a message that suggests another tool, or else a full stop.
func suggestion(message string) string {
	if _, after, has := strings.Cut(message, ": did you mean "); has {
		name, _, _ := strings.Cut(after, "?")
		return ": did you mean " + Cut(name, 200) + "?"
	}
	return "."
}

// faults lists the faults of each field, or returns the message if the details list none.
func faults(e receipts.Error) string {
	var list []struct{ Path, Message string }
	if json.Unmarshal(e.Details, &list) != nil || len(list) == 0 {
		return strings.TrimSuffix(Cut(e.Message, 1000), ".")
	}
	var said []string
	for _, f := range list {
		said = append(said, strings.TrimPrefix(f.Path+": ", ": ")+strings.TrimSuffix(f.Message, "."))
	}
	return Cut(strings.Join(said, "; "), 1000)
}
