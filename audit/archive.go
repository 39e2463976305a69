package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"time"

	"github.com/gemworker/gem/receipts"
)

// line is a line of an archive: a finished call with all that belonged to it, as gem.prune wrote it.
type line struct {
	Version int      `json:"gem_archive"`
	Call    call     `json:"call"`
	Receipt *receipt `json:"receipt"`
	Events  []event  `json:"events"`
}

// call is an archived row of core_tool_calls.
type call struct {
	ID                string                     `json:"id"`
	ToolName          *string                    `json:"tool_name"`
	Input             map[string]json.RawMessage `json:"-"`
	RawInput          json.RawMessage            `json:"input"`
	Status            string                     `json:"status"`
	IdempotencyKey    *string                    `json:"idempotency_key"`
	CreatedBy         *string                    `json:"created_by"`
	Priority          int                        `json:"priority"`
	RunAt             *string                    `json:"run_at"`
	Attempt           int                        `json:"attempt"`
	ClaimedBy         *string                    `json:"claimed_by"`
	ClaimedAt         *string                    `json:"claimed_at"`
	Error             json.RawMessage            `json:"error"`
	CancelRequestedAt *string                    `json:"cancel_requested_at"`
	ComputedKey       *string                    `json:"computed_key"`
	Retries           int                        `json:"retries"`
	Losses            int                        `json:"losses"`
	Events            int                        `json:"events"`
}

// receipt is an archived row of core_tool_receipts.
type receipt struct {
	ID             string          `json:"id"`
	CallID         string          `json:"call_id"`
	ToolName       string          `json:"tool_name"`
	Status         string          `json:"status"`
	Result         json.RawMessage `json:"result"`
	Effects        json.RawMessage `json:"effects"`
	CreatedAt      string          `json:"created_at"`
	Attempt        int             `json:"attempt"`
	WorkerID       *string         `json:"worker_id"`
	IdempotencyKey *string         `json:"idempotency_key"`
	ReplayOf       *string         `json:"replay_of"`
}

// fault is what breaks a rule.
type fault struct{ check, what string }

func faults(check, format string, args ...any) []fault {
	return []fault{{check, fmt.Sprintf(format, args...)}}
}

// Archive checks an archive of pruned calls by the rules that a database is checked by, as far as they concern one call,
// or a hit and its source where both stand in the archive. It reads from the beginning to the end, and keeps a few bytes of
// each call.
func Archive(ctx context.Context, r io.Reader, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	a := archive{options: &o, began: time.Now(), sizes: map[string]int64{}, results: map[string]*Result{},
		seen: map[[16]byte]uint64{}, hits: map[string][]hit{}, seed: maphash.MakeSeed()}
	in := bufio.NewReaderSize(r, 1<<20)
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			a.read(number, text)
		case !errors.Is(err, io.EOF):
			return nil, err
		case len(text) > 0:
			a.sizes["lines"]++
			a.found(fmt.Sprintf("line %d", number), fault{"archive-torn", fmt.Sprintf("the line ends after %d bytes, and without a line break", len(text))})
			return a.report(), nil
		default:
			return a.report(), nil
		}
	}
}

// archive is the state of reading one.
type archive struct {
	options *Options
	began   time.Time
	sizes   map[string]int64
	results map[string]*Result
	seen    map[[16]byte]uint64 // the calls so far, and the hash of each line
	seed    maphash.Seed
	hits    map[string][]hit // by the receipt that they repeat, which comes after them
}

// hit is a call, and what the receipt that it repeats must be like.
type hit struct {
	call, tool, key string
	result          uint64 // a hash
}

func (a *archive) found(id string, all ...fault) {
	for _, f := range all {
		r := a.results[f.check]
		if r == nil {
			r = &Result{}
			a.results[f.check] = r
		}
		r.Found++
		if len(r.Examples) < a.options.Examples {
			r.Examples = append(r.Examples, Finding{id, f.what})
		}
	}
}

func (a *archive) report() *Report {
	var report Report
	for _, c := range Checks {
		// What depends on other rows than a call's own can not be seen here.
		switch c.file {
		case "guards.sql", "effects.sql", "queue.sql":
			continue
		}
		switch c.Name {
		case "receipt-second", "key-once", "key-running":
			continue
		}
		if a.options.skips(c.Name) {
			continue
		}
		result := Result{}
		if r := a.results[c.Name]; r != nil {
			result = *r
		}
		result.Check, result.Remark, result.Of, result.LookedAt = c.Name, c.Remark, c.of, a.sizes[c.of]
		report.add(a.options, result)
	}
	return report.end(a.began)
}

// read judges a line.
func (a *archive) read(number int, text []byte) {
	a.sizes["lines"]++
	var l line
	err := json.Unmarshal(text, &l)
	id, isID := parseID(l.Call.ID)
	if err != nil || l.Version != 1 || !isID {
		why := "it is no line of an archive"
		if err != nil {
			why = err.Error()
		}
		a.found(fmt.Sprintf("line %d", number), fault{"archive-line", why})
		return
	}
	hash := maphash.Bytes(a.seed, text)
	if before, twice := a.seen[id]; twice {
		if before == hash {
			a.found(l.Call.ID, fault{"archive-repeated", fmt.Sprintf("line %d repeats the call", number)})
		} else {
			a.found(l.Call.ID, fault{"archive-differs", fmt.Sprintf("line %d has the call once more, and not as it was", number)})
		}
		return
	}
	a.seen[id] = hash
	a.sizes["calls"]++
	a.sizes["finished calls"]++
	a.sizes["events"] += int64(len(l.Events))
	_ = json.Unmarshal(l.Call.RawInput, &l.Call.Input) // the input of an earlier GEM may be anything

	a.found(l.Call.ID, l.journal()...)
	for _, e := range l.Events {
		if e.CallID != l.Call.ID {
			a.found(l.Call.ID, faults("journal-orphan", "event %d is of the call %s", e.Seq, e.CallID)...)
			break
		}
	}
	switch {
	case !isFinal(l.Call.Status):
		a.found(l.Call.ID, faults("receipt-early", "the call is %s, and was archived", l.Call.Status)...)
	case l.Receipt == nil:
		a.found(l.Call.ID, faults("receipt-missing", "the call is %s, and has no receipt", l.Call.Status)...)
	}
	if l.Receipt == nil {
		return
	}
	a.sizes["receipts"]++
	a.found(l.Call.ID, l.receipt()...)
	a.key(&l)
}

// receipt judges the receipt of a call by the rules of sql/receipts.sql and sql/keys.sql.
func (l *line) receipt() (all []fault) {
	c, r := &l.Call, l.Receipt
	say := func(check, format string, args ...any) { all = append(all, faults(check, format, args...)...) }
	if r.CallID != c.ID {
		say("receipt-orphan", "the receipt %s is of the call %s", r.ID, r.CallID)
	}
	if r.Status != c.Status {
		say("receipt-status", "the call is %s, and its receipt is %s", c.Status, r.Status)
	}
	if l.imported() {
		return all
	}
	var failed struct {
		Error json.RawMessage `json:"error"`
	}
	if r.Status == "failed" {
		_ = json.Unmarshal(r.Result, &failed) // what is not there stays empty
	}
	if r.Status == c.Status && !sameJSON(c.Error, failed.Error) {
		say("receipt-error", "the call's error is %s, and its receipt's is %s", brief(c.Error), brief(failed.Error))
	}
	if c.Attempt != r.Attempt || deref(c.ToolName) != r.ToolName || orNull(c.ClaimedBy) != orNull(r.WorkerID) {
		say("receipt-attempt", "the call is attempt %d of %s by %s, and its receipt is attempt %d of %s by %s", c.Attempt, deref(c.ToolName),
			orNobody(c.ClaimedBy), r.Attempt, r.ToolName, orNobody(r.WorkerID))
	}
	if !r.hasForm() {
		say("receipt-result", "the result of its receipt, %s, is %s", r.Status, brief(r.Result))
	}
	did := r.readEffects()
	if !did.wellFormed {
		say("effects-form", "the effects of its receipt are %s", brief(r.Effects))
	}
	if did.hit != (r.ReplayOf != nil) || did.hit && !did.nothingElse {
		say("hit-effects", "its receipt repeats %s, and its effects are %s", orNone(deref(r.ReplayOf)), brief(r.Effects))
	}
	if computed, right := l.computeKey(did); !right {
		say("key-computed", "its receipt has the key %s, and the call has %s, and should have %s", orNull(r.IdempotencyKey), orNull(c.ComputedKey), orNone(computed))
	}
	return all
}

// imported says that the call ended in an earlier GEM, which kept its receipt by rules of its own.
func (l *line) imported() bool { return l.Call.Events == 1 && isFinal(l.Call.Status) }

func (r *receipt) hasForm() bool {
	var result map[string]json.RawMessage
	_ = json.Unmarshal(r.Result, &result) // what is no object has none of the fields
	switch r.Status {
	case "succeeded":
		return len(r.Result) > 0
	case "failed":
		var e map[string]json.RawMessage
		_ = json.Unmarshal(result["error"], &e)
		return asText(e["error_code"]) != nil && asText(e["message"]) != nil
	case "not_configured":
		return is(asText(result["status"]), "not_configured") && asText(result["reason"]) != nil
	}
	return false
}

// effects is what is looked at of a receipt's effects.
type effects struct {
	wellFormed  bool
	mode, field string // of the tool's idempotency
	hit         bool
	nothingElse bool // beside the idempotency
}

func (r *receipt) readEffects() effects {
	var fields, idempotency map[string]json.RawMessage
	_ = json.Unmarshal(r.Effects, &fields) // what is no object has none of the fields
	did := effects{wellFormed: fields != nil, nothingElse: len(fields) == 1}
	for _, name := range []string{"db_writes", "db_reads", "messages_sent", "files_written", "external_calls"} {
		if list, there := fields[name]; there && !bytes.HasPrefix(bytes.TrimSpace(list), []byte("[")) {
			did.wellFormed = false
		}
	}
	if raw, there := fields["idempotency"]; there {
		_ = json.Unmarshal(raw, &idempotency)
		did.wellFormed = did.wellFormed && idempotency != nil
		did.mode, did.field, did.hit = deref(asText(idempotency["mode"])), deref(asText(idempotency["key_field"])), is(asText(idempotency["hit"]), "true")
	}
	return did
}

// computeKey returns the key that the call should have held, and whether the receipt's is right.
func (l *line) computeKey(did effects) (computed string, right bool) {
	c, r := &l.Call, l.Receipt
	key, present := deref(r.IdempotencyKey), r.IdempotencyKey != nil
	if orNull(r.IdempotencyKey) != orNull(c.ComputedKey) {
		return "", false
	}
	switch did.mode {
	case "keyed":
		computed, _ = receipts.Key(r.ToolName, did.field, c.Input[did.field])
		// A keyed tool that succeeded had its key.
		return computed, present && key == computed || !present && r.Status != "succeeded"
	case "safe-retry":
		if client := deref(c.IdempotencyKey); client != "" {
			computed = receipts.ClientKey(r.ToolName, deref(c.CreatedBy), client)
		}
		return computed, key == computed || !present && r.Status != "succeeded"
	}
	return "", true
}

// key holds a hit against the receipt that it repeats: the archive has it after the hit, or not at all.
func (a *archive) key(l *line) {
	r := l.Receipt
	what := hit{l.Call.ID, r.ToolName, deref(r.IdempotencyKey), maphash.String(a.seed, canonical(r.Result))}
	if r.ReplayOf != nil {
		a.hits[*r.ReplayOf] = append(a.hits[*r.ReplayOf], what)
		return
	}
	for _, h := range a.hits[r.ID] {
		what.call = h.call
		a.sizes["hits"]++
		if r.Status != "succeeded" || h != what {
			a.found(h.call, faults("hit-source", "its receipt repeats the receipt %s, which is %s, of %s, with the key %s and the result %s",
				r.ID, r.Status, r.ToolName, orNull(r.IdempotencyKey), brief(r.Result))...)
		}
	}
	delete(a.hits, r.ID)
}

func parseID(text string) (id [16]byte, ok bool) {
	n, err := hex.Decode(id[:], []byte(strings.ReplaceAll(text, "-", "")))
	return id, len(text) == 36 && n == len(id) && err == nil
}

// canonical writes JSON so that equal values are equal texts.
func canonical(raw json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return string(raw)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(out)
}

// sameJSON compares values; null is the same as none.
func sameJSON(a, b json.RawMessage) bool {
	if len(a) == 0 {
		a = json.RawMessage("null")
	}
	if len(b) == 0 {
		b = json.RawMessage("null")
	}
	return bytes.Equal(a, b) || canonical(a) == canonical(b)
}

func brief(raw json.RawMessage) string {
	s := strings.ToValidUTF8(string(raw), "")
	if len(raw) == 0 {
		s = "null"
	}
	if len(s) > 150 {
		s = strings.ToValidUTF8(s[:150], "") + "…"
	}
	return s
}
