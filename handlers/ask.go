package handlers

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/oneline"
)

// Question is a question of a durable handler to a person: see [Ask].
type Question struct {
	// Text is the question: 1 to 4,000 characters.
	Text string `json:"text"`
	// Schema is the flat JSON Schema of the answer: see the input of wait.answer in the registry. Nil: Ask derives it
	// from the type of the answer.
	Schema json.RawMessage `json:"schema,omitempty"`
	// By lists the people who may answer: `owner` (the creator of the call), `user:SUBJECT`, `role:ROLE` (see the table
	// gem.roles) or `service`. Empty means the owner. service_role and the owner of the database may always answer.
	By []string `json:"by,omitempty"`
	// Others excludes the users who made the handler's call or one of its ancestors: only others may answer.
	Others bool `json:"others,omitempty"`
	// Until is the deadline. After it, the question accepts no answers, and Wait returns a [Failure] with the code
	// timeout. Zero means no deadline.
	Until time.Time `json:"until,omitzero"`
}

// Ask asks a person a question, under a name in the journal. The answer is a T: text, a number, a boolean, or a struct
// of these, whose fields are required unless they are pointers or have omitempty. The question is a call to
// wait.answer, and Ask makes it as [Start] would. Frontends see the question in the view open_questions.
func Ask[T any](d *Durable, name string, q Question) *Child[T] {
	c := start[T](d, name, "wait.answer", func() (_ json.RawMessage, err error) {
		if q.Schema == nil {
			if q.Schema, err = flatSchema(reflect.TypeFor[T]()); err != nil {
				return nil, &Failure{Code: "validation_error", Message: fmt.Sprintf("The question %s has no Schema, and "+
					"cannot derive one: %v", name, err)}
			}
		}
		return encode(q)
	})
	c.field = "answer"
	return c
}

// Request is a call for which approval is requested.
type Request struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
}

// Approval is a durable handler's request to approve a call: see [Approve].
type Approval struct {
	// Tool and Input are the call to approve. The handler must be allowed to make it.
	Tool  string
	Input any
	// Text is the question: at most 4,000 characters. If it is empty, GEM derives it from the tool and the input.
	Text string
	// By lists the people who may approve, at least one: `user:SUBJECT` or `role:ROLE` (see the table gem.roles).
	By []string
	// OwnerToo means that users may approve even if they made the handler's call or one of its ancestors.
	OwnerToo bool
	// Until is the deadline, after which nobody can approve the call. Zero means no deadline.
	Until time.Time
}

// Decision is the outcome of an approval.
type Decision struct {
	Approved bool      `json:"approved"`
	By       string    `json:"by,omitempty"`     // the subject that decided
	At       time.Time `json:"at,omitzero"`      // when it did
	Reason   string    `json:"reason,omitempty"` // in the person's words; `expired` if nobody decided in time
	// Digest is the hash of the tool, the input, and the tool's entry in the registry.
	Digest string `json:"digest"`
}

// Approve asks people to approve a call, and records the question in the journal under the name. The question is a call
// to wait.approval, and Approve makes it as [Start] would. A denial is a Decision and not an error. [StartApproved]
// makes the approved call.
func Approve(d *Durable, name string, a Approval) *Child[Decision] {
	encoded, err := encode(a.Input)
	c := start[Decision](d, name, "wait.approval", func() (json.RawMessage, error) {
		if err != nil {
			return nil, &Failure{Code: "validation_error", Message: fmt.Sprintf("The input of %s, for the approval %s, "+
				"cannot be encoded: %v", a.Tool, name, err)}
		}
		digest, err := d.journal.Digest(a.Tool, encoded)
		if err != nil {
			return nil, err
		}
		if a.Text == "" {
			a.Text = oneline.CallOf(a.Tool, encoded) + "."
		}
		return encode(struct {
			Request
			Text   string    `json:"text"`
			By     []string  `json:"by"`
			Others bool      `json:"others"`
			Until  time.Time `json:"until,omitzero"`
			Digest string    `json:"digest"`
		}{Request{a.Tool, encoded}, a.Text, append([]string{}, a.By...), !a.OwnerToo, a.Until, digest})
	})
	c.asked = &Request{a.Tool, encoded}
	return c
}

// StartApproved is like [Start], but makes exactly the call that was approved. Call it after Wait has returned the
// decision. The returned Child's Wait fails with the code not_allowed if the call was denied, or if the tool, its input
// or its registry entry differs from what was approved.
func StartApproved[T any](d *Durable, name string, approval *Child[Decision]) *Child[T] {
	if approval.asked == nil {
		return &Child[T]{call: d, err: Fail("not_allowed", fmt.Sprintf("The call %s needs an approval "+
			"that Approve returned.", name))}
	}
	asked := *approval.asked
	return start[T](d, name, asked.Tool, func() (json.RawMessage, error) {
		refuse := func(why string) (json.RawMessage, error) {
			return nil, &Failure{Code: "not_allowed", Message: fmt.Sprintf("The call %s of %s %s.", name, asked.Tool, why),
				Details: map[string]string{"approval": approval.id}}
		}
		if approval.err != nil {
			return nil, approval.err
		}
		if !approval.waited { // without a wait, the decision's arrival has no place in the journal
			return refuse("is not approved: wait for the approval first")
		}
		decision, err := approval.Wait(context.Background()) // the decision has arrived: returns at once
		if err != nil {
			return nil, err
		}
		if !decision.Approved {
			return refuse("was not approved: " + cmp.Or(decision.Reason, "no reason was given"))
		}
		digest, err := d.journal.Digest(asked.Tool, asked.Input)
		if err != nil {
			return nil, err
		}
		if digest != decision.Digest {
			return refuse("differs from the approved call: its input, or its entry in the registry, has changed")
		}
		return asked.Input, nil
	})
}

// flatSchema returns the JSON Schema of a type that a person can answer with.
func flatSchema(t reflect.Type) (json.RawMessage, error) {
	if simple := simpleSchema(t); simple != nil {
		return encode(simple)
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a text, number, boolean or struct of these", t)
	}
	properties, required := map[string]any{}, []string{}
	for field := range t.Fields() {
		if !field.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		name = cmp.Or(name, field.Name)
		of := field.Type
		optional := of.Kind() == reflect.Pointer || strings.Contains(options, "omitempty") ||
			strings.Contains(options, "omitzero")
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		simple := simpleSchema(of)
		if simple == nil || field.Anonymous {
			return nil, fmt.Errorf("its field %s is not a text, number or boolean", field.Name)
		}
		properties[name] = simple
		if !optional {
			required = append(required, name)
		}
	}
	return encode(map[string]any{"type": "object", "properties": properties, "required": required})
}

// simpleSchema returns the schema of a type that encoding/json reads from a text, a number or a boolean, or nil for
// other types.
func simpleSchema(t reflect.Type) map[string]any {
	pointer := reflect.PointerTo(t)
	if pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return nil // it may read anything
	}
	switch k := t.Kind(); {
	case k == reflect.String:
		return map[string]any{"type": "string"}
	case k == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case k >= reflect.Int && k <= reflect.Int64:
		most := int64(math.MaxInt64 >> (64 - t.Bits()))
		return map[string]any{"type": "integer", "minimum": -most - 1, "maximum": most}
	case k >= reflect.Uint && k <= reflect.Uintptr:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": uint64(math.MaxUint64 >> (64 - t.Bits()))}
	case k == reflect.Float32:
		return map[string]any{"type": "number", "minimum": -math.MaxFloat32, "maximum": math.MaxFloat32}
	case k == reflect.Float64:
		return map[string]any{"type": "number", "minimum": -math.MaxFloat64, "maximum": math.MaxFloat64}
	}
	return nil
}
