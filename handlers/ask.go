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

// Question is what a durable handler asks: see [Ask].
type Question struct {
	// Text is the question: 1 to 4,000 characters.
	Text string `json:"text"`
	// Schema says what the answer must be, as a flat JSON Schema: see the input of wait.answer in the registry. Nil: it follows from
	// the type of the answer.
	Schema json.RawMessage `json:"schema,omitempty"`
	// By names those who may answer: `owner`, who made the call; `user:SUBJECT`; `role:ROLE`, of the table gem.roles; `service`.
	// Empty means the owner. service_role, and the owner of the database, may answer in place of any of them.
	By []string `json:"by,omitempty"`
	// Others: whoever made the call, or one above it, may not answer.
	Others bool `json:"others,omitempty"`
	// Until is the time after which the question takes no answer: its Wait then returns a [Failure] with the code timeout. Zero: never.
	Until time.Time `json:"until,omitzero"`
}

// Ask asks a person, under a name, and returns the answer as a T: text, a number, a boolean, or a struct of these, whose fields are
// required unless they are pointers or have omitempty. It is the [Start] of wait.answer, a tool that the registry must list: the question is a call,
// which frontends see in the view open_questions.
func Ask[T any](d *Durable, name string, q Question) *Child[T] {
	c := start[T](d, name, "wait.answer", func() (_ json.RawMessage, err error) {
		if q.Schema == nil {
			if q.Schema, err = flatSchema(reflect.TypeFor[T]()); err != nil {
				return nil, &Failure{Code: "validation_error", Message: fmt.Sprintf("The question %s has no Schema, and none follows from its type: %v", name, err)}
			}
		}
		return encode(q)
	})
	c.field = "answer"
	return c
}

// Request is a call that is to be approved.
type Request struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
}

// Approval is what a durable handler asks to be approved: see [Approve].
type Approval struct {
	// Tool and Input are the call for which approval is asked: one that the handler may make.
	Tool  string
	Input any
	// Text is the question: at most 4,000 characters. If it is empty, it is made from the tool and the input.
	Text string
	// By names those who may approve, at least one: `user:SUBJECT`, or `role:ROLE`, of the table gem.roles.
	By []string
	// OwnerToo: whoever made the call, or one above it, may approve it too.
	OwnerToo bool
	// Until is the time after which nobody can approve it. Zero: never.
	Until time.Time
}

// Decision is what an approval came to.
type Decision struct {
	Approved bool      `json:"approved"`
	By       string    `json:"by,omitempty"`     // the subject that decided
	At       time.Time `json:"at,omitzero"`      // when it did
	Reason   string    `json:"reason,omitempty"` // as given; `expired` if nobody decided in time
	Digest   string    `json:"digest"`           // of what was approved: the tool, the input, and the tool's entry in the registry
}

// Approve asks, under a name, whether a call may be made. It is the [Start] of wait.approval, a tool that the registry must list. A denial is a
// Decision, and no error. [StartApproved] makes the call.
func Approve(d *Durable, name string, a Approval) *Child[Decision] {
	encoded, err := encode(a.Input)
	c := start[Decision](d, name, "wait.approval", func() (json.RawMessage, error) {
		if err != nil {
			return nil, &Failure{Code: "validation_error", Message: fmt.Sprintf("The input of %s, for the approval %s, is not one: %v", a.Tool, name, err)}
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

// StartApproved is the [Start] of exactly the call that was approved, once Wait has returned the decision. Its own Wait fails with the code
// not_allowed where the call was denied, or where the tool, its input or its entry in the registry is not what was approved.
func StartApproved[T any](d *Durable, name string, approval *Child[Decision]) *Child[T] {
	if approval.asked == nil {
		return &Child[T]{call: d, err: Fail("not_allowed", fmt.Sprintf("The call %s is to start what Approve asked for, and this approval was made otherwise.", name))}
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
		if !approval.waited { // that it came meanwhile is not in the journal before this
			return refuse("is not approved: wait for the approval first")
		}
		decision, err := approval.Wait(context.Background()) // it has come, and this reads it again
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
			return refuse("is not what was approved: its input, or its entry in the registry, is another one")
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
		return nil, fmt.Errorf("%s is no text, number, boolean or struct of these", t)
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
		optional := of.Kind() == reflect.Pointer || strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		simple := simpleSchema(of)
		if simple == nil || field.Anonymous {
			return nil, fmt.Errorf("its field %s is no text, number or boolean", field.Name)
		}
		properties[name] = simple
		if !optional {
			required = append(required, name)
		}
	}
	return encode(map[string]any{"type": "object", "properties": properties, "required": required})
}

// simpleSchema is that of a type which encoding/json reads from a text, a number or a boolean; nil for another.
func simpleSchema(t reflect.Type) map[string]any {
	pointer := reflect.PointerTo(t)
	if pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) || pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return nil // who knows what it reads
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
