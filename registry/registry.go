// Package registry loads tools.registry.json, the only source of the tools' names, schemas and idempotency.
//
// [Parse] adds the entries of GEM's own tools that a file includes, and reports all of its defects together. It returns
// a compiled [Registry] that never changes. Many goroutines can validate inputs and outputs with its tools. The package
// uses no database.
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

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/schema"
)

// Registry is a valid registry file together with the entries that it includes.
type Registry struct {
	// Version identifies the contents: changed contents need a new version. See [CheckUpgrade]. If the file includes
	// entries, it is the file's version, a plus sign, and the first eight hexadecimal digits of the sha256 of these
	// entries, before the file's overrides.
	Version string
	// FileVersion is the version in the file.
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
	// Description explains the tool to an agent; it may be empty.
	Description string
	// InputSchema and OutputSchema are JSON Schemas in canonical form (sorted keys, no white space): an object, or true or
	// false. Their draft is 2020-12 unless $schema names another: 2019-09, 07, 06 or 04.
	InputSchema, OutputSchema json.RawMessage
	// Permissions have the form verb:object, such as read:db and send:sms. Default: none.
	Permissions []string
	// Frontends reports whether signed-in users may call the tool. By default they may if the tool needs no permissions
	// other than read:db and write:db.
	Frontends   bool
	Idempotency Idempotency
	// Calls are the tools that its handler may call, if it is durable: names, or domains as in leads.*. Default: none.
	Calls []string
	// Timeout ends a run of the tool: 1 ms to 24 h.
	Timeout time.Duration
	// Deadline ends a call of a durable handler this long after its insert, whatever it waits for: 1 ms to 366 days.
	// Default: 30 days.
	Deadline time.Duration
	// ReceiptFields are the most important paths of a receipt, such as result.lead_id. Default: none.
	ReceiptFields []string
	Hints         Hints
	// Included reports whether the entry comes from GEM instead of the file.
	Included bool

	input, output *schema.Schema
	entry         map[string]any // as in the file
}

// JSON returns the tool's entry in canonical form.
func (t *Tool) JSON() []byte { return schema.Canonical(t.entry) }

// ClosedBecause returns why signed-in users may not call the tool, as in "needs the permission send:sms", or "" if they
// may.
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

// Durable returns the names of the entry's fields that apply only to durable handlers: calls and deadline_ms, if they
// are present.
func (t *Tool) Durable() (fields []string) {
	for _, field := range []string{"calls", "deadline_ms"} {
		if _, has := t.entry[field]; has {
			fields = append(fields, field)
		}
	}
	return fields
}

// MayCall reports whether the tool's handler may call another tool. Every handler may ask people: it may call
// wait.answer, wait.approval and wait.event.
func (t *Tool) MayCall(tool string) bool {
	domain, _, _ := strings.Cut(tool, ".")
	return slices.Contains(Asking, tool) || slices.Contains(t.Calls, tool) || slices.Contains(t.Calls, domain+".*")
}

// Asking are the tools that wait for an answer. Every program has their handlers.
var Asking = []string{"wait.answer", "wait.approval", "wait.event"}

func ofDatabase(permission string) bool { return permission == "read:db" || permission == "write:db" }

// Idempotency decides when a call repeats the result of an earlier one instead of running.
type Idempotency struct {
	Mode Mode
	// KeyField is the required property of the input whose value is the key. It is empty unless Mode is [Keyed].
	KeyField string
	// OnOtherInput determines the result of a call whose key succeeded before with another input. Default: [Refuse] with
	// mode [SafeRetry], [Replay] with [Keyed].
	OnOtherInput OnOtherInput
}

// OnOtherInput is the treatment of a call whose key succeeded before with another input.
type OnOtherInput string

const (
	// Replay returns the earlier result. The receipt reports that the inputs differ.
	Replay OnOtherInput = "replay"
	// Refuse fails the call with key_reused.
	Refuse OnOtherInput = "refuse"
)

// Mode is one of the three kinds of idempotency.
type Mode string

const (
	// None runs every call. If its worker is lost, a call runs again only if its handler is transactional; otherwise it
	// ends as outcome_unknown.
	None Mode = "none"
	// SafeRetry gives a call the result of an earlier successful call of the same caller with the same idempotency_key. A
	// call whose worker was lost runs again.
	SafeRetry Mode = "safe-retry"
	// Keyed does the same by the tool's name and the value of the input's key field, for all callers.
	Keyed Mode = "keyed"
)

// Retry limits the attempts of a call that fails for a transient reason and may run again.
type Retry struct {
	MaxAttempts int // including the first; 1 to 20
	// before the second attempt, doubled for each further one up to Most, with jitter; 1 ms to 1 h
	Backoff time.Duration
	Most    time.Duration // the longest pause
}

// TriesToSend is the maximum number of tries for a call to a tool with mode [None], while nothing was sent. These tries
// do not count as attempts, so the entry's max_attempts does not limit them.
const TriesToSend = 12

// Retry returns the retry policy of the tool's entry, by default 3 attempts with pauses from 500 ms. If a remote
// service does the tool's work (remote), the default outlasts a deploy of the service: 12 attempts, with pauses from 1
// s to 60 s, 3 to 6 minutes in all.
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

// Hints help programs to show a tool to people and agents. GEM itself ignores them.
type Hints struct {
	Title string // the tool's name for people; it may be empty
	// Destructive reports whether the tool may change or remove something that exists, or do something that cannot be
	// undone; false if the tool only adds. Default: nil, and a tool that writes counts as destructive.
	Destructive *bool
}

// ReadFile reads and parses a registry file. Its errors name the file and the solution.
func ReadFile(path string) (*Registry, error) {
	data, err := plainfile.Read(path)
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

// SHA256 returns the hash, in hexadecimal digits, of the contents that Version identifies: the canonical form without
// the tools of [Always], unless the file includes entries. Formatting the file does not change it; any other change
// does.
func (r *Registry) SHA256() string {
	return fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(r.named)))
}

// JSON returns the registry in canonical form: keys sorted, no white space, numbers in one notation, and without the
// $schema at the top, which is for editors. Its tools contain the included entries. [ParseRecorded] reads it as the
// same registry.
func (r *Registry) JSON() []byte { return slices.Clone(r.json) }

// Tool returns the tool with exactly that name. It returns false if there is none.
func (r *Registry) Tool(name string) (*Tool, bool) {
	t, ok := r.byName[name]
	return t, ok
}

// Tools returns all tools in the order of the file.
func (r *Registry) Tools() []*Tool { return slices.Clone(r.tools) }
