package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// Handler is the function that a tool dispatches to.
type Handler struct {
	// Transactional reports whether the function takes the transaction of its receipt.
	Transactional bool
	// Durable reports whether the function takes a call with steps.
	Durable bool
	// Remote reports whether a remote service does the work.
	Remote bool
	// File and Func say where it is written, such as leads/leads.go and Leads.Create.
	File, Func string
	// Input and Output are the types that the function takes and returns; nil for a tool that lives elsewhere.
	Input, Output reflect.Type
	// Checks reports whether the input is a [Checked].
	Checks bool

	fn  reflect.Value
	run func(context.Context, Tx, *Call) (json.RawMessage, error) // of a tool that lives elsewhere, in place of fn
}

// Checked is an input that the worker asks before it looks for an earlier success of the call's key, and before the call may win it. Where fields
// of an input contradict each other, such as a key that is to be the hash of the rest, its error ends the call, as that of a handler does, and no other
// call takes notice. Check looks at nothing but the input and the call: it is asked before each attempt until the first step.
type Checked interface {
	Check(call *Call) error
}

// Check asks the call's input, if it is a [Checked]. It does not recover from a panic.
func (h *Handler) Check(call *Call) error {
	if h.Elsewhere() {
		return nil
	}
	in, err := h.decode(call)
	if err != nil || !h.Checks {
		return err
	}
	return in.Interface().(Checked).Check(call)
}

// decode returns a pointer to the input of a call.
func (h *Handler) decode(call *Call) (reflect.Value, error) {
	in := reflect.New(h.Input)
	if err := json.Unmarshal(call.Input, in.Interface()); err != nil {
		return in, &Failure{
			Message: fmt.Sprintf("The input passed the schema of %s but does not fit %s in %s: %v", call.Tool, h.Func, h.File, err),
			Details: map[string]string{"reason": "input_does_not_fit_handler"},
		}
	}
	return in, nil
}

// Run decodes the input, runs the function and encodes its output. Only transactional handlers use tx, and only durable ones
// the journal. Run does not recover from a panic: the caller does, since it has the transaction.
func (h *Handler) Run(ctx context.Context, call *Call, tx Tx, journal Journal) (json.RawMessage, error) {
	if h.Elsewhere() {
		return h.run(ctx, tx, call)
	}
	in, err := h.decode(call)
	if err != nil {
		return nil, err
	}
	args := []reflect.Value{reflect.ValueOf(&ctx).Elem()}
	switch {
	case h.Transactional:
		args = append(args, reflect.ValueOf(&tx).Elem(), reflect.ValueOf(call))
	case h.Durable:
		args = append(args, reflect.ValueOf(NewDurable(call, journal)))
	default:
		args = append(args, reflect.ValueOf(call))
	}
	out := h.fn.Call(append(args, in.Elem()))
	if err, _ := out[1].Interface().(error); err != nil {
		return nil, err
	}
	return encode(out[0].Interface())
}

// Handlers holds the handlers of all domains, by tool, and the places of tools that live elsewhere.
type Handlers struct {
	byKey  map[string]*Handler
	places []Place
	checks []func(context.Context, DB) error
}

// AddCheck adds to what [Handlers.Check] does.
func (h *Handlers) AddCheck(check func(context.Context, DB) error) {
	h.checks = append(h.checks, check)
}

// Check does what the domains check before a worker starts. It returns the first error.
func (h *Handlers) Check(ctx context.Context, db DB) error {
	for _, check := range h.checks {
		if err := check(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

// For returns the handler of a tool: a Go method, otherwise that of the first place where it lives. Of methods the tool's name is cut at its
// first dot into domain and method; both are compared without case, dots and underscores, so comms.send_sms finds Comms.SendSMS.
func (h *Handlers) For(tool string) (*Handler, bool) {
	domain, method, _ := strings.Cut(tool, ".")
	if found, ok := h.byKey[fold(domain)+"."+fold(method)]; ok {
		return found, true
	}
	for _, place := range h.places {
		if found, ok := place.For(tool); ok {
			return found, true
		}
	}
	return nil, false
}

// All returns the handlers of Go methods, ordered by the function's name.
func (h *Handlers) All() []*Handler {
	return slices.SortedFunc(maps.Values(h.byKey), func(a, b *Handler) int { return strings.Compare(a.Func, b.Func) })
}

var separators = strings.NewReplacer("_", "", ".", "")

func fold(s string) string { return strings.ToLower(separators.Replace(s)) }

var (
	contextType = reflect.TypeFor[context.Context]()
	txType      = reflect.TypeFor[Tx]()
	callType    = reflect.TypeFor[*Call]()
	durableType = reflect.TypeFor[*Durable]()
	errorType   = reflect.TypeFor[error]()
	checkedType = reflect.TypeFor[Checked]()
)

// Bind finds the handlers of the domains, which are plain values or [Domain]s: each exported method is one. It opens
// nothing, so a domain without configuration will do for a list of tools. A method with no signature of the package
// comment, and two methods for one tool, are errors; Bind returns all of them at once.
func Bind(domains ...any) (*Handlers, error) {
	bound := &Handlers{byKey: map[string]*Handler{}}
	var faults []error
	for i, d := range Domains(domains...) {
		if d.Tools == nil {
			faults = append(faults, fmt.Errorf("domain %d has no Tools", i+1))
			continue
		}
		if d.Check != nil {
			bound.checks = append(bound.checks, d.Check)
		}
		for method := range reflect.TypeOf(d.Tools).Methods() {
			h, err := newHandler(reflect.ValueOf(d.Tools), d.typeName(), method)
			key := fold(d.typeName()) + "." + fold(method.Name)
			if err == nil {
				h.Remote = slices.Contains(d.Remote, "*") || slices.Contains(d.Remote, method.Name)
			}
			switch other, taken := bound.byKey[key]; {
			case err != nil:
				faults = append(faults, err)
			case taken:
				faults = append(faults, fmt.Errorf("%s and %s have the same tool name: rename one", h.Func, other.Func))
			default:
				bound.byKey[key] = h
			}
		}
	}
	return bound, errors.Join(faults...)
}

func newHandler(domain reflect.Value, typeName string, method reflect.Method) (*Handler, error) {
	h := &Handler{Func: typeName + "." + method.Name, File: fileOf(method), fn: domain.MethodByName(method.Name)}
	t := h.fn.Type()
	h.Transactional = takes(t, contextType, txType, callType)
	h.Durable = takes(t, contextType, durableType)
	if !h.Transactional && !h.Durable && !takes(t, contextType, callType) {
		return nil, fmt.Errorf("%s in %s is not a handler: a domain's exported methods must have the form "+
			"func(context.Context, handlers.Tx, *handlers.Call, In) (Out, error), or the same without the Tx, or with a *handlers.Durable "+
			"in place of both, with a struct as In; this one is %s", h.Func, h.File, t)
	}
	h.Input, h.Output = t.In(t.NumIn()-1), t.Out(0)
	h.Checks = reflect.PointerTo(h.Input).Implements(checkedType)
	return h, nil
}

// takes reports whether a function takes these arguments and a struct, and returns a value and an error.
func takes(t reflect.Type, args ...reflect.Type) bool {
	if t.IsVariadic() || t.NumIn() != len(args)+1 || t.NumOut() != 2 || t.Out(1) != errorType {
		return false
	}
	for i, want := range args {
		if t.In(i) != want {
			return false
		}
	}
	return t.In(len(args)).Kind() == reflect.Struct
}

// fileOf returns the file of a method with its folder, such as leads/leads.go.
func fileOf(method reflect.Method) string {
	file, _ := runtime.FuncForPC(method.Func.Pointer()).FileLine(method.Func.Pointer())
	return path.Join(path.Base(path.Dir(file)), path.Base(file))
}
