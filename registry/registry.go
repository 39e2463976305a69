// Package registry loads tools.registry.json, the only source of truth for the tools' names, schemas and idempotency.
//
// [Parse] refuses a registry with every fault at once. What it returns is compiled and never changes: a [Tool] checks
// inputs and outputs from many goroutines. The package knows no database.
package registry

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// FileSchema is the JSON Schema of a registry file, from which editors complete it and show what each field means. It
// says less than [Parse] checks.
//
//go:embed registry.schema.json
var FileSchema []byte

// Registry is a registry file that was found right.
type Registry struct {
	// Version is the version of its contents: they are never changed without a new one. See [CheckUpgrade].
	Version string

	doc    map[string]any
	json   []byte
	sha256 string
	tools  []*Tool
	byName map[string]*Tool
}

// Tool is an entry of the registry.
type Tool struct {
	// Name has the form domain.method, such as leads.create.
	Name string
	// Description tells an agent what the tool is for; it may be empty.
	Description string
	// Permissions are such as read:db and send:sms; there may be none.
	Permissions []string
	Idempotency Idempotency
	// Timeout ends a run of the tool: 1 ms to 24 h.
	Timeout time.Duration
	// ReceiptFields are the paths that a reader of a receipt looks at first, such as result.lead_id; there may be none.
	ReceiptFields []string
	Retry         Retry

	input, output *schema
	entry         map[string]any // as it stands in the file
}

// Idempotency says when a call repeats the result of an earlier one instead of running.
type Idempotency struct {
	Mode Mode
	// KeyField is the required property of the input whose value is the key. It is empty unless Mode is [Keyed].
	KeyField string
}

// Mode is one of the three kinds of idempotency.
type Mode string

const (
	// None lets every call run.
	None Mode = "none"
	// SafeRetry gives a call the result of an earlier successful one of the same caller that has the same idempotency_key,
	// and lets a call run again when nobody knows whether it has run.
	SafeRetry Mode = "safe-retry"
	// Keyed does the same by the tool's name and the value of the input's key field, whoever calls.
	Keyed Mode = "keyed"
)

// Retry says how often a call may be tried that failed for a transient reason. Only those that may run again are.
type Retry struct {
	MaxAttempts int           // with the first; 1 to 20, 3 by default
	Backoff     time.Duration // before the second attempt, and doubled for each further; 1 ms to 1 h, 500 ms by default
}

// The defaults of [Retry].
const (
	DefaultMaxAttempts = 3
	DefaultBackoff     = 500 * time.Millisecond
)

// ReadFile reads and parses a registry file. Its errors name the file and say what to do.
func ReadFile(path string) (*Registry, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("there is no registry at %s: create it, or set TOOLS_REGISTRY to where it is", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the registry can not be read: %w", err)
	}
	r, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the registry %s is refused:\n%w", path, err)
	}
	return r, nil
}

// SHA256 is the hash of [Registry.JSON] in hexadecimal digits. Another format of the file does not change it; any other
// change does.
func (r *Registry) SHA256() string { return r.sha256 }

// JSON returns the registry in canonical form: keys sorted, white space gone, and without $schema at the top, which only
// editors use. It parses to the same registry.
func (r *Registry) JSON() []byte { return slices.Clone(r.json) }

// Tool returns the tool of that exact name.
func (r *Registry) Tool(name string) (*Tool, bool) {
	t, ok := r.byName[name]
	return t, ok
}

// Tools returns all tools in the order of the file.
func (r *Registry) Tools() []*Tool { return slices.Clone(r.tools) }

func newRegistry(doc map[string]any, version string, tools []*Tool) *Registry {
	doc = maps.Clone(doc)
	delete(doc, "$schema")
	r := &Registry{Version: version, doc: doc, json: canonical(doc), tools: tools, byName: make(map[string]*Tool, len(tools))}
	hash := sha256.Sum256(r.json)
	r.sha256 = hex.EncodeToString(hash[:])
	for _, t := range tools {
		r.byName[t.Name] = t
	}
	return r
}

// InvalidError is the error of a registry that is refused.
type InvalidError struct {
	Defects []Defect // at least one, in the order of the file
}

// Defect is one fault of a registry file.
type Defect struct {
	Tool    string // the tool's name, tools[3] where it has none, and empty for what belongs to no tool
	Field   string // such as timeout_ms or input_schema/properties/title, or empty for the whole
	Problem string // what is wrong, and what to do
}

func (d Defect) String() string {
	parts := slices.DeleteFunc([]string{d.Tool, d.Field, d.Problem}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Error prints one defect a line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Defects))
	for i, d := range e.Defects {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
