package builtin_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// noDatabase refuses every statement: a handler runs until its first one.
type noDatabase struct{}

var errNoDatabase = errors.New("no database")

func (noDatabase) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNoDatabase
}
func (noDatabase) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errNoDatabase }
func (noDatabase) QueryRow(context.Context, string, ...any) pgx.Row        { return noRow{} }

type noRow struct{}

func (noRow) Scan(...any) error { return errNoDatabase }

// FuzzDispatch feeds random JSON to every tool of the built-in registry: an input that passes the schema reaches the
// handler whole, and neither panics.
func FuzzDispatch(f *testing.F) {
	reg, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		f.Fatal(err)
	}
	bound, err := binding.Bind(builtin.Domains()...)
	if err != nil {
		f.Fatal(err)
	}
	tools := reg.Tools()
	for i := range tools {
		for _, seed := range []string{
			`{}`, `{"title": "a", "domain": "business", "content": "b"}`, `{"name": "a", "phone": "1", "suburb": "s"}`,
			`{"limit": 1e2, "query": "%_\\"}`, `{"limit": 1.0, "query": ""}`, `{"task_id": "\u0000", "patch": {"title": null}}`,
			`{"entity_id": "x", "patch": {"contact": {"a": [[[]]]}}}`, `{"due_at": "2026-02-30T25:61:00Z", "task_id": "1"}`,
			`{"method": "GET", "url": "http://[::1]:99999/", "headers": {"Host": "x"}}`, `[]`, `null`, `1e999`,
			`{"to": "a@b\r\nBcc: c@d", "subject": "x", "body": "", "context_ref": {}}`,
			`{"priority": "low", "title": "t", "domain": "both", "due_at": "2026-01-01T00:00:00+23:59", "context_ref": {"id": 7}}`,
		} {
			f.Add(i, []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, i int, input []byte) {
		tool := tools[((i%len(tools))+len(tools))%len(tools)]
		if len(tool.ValidateInput(input)) > 0 {
			return
		}
		handler, ok := bound.For(tool.Name)
		if !ok {
			return
		}
		call := &handlers.Call{ID: "0b0f1c7e-0000-4000-8000-000000000001", Tool: tool.Name, Attempt: 1,
			Input: json.RawMessage(input)}
		_, err := handler.Run(t.Context(), call, noDatabase{}, nil)
		if err != nil && strings.Contains(err.Error(), "does not fit "+handler.Func) {
			t.Errorf("%s accepts an input that its handler cannot take: %s: %v", tool.Name, input, err)
		}
	})
}
