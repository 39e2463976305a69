// Package registry loads tools.registry.json, the only source of truth for the tools' names, schemas and idempotency.
//
// [Parse] adds the entries of GEM's own tools that a file includes, and reports every defect of it at once. The [Registry]
// that it returns is compiled and never changes; many goroutines can use its tools to validate inputs and outputs. The
// package uses no database.
package registry

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/schema"
)

// Registry is a valid registry file together with the entries that it includes.
type Registry struct {
	// Version names the contents: other contents need another version. See [CheckUpgrade]. If the file includes
	// entries, it is the file's version, a plus sign, and the first eight hexadecimal digits of the sha256 of these
	// entries, before the file's overrides.
	Version string
	// FileVersion is the version that the file has.
	FileVersion string

	doc   map[string]any // resolved
	named map[string]any // without the tools that Version does not cover
	json  []byte         // of doc
	tools []*Tool
	own   catalog

	byName, byFlatName map[string]*Tool
}

// Tool is an entry of the registry. Callers must not change its fields.
type Tool struct {
	// Name has the form domain.method, such as leads.create, and at most 64 characters.
	Name string
	// Description tells an agent what the tool is for; it may be empty.
	Description string
	// InputSchema and OutputSchema are JSON Schemas in canonical form (sorted keys, no white space): an object, or true or
	// false. Their draft is 2020-12 unless $schema names another: 2019-09, 07, 06 or 04.
	InputSchema, OutputSchema json.RawMessage
	// Permissions have the form verb:object, such as read:db and send:sms; there may be none.
	Permissions []string
	// Frontends reports whether signed-in users may call the tool. Where the file does not say, they may if the tool needs no
	// permission but read:db and write:db.
	Frontends   bool
	Idempotency Idempotency
	// Calls are the tools that its handler may call, if it is durable: names, and domains as in leads.*; none by default.
	Calls []string
	// Timeout ends a run of the tool: 1 ms to 24 h.
	Timeout time.Duration
	// Deadline ends a call whose handler is durable, so long after its insert, whatever it waits for: 1 ms to 366 days, 30 days by default.
	Deadline time.Duration
	// ReceiptFields are the paths that a reader of a receipt looks at first, such as result.lead_id; there may be none.
	ReceiptFields []string
	Hints         Hints
	// Included reports whether the entry comes with GEM, and not from the file.
	Included bool

	input, output *schema.Schema
	entry         map[string]any // as it stands in the file
}

// JSON returns the tool's entry in canonical form.
func (t *Tool) JSON() []byte { return schema.Canonical(t.entry) }

// ClosedBecause says why signed-in users may not call the tool, as in "needs the permission send:sms". It is empty for a tool
// that they may call.
func (t *Tool) ClosedBecause() string {
	_, stated := t.entry["frontends"]
	switch {
	case t.Frontends:
		return ""
	case stated:
		return `has "frontends": false in the registry`
	}
	beyond := slices.DeleteFunc(slices.Clone(t.Permissions), ofDatabase)
	return "needs the permission " + strings.Join(beyond, " and ")
}

// Durable names the fields of the entry that are for durable handlers only: calls and deadline_ms, if it has them.
func (t *Tool) Durable() (fields []string) {
	for _, field := range []string{"calls", "deadline_ms"} {
		if _, has := t.entry[field]; has {
			fields = append(fields, field)
		}
	}
	return fields
}

// MayCall reports whether the tool's handler may call another tool. Every handler may ask: it may call wait.answer, wait.approval and wait.event.
func (t *Tool) MayCall(tool string) bool {
	domain, _, _ := strings.Cut(tool, ".")
	return slices.Contains(Asking, tool) || slices.Contains(t.Calls, tool) || slices.Contains(t.Calls, domain+".*")
}

// Asking are the tools that wait for an answer. They belong to every program whose registry lists them.
var Asking = []string{"wait.answer", "wait.approval", "wait.event"}

func ofDatabase(permission string) bool { return permission == "read:db" || permission == "write:db" }

// Idempotency says when a call repeats the result of an earlier one instead of running.
type Idempotency struct {
	Mode Mode
	// KeyField is the required property of the input whose value is the key. It is empty unless Mode is [Keyed].
	KeyField string
	// OnOtherInput says what a call gets whose key succeeded before with another input. The default is [Refuse] with mode
	// [SafeRetry], and [Replay] with [Keyed].
	OnOtherInput OnOtherInput
}

// OnOtherInput is what happens to a call whose key succeeded before with another input.
type OnOtherInput string

const (
	// Replay gives it the earlier result all the same. Its receipt says that the inputs differ.
	Replay OnOtherInput = "replay"
	// Refuse lets it fail with key_reused.
	Refuse OnOtherInput = "refuse"
)

// Mode is one of the three kinds of idempotency.
type Mode string

const (
	// None runs every call. If its worker is lost, a call runs again only if its handler is transactional; otherwise it ends as
	// outcome_unknown.
	None Mode = "none"
	// SafeRetry gives a call the result of an earlier successful call of the same caller with the same idempotency_key. A
	// call whose worker was lost runs again.
	SafeRetry Mode = "safe-retry"
	// Keyed does the same by the tool's name and the value of the input's key field, for all callers.
	Keyed Mode = "keyed"
)

// Retry says how often a call is tried that fails for a transient reason, if it may run again at all.
type Retry struct {
	MaxAttempts int           // with the first; 1 to 20
	Backoff     time.Duration // before the second attempt, doubled for each further one up to Most, with jitter; 1 ms to 1 h
	Most        time.Duration // the longest pause
}

// TriesToSend is how often a call of a tool with mode [None] is tried as long as nothing was sent. Such a try is not an
// attempt, so an entry with fewer attempts does not end the call.
const TriesToSend = 12

// Retry returns the retry of the tool's entry, by default 3 attempts with pauses from 500 ms. If a remote service does the tool's work
// (remote), the default outlasts a deploy of the service: 12 attempts, with pauses from 1 s to 60 s, 3 to 6 minutes in all.
func (t *Tool) Retry(remote bool) Retry {
	if _, stated := t.entry["retry"]; remote && !stated {
		return Retry{MaxAttempts: TriesToSend, Backoff: time.Second, Most: time.Minute}
	}
	return Retry{
		MaxAttempts: cmp.Or(whole(schema.ValueAt(t.entry, "/retry/max_attempts")), 3),
		Backoff:     cmp.Or(milliseconds(schema.ValueAt(t.entry, "/retry/backoff_ms")), 500*time.Millisecond),
		Most:        15 * time.Minute,
	}
}

// Hints are for those who show a tool to people and to agents. GEM decides nothing by them.
type Hints struct {
	Title string // the tool's name for people; empty where the file has none
	// Destructive says whether the tool may change or remove something that exists, or do something that cannot be undone; false is for a
	// tool that only adds. It is nil where the file does not say: readers then take a tool that writes for destructive.
	Destructive *bool
}

// ReadFile reads and parses a registry file. Its errors name the file and say what to do.
func ReadFile(path string) (*Registry, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("there is no registry at %s: create it, or set TOOLS_REGISTRY to its path", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the registry: %w", err)
	}
	r, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the registry %s is invalid:\n%w", path, err)
	}
	return r, nil
}

// SHA256 returns the hash, in hexadecimal digits, of what Version names: the canonical form, but without the tools of
// [Always] that a file without "include" does not have. Formatting the file does not change it; any other change does.
func (r *Registry) SHA256() string {
	return fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(r.named)))
}

// JSON returns the registry in canonical form: keys sorted, no white space, numbers written in one way, and without the
// $schema at the top, which only editors use. The entries that the file includes are among its tools. [ParseRecorded] reads
// it as the same registry.
func (r *Registry) JSON() []byte { return slices.Clone(r.json) }

// Tool returns the tool with exactly that name, and whether there is one.
func (r *Registry) Tool(name string) (*Tool, bool) {
	t, ok := r.byName[name]
	return t, ok
}

// Tools returns all tools in the order of the file.
func (r *Registry) Tools() []*Tool { return slices.Clone(r.tools) }

// InvalidError is the error of a registry file that cannot be used.
type InvalidError struct {
	Defects []Defect // at least one, ordered by their place in the file, fields by name
}

// Defect is one thing that is wrong with a registry file.
type Defect struct {
	// Tool is the tool's name, tools[3] if it has no valid one, and empty for a defect outside the tools.
	Tool string
	// Field is, for example, timeout_ms, retry.backoff_ms or input_schema/properties/title, or empty for the whole tool or file.
	Field string
	// Problem says what is wrong and what to do, in at most 500 characters.
	Problem string
}

// String returns the three parts in one line.
func (d Defect) String() string {
	return schema.Defect{Part: d.Tool, Field: d.Field, Problem: d.Problem}.String()
}

// Error returns one defect a line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Defects))
	for i, d := range e.Defects {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
