package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// event is an entry of an archived journal.
type event struct {
	CallID   string    `json:"call_id"`
	Seq      int       `json:"seq"`
	At       string    `json:"at"`
	Event    string    `json:"event"`
	Attempt  int       `json:"attempt"`
	WorkerID *string   `json:"worker_id"`
	Data     eventData `json:"data"`
}

// eventData is what an event carries, as far as its replay needs it. A value that is not what it should be counts as
// missing.
type eventData struct {
	Status     *string
	ClaimedBy  *string
	RunAt      *string
	Priority   *string
	LostWorker *string
	Key        *string
	ReceiptID  *string
}

// UnmarshalJSON takes what is there.
func (d *eventData) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(data, &fields) // what is no object has none of the fields
	for name, field := range map[string]**string{"status": &d.Status, "claimed_by": &d.ClaimedBy, "run_at": &d.RunAt, "priority": &d.Priority,
		"lost_worker": &d.LostWorker, "key": &d.Key, "receipt_id": &d.ReceiptID} {
		*field = asText(fields[name])
	}
	return nil
}

// asText is what the operator ->> of Postgres gives.
func asText(raw json.RawMessage) *string {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return &text
}

// journal judges the journal of a call by the rules of sql/journal.sql: it must have no gaps before its order says
// anything, a legal order before it says who held the call, and all of that before it can be replayed.
func (l *line) journal() []fault {
	c, events := &l.Call, l.Events
	if len(events) == 0 {
		return faults("journal-gaps", "there is no journal, and the call counts %d events", c.Events)
	}
	for i, e := range events {
		if e.Seq != i+1 {
			return faults("journal-gaps", "event %d of the journal is numbered %d", i+1, e.Seq)
		}
	}
	if len(events) != c.Events {
		return faults("journal-gaps", "there are %d events, and the call counts %d", len(events), c.Events)
	}

	r, found := replay(events)
	if found != nil {
		return found
	}
	found = append(found, l.compare(r)...)
	if !r.imported || len(events) > 1 {
		last := events[len(events)-1]
		if isFinal(r.state) && l.Receipt != nil && (r.receipt == nil || *r.receipt != l.Receipt.ID || !sameTime(&last.At, &l.Receipt.CreatedAt)) {
			found = append(found, fault{"journal-receipt", fmt.Sprintf("the last event names the receipt %s of %s, and the call's is %s of %s",
				orNull(r.receipt), last.At, l.Receipt.ID, l.Receipt.CreatedAt)})
		}
	}
	return found
}

// replayed is what a journal says of its call.
type replayed struct {
	state       string
	attempt     int
	claimedBy   *string
	claimedAt   *string
	runAt       *string
	priority    *string
	retries     int
	losses      int
	cancelledAt *string
	key         *string
	receipt     *string
	imported    bool
}

// replay goes from event to event. A request to cancel changes no state, and an imported journal begins in the state in
// which the earlier GEM left the call.
func replay(events []event) (replayed, []fault) {
	var (
		r        replayed
		begun    bool
		cancels  int
		disorder []fault
		stranger []fault
	)
	holder, since := (*string)(nil), (*string)(nil)
	for i, e := range events {
		legal, held := false, false
		before := r.state
		if e.Event == "cancel_requested" {
			cancels++
			if r.cancelledAt == nil {
				r.cancelledAt = &events[i].At
			}
			running := i > 0 && events[i-1].Attempt == e.Attempt &&
				(events[i-1].Event == "claimed" || events[i-1].Event == "imported" && is(events[i-1].Data.Status, "running"))
			if disorder == nil && (!running || cancels > 1) {
				disorder = faults("journal-order", "event %d is cancel_requested, number %d, and the call was %s before", e.Seq, cancels, orNone(before))
			}
			if stranger == nil && e.WorkerID != nil {
				stranger = faults("journal-holder", "event %d is cancel_requested by %s", e.Seq, *e.WorkerID)
			}
			continue
		}

		ours, same := e.WorkerID != nil && is(holder, *e.WorkerID), begun && e.Attempt == r.attempt
		byHolder := same && (before == "running" && ours || before != "running" && e.WorkerID == nil)
		switch e.Event {
		case "queued":
			legal, held = !begun, e.Attempt == 0 && e.WorkerID == nil
			r.state, r.runAt, r.priority = "queued", e.Data.RunAt, e.Data.Priority
		case "imported":
			r.state, r.runAt, r.priority, r.imported = deref(e.Data.Status), e.Data.RunAt, e.Data.Priority, true
			legal = !begun && (r.state == "queued" || r.state == "running" || isFinal(r.state))
			held = e.WorkerID == nil && (r.state == "queued" && e.Attempt == 0 || r.state != "queued" && e.Attempt == 1)
		case "claimed":
			legal, held = begun && before == "queued", begun && e.Attempt == r.attempt+1 && e.WorkerID != nil
			r.state = "running"
		case "waiting":
			legal, held = begun && before == "running", byHolder
			r.state = "waiting"
		case "woken":
			legal, held = begun && before == "waiting", same && e.WorkerID != nil
			r.state = "queued"
		case "retried":
			legal, held = begun && before == "running", byHolder
			r.state, r.runAt = "queued", e.Data.RunAt
			r.retries++
		case "released":
			legal, held = begun && before == "running", byHolder
			r.state = "queued"
		case "lost":
			legal, held = begun && before == "running", same && e.WorkerID != nil && e.Data.LostWorker != nil && is(holder, *e.Data.LostWorker)
			r.state = "queued"
			r.losses++
		case "failed":
			legal, held = begun && (before == "running" || before == "queued" || before == "waiting"), byHolder
			r.state = e.Event
			if before != "running" && r.cancelledAt == nil {
				r.cancelledAt = &events[i].At // what ends a call that nobody runs is a request to cancel too
			}
		case "succeeded", "not_configured":
			legal, held = begun && before == "running", byHolder
			r.state = e.Event
		}
		if disorder == nil && !legal {
			disorder = faults("journal-order", "event %d is %s, and the call was %s before", e.Seq, e.Event, orNone(before))
		}
		if stranger == nil && !held {
			stranger = faults("journal-holder", "event %d is %s of attempt %d by %s, and the call was with attempt %d of %s", e.Seq, e.Event, e.Attempt,
				orNobody(e.WorkerID), r.attempt, orNobody(holder))
		}

		switch {
		case e.Event == "claimed":
			holder, since = e.WorkerID, &events[i].At
		case e.Event == "imported":
			holder, since = e.Data.ClaimedBy, nil
		case before != "running" || !isFinal(r.state):
			holder, since = nil, nil // an end leaves on the row who brought it
		}
		begun, r.attempt, r.claimedBy, r.claimedAt = true, e.Attempt, holder, since
		r.key, r.receipt = nil, e.Data.ReceiptID
		if e.Event == "waiting" {
			r.key = e.Data.Key
		}
	}
	if disorder != nil {
		return r, disorder
	}
	return r, stranger
}

// compare says where the row of the call differs from what its journal says.
func (l *line) compare(r replayed) []fault {
	c := &l.Call
	var all []string
	differs := func(column, row, journal string) {
		all = append(all, fmt.Sprintf("%s is %s, and %s by the journal", column, row, journal))
	}
	if c.Status != r.state {
		differs("status", c.Status, r.state)
	}
	if c.Attempt != r.attempt {
		differs("attempt", strconv.Itoa(c.Attempt), strconv.Itoa(r.attempt))
	}
	if deref(c.ClaimedBy) != deref(r.claimedBy) {
		differs("claimed_by", orNull(c.ClaimedBy), orNull(r.claimedBy))
	}
	// When an imported attempt was claimed is not in the journal.
	if !sameTime(c.ClaimedAt, r.claimedAt) && (!r.imported || r.attempt != 1 || r.claimedBy == nil) {
		differs("claimed_at", orNull(c.ClaimedAt), orNull(r.claimedAt))
	}
	if c.Retries != r.retries {
		differs("retries", strconv.Itoa(c.Retries), strconv.Itoa(r.retries))
	}
	if c.Losses != r.losses {
		differs("losses", strconv.Itoa(c.Losses), strconv.Itoa(r.losses))
	}
	if !sameTime(c.RunAt, r.runAt) {
		differs("run_at", orNull(c.RunAt), orNull(r.runAt))
	}
	if deref(r.priority) != strconv.Itoa(c.Priority) {
		differs("priority", strconv.Itoa(c.Priority), orNull(r.priority))
	}
	if !sameTime(c.CancelRequestedAt, r.cancelledAt) {
		differs("cancel_requested_at", orNull(c.CancelRequestedAt), orNull(r.cancelledAt))
	}
	// A running call holds its key without an event.
	if (r.state == "queued" || r.state == "waiting") && deref(c.ComputedKey) != deref(r.key) {
		differs("computed_key", orNull(c.ComputedKey), orNull(r.key))
	}
	if len(all) == 0 {
		return nil
	}
	return faults("journal-replay", "%s", strings.Join(all, "; "))
}

func isFinal(status string) bool {
	return status == "succeeded" || status == "failed" || status == "not_configured"
}

func is(s *string, value string) bool { return s != nil && *s == value }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func orNull(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func orNobody(s *string) string {
	if s == nil {
		return "nobody"
	}
	return *s
}

func orNone(state string) string {
	if state == "" {
		return "not there"
	}
	return state
}

// sameTime compares times as JSON has them, whatever their zones.
func sameTime(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	if *a == *b {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, *a)
	if err != nil {
		return false
	}
	bt, err := time.Parse(time.RFC3339Nano, *b)
	return err == nil && at.Equal(bt)
}
