package rules

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// Scenario is a file that tests rules without a database: sequences of calls, and the expected outcomes.
type Scenario struct {
	Set      *Set
	Registry *registry.Registry // nil: the file names none
	// Hook creates the judge of the hook events in a sequence; nil: there is none.
	Hook func(Coding) (Hook, error)

	sequences []sequence
}

// Hook judges events as gem hook does, in a folder of its own.
type Hook interface {
	// Write puts files into the folder, by their paths in it.
	Write(files map[string]string) error
	// Judge returns the outcome of an event, in the words of expect, and the message for the agent. unread is the reason
	// if the event could not be read; such an event passes.
	Judge(ctx context.Context, event []byte) (came, message string, unread, err error)
	Close() error
}

type sequence struct {
	Name  string
	Steps []step
}

// step is a call, an answer of people about one, or an event of a coding agent.
type step struct {
	At    *period
	Takes period
	Call  *struct {
		ID, Tool, Session, Caller string
		Input                     json.RawMessage
		SignedIn                  bool `json:"signed_in"`
		Child                     bool
	}
	Expect, Then, End  string
	Question           string
	Result, Effects    json.RawMessage
	Of, Answer, Reason string
	Files              map[string]string
	Hook               json.RawMessage // the event, or a string that replaces it
}

// period is a duration in the format of files.
type period time.Duration

func (p *period) UnmarshalText(text []byte) error {
	word := strings.TrimRight(string(text), "dhms")
	n, err := strconv.ParseInt(word, 10, 32)
	unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
		"d": 24 * time.Hour}[string(text[len(word):])]
	if err != nil || unit == 0 || n > int64(10*366*24*time.Hour/unit) {
		return fmt.Errorf("%s is not a duration of at most ten years, such as 10s", schema.Show(string(text)))
	}
	*p = period(time.Duration(n) * unit)
	return nil
}

// ReadScenario reads a file of sequences, with the rules and the registry that it names. Its errors name the file and
// the solution.
func ReadScenario(path string) (*Scenario, error) {
	data, err := plainfile.Read(path)
	if err != nil {
		return nil, err
	}
	s, err := readScenario(data, func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(path), name)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

//go:embed scenario.schema.json
var scenarioText []byte

// ScenarioSchema returns the JSON Schema of a file for [ReadScenario], for editors.
func ScenarioSchema() []byte { return bytes.Clone(scenarioText) }

var scenarioForm = sync.OnceValue(func() *schema.Form { return schema.NewForm("the test of rules", scenarioText) })

func readScenario(data []byte, beside func(string) string) (*Scenario, error) {
	doc, problems := scenarioForm().Read(data)
	if len(problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "sequences", problems, schema.FieldName)}
	}
	var file struct {
		Rules     json.RawMessage
		Registry  string
		Sequences []sequence
	}
	if err := json.Unmarshal(schema.Canonical(doc), &file); err != nil {
		return nil, err
	}
	s := &Scenario{sequences: file.Sequences}
	var err error
	var name string
	if json.Unmarshal(file.Rules, &name) == nil {
		s.Set, err = ReadFile(beside(name))
	} else if s.Set, err = Parse(file.Rules); err != nil {
		err = fmt.Errorf("the rules in it are invalid:\n%w", err)
	}
	if err == nil && file.Registry != "" {
		s.Registry, err = registry.ReadFile(beside(file.Registry))
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}
