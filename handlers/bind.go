package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strings"
)

// Handler is the function that a tool dispatches to.
type Handler struct {
	// Transactional tells the two signatures apart: true when the function takes the transaction of its receipt.
	Transactional bool
	// File and Func say where it is written, such as handlers/leads.go and Leads.Create.
	File, Func string

	input reflect.Type
	run   func(ctx context.Context, tx Tx, call *Call, in reflect.Value) (any, error)
}

// Run decodes the input, runs the function and encodes its output. tx is used by transactional handlers alone.
// It does not recover a panic: that is the caller's part, who knows what to do with the transaction.
func (h *Handler) Run(ctx context.Context, tx Tx, call *Call) (json.RawMessage, error) {
	in := reflect.New(h.input)
	if err := json.Unmarshal(call.Input, in.Interface()); err != nil {
		return nil, &Failure{
			Message: fmt.Sprintf("The input passed the schema of %s and does not fit %s in %s: %v", call.Tool, h.Func, h.File, err),
			Details: map[string]string{"reason": "input_does_not_fit_handler"},
		}
	}
	out, err := h.run(ctx, tx, call, in.Elem())
	if err != nil {
		return nil, err
	}
	var encoded bytes.Buffer
	enc := json.NewEncoder(&encoded)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, &OutputError{Err: err}
	}
	return bytes.TrimSpace(encoded.Bytes()), nil
}

// OutputError is the error of an output that can not be written as JSON, such as a NaN.
type OutputError struct{ Err error }

func (e *OutputError) Error() string {
	return "the output can not be written as JSON: " + e.Err.Error()
}
func (e *OutputError) Unwrap() error { return e.Err }

// Handlers holds the functions of all domains, by tool.
type Handlers struct{ byKey map[string]*Handler }

// For returns the function of a tool. The tool is cut at its first dot into domain and method; both are compared without
// case, dots and underscores, so that comms.send_sms finds Comms.SendSMS.
func (h *Handlers) For(tool string) (*Handler, bool) {
	found, ok := h.byKey[key(tool)]
	return found, ok
}

func key(tool string) string {
	domain, method, _ := strings.Cut(tool, ".")
	return fold(domain) + "." + fold(method)
}

var separators = strings.NewReplacer("_", "", ".", "")

func fold(s string) string { return strings.ToLower(separators.Replace(s)) }

var (
	contextType = reflect.TypeFor[context.Context]()
	txType      = reflect.TypeFor[Tx]()
	callType    = reflect.TypeFor[*Call]()
	errorType   = reflect.TypeFor[error]()
)

// Bind finds the handlers of the domains: each exported method of each value is one. A method with another signature
// than the two of the package's comment, or two methods for one tool name, is an error that names every such method.
func Bind(domains ...any) (*Handlers, error) {
	bound := &Handlers{byKey: map[string]*Handler{}}
	var faults []error
	for _, domain := range domains {
		t := reflect.TypeOf(domain)
		name := t
		if name.Kind() == reflect.Pointer {
			name = name.Elem()
		}
		for method := range t.Methods() {
			h, err := newHandler(reflect.ValueOf(domain), name.Name(), method)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			k := fold(name.Name()) + "." + fold(method.Name)
			if other, taken := bound.byKey[k]; taken {
				faults = append(faults, fmt.Errorf("%s and %s answer to the same tool name: rename one", h.Func, other.Func))
				continue
			}
			bound.byKey[k] = h
		}
	}
	return bound, errors.Join(faults...)
}

func newHandler(domain reflect.Value, typeName string, method reflect.Method) (*Handler, error) {
	h := &Handler{Func: typeName + "." + method.Name, File: fileOf(method)}
	fn := domain.MethodByName(method.Name)
	t := fn.Type()
	fits := func(in ...reflect.Type) bool {
		if t.IsVariadic() || t.NumIn() != len(in)+1 || t.NumOut() != 2 || t.Out(1) != errorType {
			return false
		}
		for i, want := range in {
			if t.In(i) != want {
				return false
			}
		}
		return t.In(len(in)).Kind() == reflect.Struct
	}
	switch {
	case fits(contextType, txType, callType):
		h.Transactional = true
		h.input = t.In(3)
		h.run = func(ctx context.Context, tx Tx, call *Call, in reflect.Value) (any, error) {
			return results(fn.Call([]reflect.Value{reflect.ValueOf(&ctx).Elem(), reflect.ValueOf(&tx).Elem(), reflect.ValueOf(call), in}))
		}
	case fits(contextType, callType):
		h.input = t.In(2)
		h.run = func(ctx context.Context, _ Tx, call *Call, in reflect.Value) (any, error) {
			return results(fn.Call([]reflect.Value{reflect.ValueOf(&ctx).Elem(), reflect.ValueOf(call), in}))
		}
	default:
		return nil, fmt.Errorf("%s in %s is no handler: a domain's exported methods must have the form "+
			"func(context.Context, handlers.Tx, *handlers.Call, In) (Out, error), or the same without the Tx, with a struct as In; it is %s",
			h.Func, h.File, t)
	}
	return h, nil
}

func results(out []reflect.Value) (any, error) {
	err, _ := out[1].Interface().(error)
	return out[0].Interface(), err
}

// fileOf says where a method is written, from the repository's top, such as handlers/leads.go.
func fileOf(method reflect.Method) string {
	file, _ := runtime.FuncForPC(method.Func.Pointer()).FileLine(method.Func.Pointer())
	return path.Join(path.Base(path.Dir(file)), path.Base(file))
}
