package provider_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/google/go-cmp/cmp"
)

func TestEachKindOfErrorHasItsJudgment(t *testing.T) {
	t.Parallel()
	const unavailable, refusal, limit = "provider_unavailable", 10 * time.Minute, 30 * time.Second
	type row = provider.Judgment
	table := map[string]row{
		"unreachable":       {unavailable, true, "any", 0, false, true, false},
		"unauthorized":      {"provider_auth", false, "any", refusal, true, false, false},
		"not_found":         {"provider_refused", false, "any", refusal, true, false, false},
		"bad_request":       {"provider_refused", false, "none", 0, false, false, false},
		"request_too_large": {"request_too_large", false, "none", 0, false, false, false},
		"context_too_long":  {"context_too_long", false, "larger", 0, false, false, false},
		"rate_limited":      {"rate_limited", true, "any", limit, false, false, false},
		"overloaded":        {unavailable, true, "any", limit, false, true, false},
		"unavailable":       {unavailable, true, "any", 0, false, true, false},
		"late":              {"first_content_late", true, "any", 0, false, true, true},
		"stalled":           {unavailable, true, "any", 0, false, true, false},
		"cut":               {"stream_cut", true, "any", 0, false, true, true},
		"garbled":           {unavailable, true, "any", 0, false, true, true},
		"answer_too_large":  {"answer_too_large", false, "none", 0, false, false, true},
		"of another kind":   {unavailable, true, "any", 0, false, false, false},
	}
	for kind, want := range table {
		got := provider.Judge(provider.ErrorKind(kind))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
		want.Failover = "none"
		if kind != "answer_too_large" {
			want.Code, want.Retry = "stream_cut", true
		}
		if diff := cmp.Diff(want, got.AfterContent()); diff != "" {
			t.Errorf("%s after content: %s", kind, diff)
		}
	}
	for _, kind := range kinds(t) {
		if _, listed := table[kind]; !listed {
			t.Errorf("%s has no row", kind)
		}
	}
}

// kinds are the values of the constants of ErrorKind.
func kinds(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "ErrorKind" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, value)
		}
		return true
	})
	if len(all) != 14 {
		t.Errorf("%d kinds of errors: %v", len(all), all)
	}
	return all
}

func TestHowLongATargetCoolsDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  provider.Error
		want time.Duration
	}{
		{provider.Error{Kind: provider.RateLimited}, 30 * time.Second},
		{provider.Error{Kind: provider.RateLimited, Status: 503}, 30 * time.Second},
		{provider.Error{Kind: provider.RateLimited, RetryAfter: time.Second}, time.Second},
		{provider.Error{Kind: provider.Overloaded, Status: 503}, 0},
		{provider.Error{Kind: provider.Overloaded, Status: 503, RetryAfter: time.Second}, time.Second},
		{provider.Error{Kind: provider.Overloaded, Status: 529}, 30 * time.Second},
		{provider.Error{Kind: provider.Overloaded, Status: 200}, 30 * time.Second},
		{provider.Error{Kind: provider.Unauthorized, RetryAfter: time.Second}, 10 * time.Minute},
		{provider.Error{Kind: provider.NotFound}, 10 * time.Minute},
		{provider.Error{Kind: provider.Unavailable, RetryAfter: time.Second}, 0},
		{provider.Error{Kind: provider.BadRequest}, 0},
	} {
		if got := c.err.Cooldown(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.err, got, c.want)
		}
	}
}
