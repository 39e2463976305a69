// Package binding finds the handlers of tools. Workers and programs that list domains use it.
package binding

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

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/exchange"
	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/receipts"
)

// Handler is the function that a tool dispatches to.
type Handler struct {
	// Transactional reports whether the function takes the transaction of its receipt.
	Transactional bool
	// Durable reports whether the function takes a call with steps.
	Durable bool
	// Remote reports whether a remote service runs the tool.
	Remote bool
	// File and Func are the place of its code, such as leads/leads.go and Leads.Create.
	File, Func string
	// Input and Output are the types that the function takes and returns; nil for a tool of a backend.
	Input, Output reflect.Type
	// Checks reports whether the input is a [handlers.Checked].
	Checks bool

	fn reflect.Value
	// run is set instead of fn for a tool in a backend.
	run func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error)
	// converse is set instead for a durable tool in a backend.
	converse func(context.Context, *handlers.Call, exchange.Attempt) (json.RawMessage, error)
}

// Check calls the input's Check, if it is a [handlers.Checked]. It does not recover from a panic.
func (h *Handler) Check(call *handlers.Call) error {
	if h.UsesBackend() {
		return nil
	}
	in, err := h.decode(call)
	if err != nil || !h.Checks {
		return err
	}
	return in.Interface().(handlers.Checked).Check(call)
}

// decode returns a pointer to the input of a call.
func (h *Handler) decode(call *handlers.Call) (reflect.Value, error) {
	in := reflect.New(h.Input)
	if err := receipts.Decode(call.Input, in.Interface()); err != nil {
		return in, &handlers.Failure{
			Message: fmt.Sprintf("The input passed the schema of %s but does not fit %s in %s: %v", call.Tool, h.Func, h.File,
				err),
			Details: map[string]string{"reason": "input_does_not_fit_handler"},
		}
	}
	return in, nil
}

// Run decodes the input, runs the function and encodes its output. Only transactional handlers use tx, and only durable
// handlers use the journal. Run does not recover from a panic: the caller does this, because it has the transaction.
func (h *Handler) Run(ctx context.Context, call *handlers.Call, tx handlers.Tx,
	journal handlers.Journal) (json.RawMessage, error) {
	switch {
	case h.run != nil:
		return h.run(ctx, tx, call)
	case h.converse != nil:
		return h.converse(ctx, call, journal.(interface{ Remote() exchange.Attempt }).Remote())
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
		args = append(args, reflect.ValueOf(handlers.NewDurable(call, journal)))
	default:
		args = append(args, reflect.ValueOf(call))
	}
	out := h.fn.Call(append(args, in.Elem()))
	if err, _ := out[1].Interface().(error); err != nil {
		return nil, err
	}
	encoded, err := plainjson.Encode(out[0].Interface())
	if err != nil {
		return nil, &handlers.OutputError{Err: err}
	}
	return encoded, nil
}

// Handlers has the handlers of all domains, by tool, and the backends.
type Handlers struct {
	byKey    map[string]*Handler
	backends []Backend
	checks   []func(context.Context, handlers.DB) error
}

// AddCheck adds a check to [Handlers.Check].
func (h *Handlers) AddCheck(check func(context.Context, handlers.DB) error) {
	h.checks = append(h.checks, check)
}

// Check runs the checks of the domains before a worker starts. It returns the first error.
func (h *Handlers) Check(ctx context.Context, db handlers.DB) error {
	for _, check := range h.checks {
		if err := check(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

// For returns the handler of a tool: a Go method, or otherwise the handler of the first backend that has the tool. For
// methods, it cuts the tool's name at its first dot into domain and method, and compares both without case, dots and
// underscores, so comms.send_sms finds Comms.SendSMS.
func (h *Handlers) For(tool string) (*Handler, bool) {
	domain, method, _ := strings.Cut(tool, ".")
	if found, ok := h.byKey[fold(domain)+"."+fold(method)]; ok {
		return found, true
	}
	for _, backend := range h.backends {
		if found, ok := backend.For(tool); ok {
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
	txType      = reflect.TypeFor[handlers.Tx]()
	callType    = reflect.TypeFor[*handlers.Call]()
	durableType = reflect.TypeFor[*handlers.Durable]()
	errorType   = reflect.TypeFor[error]()
	checkedType = reflect.TypeFor[handlers.Checked]()
)

// Bind finds the handlers of the domains, which are plain values or [handlers.Domain]s: each exported method is one. It
// opens nothing, so a list of tools needs no configured domains. A method with a signature that package handlers does
// not list is an error, and so are two methods for one tool; Bind returns all errors together.
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
			h, err := newHandler(reflect.ValueOf(d.Tools), d.TypeName(), method)
			key := fold(d.TypeName()) + "." + fold(method.Name)
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
			"func(context.Context, handlers.Tx, *handlers.Call, In) (Out, error), or the same without the Tx, or with a "+
			"*handlers.Durable in place of both, with a struct as In; this one is %s", h.Func, h.File, t)
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
