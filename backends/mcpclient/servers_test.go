package mcpclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/handlers"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// backend is one server, the domain lab.
type backend struct {
	*mcpclient.Servers
	t    testing.TB
	logs *observer.ObservedLogs
	call *handlers.Call // the last one
}

// start runs a tool in the background, and returns the channel that gets its error.
func (p *backend) start(ctx context.Context, tool, input string) <-chan error {
	handler, _ := p.For("lab." + tool)
	ended := make(chan error, 1)
	go func() {
		_, err := handler.Run(ctx, &handlers.Call{ID: "1", Input: json.RawMessage(input)}, nil, nil)
		ended <- err
	}()
	return ended
}

// open returns a backend. environment has the variables of the worker.
func open(t testing.TB, settings backends.Server, environment map[string]string) *backend {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	s := mcpclient.New(map[string]backends.Server{"lab": settings},
		func(variable string) string { return environment[variable] }, zap.New(core))
	t.Cleanup(s.Close)
	return &backend{Servers: s, t: t, logs: logs}
}

// started is a server that is a program.
func started(how string, env ...string) backends.Server {
	return backends.Server{Command: os.Args[0], Args: []string{"mcp-server", how}, Env: env}
}

// reached is a server at a URL. Each request passes through around.
func reached(t testing.TB, o *sdk.StreamableHTTPOptions,
	around func(w http.ResponseWriter, r *http.Request, next http.Handler)) backends.Server {
	t.Helper()
	server := newServer()
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, o)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if around == nil {
			handler.ServeHTTP(w, r)
		} else {
			around(w, r, handler)
		}
	}))
	t.Cleanup(func() {
		h.Close()
		for session := range server.Sessions() { // which a client left that found it broken
			_ = session.Close()
		}
	})
	return backends.Server{URL: h.URL}
}

// run calls a tool of the domain lab.
func (p *backend) run(ctx context.Context, tool, input string) (string, error) {
	p.t.Helper()
	handler, ok := p.For("lab." + tool)
	if !ok {
		p.t.Fatalf("there is no handler for lab.%s", tool)
	}
	p.call = &handlers.Call{ID: "0198c0de-0000-7000-8000-000000000001", Tool: "lab." + tool, Attempt: 1,
		Input: json.RawMessage(input)}
	output, err := handler.Run(ctx, p.call, nil, nil)
	return string(output), err
}

// servers are all kinds of connections.
func kinds(t *testing.T, test func(t *testing.T, p *backend)) {
	t.Helper()
	for name, settings := range map[string]func(t testing.TB) backends.Server{
		"stdio": func(testing.TB) backends.Server { return started("") },
		"stateless": func(t testing.TB) backends.Server {
			return reached(t, &sdk.StreamableHTTPOptions{Stateless: true}, nil)
		},
		"sessions": func(t testing.TB) backends.Server { return reached(t, nil, nil) },
		"plain JSON": func(t testing.TB) backends.Server {
			return reached(t, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true,
				PropagateRequestCancellation: true}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, settings(t), nil))
		})
	}
}

func TestAResultBecomesAnOutput(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, p *backend) {
		for _, c := range []struct{ tool, input, want string }{
			{"echo", `{"id": 12345678901234567890, "x": 1.10, "s": "<ü>"}`, `{"id":12345678901234567890,"x":1.10,"s":"<ü>"}`},
			{"say_hello_world", `{}`, `{"text":"hello\nworld"}`},
			{"sayHelloWorld", `{}`, `{"text":"hello\nworld"}`},
			{"nothing", `{}`, `{"text":""}`},
			{"list", `{}`, `{"text":"[1]"}`},
			{"picture", `{}`,
				`{"content":[{"type":"image","mimeType":"image/png","data":"cG5n"},{"type":"resource_link","uri":"file:///a","name":"a"}],"text":"see"}`},
		} {
			got, err := p.run(t.Context(), c.tool, c.input)
			if err != nil || normal(t, got) != normal(t, c.want) {
				t.Errorf("%s = %s, %v; want %s", c.tool, got, err, c.want)
			}
			if calls := p.call.Effects().ExternalCalls; len(calls) != 1 || calls[0].Service != "lab" {
				t.Errorf("%s: the effects are %+v", c.tool, calls)
			}
		}
	})
}

// normal is JSON without white space, otherwise unchanged.
func normal(t *testing.T, text string) string {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Errorf("%q is no JSON: %v", text, err)
	}
	encoded, _ := json.Marshal(v)
	return string(encoded)
}

func TestAnErrorSaysWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, p *backend) {
		for _, c := range []struct{ tool, want string }{
			{"fails", "there is no such \uFFFD issue"},
			{"refuses", "not with"},
			{"asks", "licit"},
			{"large", "it may have 1048576 (1 MiB)"},
			{"two_names", "several tools"},
		} {
			got, err := p.run(t.Context(), c.tool, `{}`)
			var failure *handlers.Failure
			if !errors.As(err, &failure) || failure.Code != "" || !strings.Contains(failure.Message, c.want) {
				t.Errorf("%s = %s, %v; want a failure with %q", c.tool, got, err, c.want)
			}
			if errors.As(err, new(*handlers.TransientError)) {
				t.Errorf("%s is tried again: %v", c.tool, err)
			}
		}
		_, err := p.run(t.Context(), "no_such", `{}`)
		if !errors.As(err, new(*handlers.NotConfigured)) {
			t.Errorf("a tool that the server lacks: %v", err)
		}
	})
}
