package servers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/handlers"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"
)

// about is what the tool about says.
type about struct {
	Env  []string                   `json:"env"`
	PID  int                        `json:"pid"`
	Meta map[string]json.RawMessage `json:"meta"`
}

func (p *place) about() (a about) {
	p.t.Helper()
	ctx := trace.ContextWithSpanContext(p.t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	output, err := p.run(ctx, "about", `{}`)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(output), &a); err != nil {
		p.t.Fatal(err)
	}
	return a
}

// alive reports whether there is a process, or what one left behind that nobody waited for.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// until waits for what is to come.
func until(t testing.TB, what string, come func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !come(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// outcomeUnknown reports whether a call with this error runs again if its tool may, and otherwise ends as outcome_unknown.
func outcomeUnknown(err error) bool {
	var failure *handlers.Failure
	return errors.As(err, new(*handlers.TransientError)) && errors.As(err, &failure) && failure.Code == "outcome_unknown"
}

func TestAServerIsConnectedAtItsFirstCallAndAgainWhenItHasEnded(t *testing.T) {
	t.Parallel()
	p := open(t, started(""), nil)
	if n := p.logs.Len(); n != 0 {
		t.Fatalf("%d lines of the log before the first call", n)
	}
	first := p.about()
	if second := p.about(); second.PID != first.PID {
		t.Errorf("the second call started another program")
	}
	if _, err := p.run(t.Context(), "dies", `{}`); !outcomeUnknown(err) {
		t.Errorf("a program that died during a call: %v", err)
	}
	until(t, "the end of the program", func() bool { return !alive(first.PID) })
	if third := p.about(); third.PID == first.PID {
		t.Errorf("no other program was started")
	}
	ended := func() int { return p.logs.FilterMessage("the connection to the MCP server has ended").Len() }
	before := ended()
	if err := syscall.Kill(p.about().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the connection", func() bool { return ended() > before })
	p.about()
}

func TestACallKnowsItsKeyAndItsTrace(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, p *place) {
		a := p.about()
		if got := string(a.Meta["io.github.gemworker/key"]); got != strconv.Quote(p.call.ID) {
			t.Errorf("the key is %s", got)
		}
		if got := string(a.Meta["traceparent"]); got != `"00-01000000000000000000000000000000-0200000000000000-00"` {
			t.Errorf("traceparent is %s", got)
		}
	})
}

func TestAProgramGetsTheNamedVariablesAndItsSecretsAreShownNowhere(t *testing.T) {
	t.Parallel()
	secret := "hunter2-" + strings.Repeat("x", 20)
	p := open(t, started("chatty", "SECRET", "PLAIN"), map[string]string{"SECRET": secret, "PLAIN": "yes", "OTHER": "no"})
	for _, v := range p.about().Env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "PATH" || name == "HOME" || name == "TMPDIR":
		case name == "SECRET" && value == "[SECRET]" || name == "PLAIN" && value == "yes":
		default:
			t.Errorf("it has %s", v)
		}
	}
	_, err := p.run(t.Context(), "refuses", `{}`)
	if err == nil || !strings.Contains(err.Error(), "not with [SECRET]") {
		t.Errorf("the error is %v", err)
	}
	said := p.logs.FilterMessage("the MCP server says").Len()
	if said == 0 || said > 60 {
		t.Errorf("%d lines of stderr", said)
	}
	for _, line := range p.logs.All() {
		if text := fmt.Sprint(line.ContextMap()); strings.Contains(text, secret) || len(text) > 700 {
			t.Errorf("the log has %q", text)
		}
	}
}

func TestVariablesThatAreNotSetAreNamed(t *testing.T) {
	t.Parallel()
	for _, settings := range []elsewhere.Server{started("", "ONE", "SET", "TWO"), {URL: "http://127.0.0.1:1", HeaderEnv: map[string]string{"A": "ONE", "B": "SET", "C": "TWO"}}} {
		p := open(t, settings, map[string]string{"SET": "x", "TWO": " "})
		_, err := p.run(t.Context(), "echo", `{}`)
		var unset *handlers.NotConfigured
		if !errors.As(err, &unset) || fmt.Sprint(unset.RequiredEnv) != "[ONE TWO]" {
			t.Errorf("%v", err)
		}
	}
	p := open(t, elsewhere.Server{Command: "no-such-program-anywhere"}, nil)
	for range 2 {
		if _, err := p.run(t.Context(), "echo", `{}`); !errors.As(err, new(*handlers.NotConfigured)) {
			t.Errorf("a program that is not there: %v", err)
		}
	}
}

func TestAProgramThatHangsHoldsNoCallAndEndsWithTheWorker(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deaf", "mute", "broken"} {
		p := open(t, started(how), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := p.run(ctx, "echo", `{}`); err == nil {
			t.Errorf("%s: it answered", how)
		}
		p.Close()
		until(t, "the end of "+how, func() bool { return p.logs.FilterMessage("the program of the MCP server has ended").Len() > 0 })
		if _, err := p.run(t.Context(), "echo", `{}`); err == nil {
			t.Errorf("%s: a call after Close", how)
		}
	}
}

func TestAProgramThatStopsReadingHoldsNoCall(t *testing.T) {
	t.Parallel()
	p := open(t, started(""), nil)
	pid := p.about().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 { // more than a pipe holds
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			handler, _ := p.For("lab.echo")
			_, err := handler.Run(ctx, &handlers.Call{ID: "1", Input: json.RawMessage(`{"x": "` + strings.Repeat("x", 100_000) + `"}`)}, nil, nil)
			if !outcomeUnknown(err) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	p.Close()
	until(t, "its end", func() bool { return !alive(pid) })
}

func TestCloseEndsAProgramWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	p := open(t, started("stubborn"), nil)
	pid := p.about().PID
	said := p.logs.FilterMessage("the MCP server says")
	until(t, "its word", func() bool {
		said = p.logs.FilterMessage("the MCP server says")
		return said.Len() > 0
	})
	sleeper, err := strconv.Atoi(strings.TrimPrefix(said.All()[0].ContextMap()["line"].(string), "sleeper "))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	until(t, "the end of both", func() bool { return !alive(pid) && gone(sleeper) })
}

// gone reports whether a process runs no more. Whoever adopted it may not have waited for it yet.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil && !alive(pid) || strings.Contains(string(stat), ") Z ")
}

func TestACallThatEndsIsCancelledAtTheServer(t *testing.T) {
	t.Parallel()
	asked, left := make(chan bool), make(chan string, 1)
	for name, settings := range map[string]elsewhere.Server{
		"stdio":    started(""),
		"sessions": reached(t, nil, nil),
		// The newest protocol has no session: the request is cancelled by its end.
		"stateless": reached(t, &sdk.StreamableHTTPOptions{Stateless: true}, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("Mcp-Name") == "hangs" {
				_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that its client has left
				close(asked)
				<-r.Context().Done()
				left <- "7"
				return
			}
			next.ServeHTTP(w, r)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t, settings, nil)
			other := &place{Servers: p.Servers, t: t}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, err := other.run(ctx, "hangs", `{"which": 7}`)
				ended <- err
			}()
			if name == "stateless" {
				<-asked
			} else if _, err := p.run(t.Context(), "began", `{}`); err != nil {
				t.Error(err)
			}
			cancel()
			if err := <-ended; !outcomeUnknown(err) {
				t.Errorf("the error is %v", err)
			}
			if n := len(other.call.Effects().ExternalCalls); n != 1 {
				t.Errorf("%d effects", n)
			}
			told := ""
			if name == "stateless" {
				told = <-left
			} else {
				told, _ = p.run(t.Context(), "cancelled", `{}`)
			}
			if !strings.Contains(told, "7") {
				t.Errorf("the server was told %q", told)
			}
		})
	}
}

func TestAServerThatKeepsToNoRules(t *testing.T) {
	t.Parallel()
	asker := open(t, started("asker"), nil)
	_, err := asker.run(t.Context(), "do", `{}`)
	var failure *handlers.Failure
	if !errors.As(err, &failure) || !strings.HasPrefix(failure.Message, "The server asked for elicitation/create, which GEM does not answer") ||
		!strings.Contains(failure.Message, "I heard: GEM calls tools") {
		t.Errorf("one that asks although nobody can answer: %v", err)
	}
	flood := open(t, started("flood"), nil)
	if _, err := flood.run(t.Context(), "do", `{}`); !outcomeUnknown(err) {
		t.Errorf("one whose answer has no end: %v", err)
	}
	many := open(t, started("many"), nil)
	if _, err := many.run(t.Context(), "do", `{}`); err == nil || !strings.Contains(err.Error(), "more than 100 pages") {
		t.Errorf("one whose list has no end: %v", err)
	}
	pings := open(t, started("pings"), nil)
	if _, err := pings.run(t.Context(), "do", `{}`); !outcomeUnknown(err) {
		t.Errorf("one that asks without end: %v", err)
	}
	large := open(t, started("large"), nil)
	if _, err := large.run(t.Context(), "do", `{}`); err == nil || !strings.Contains(err.Error(), "more than 16 MiB") {
		t.Errorf("one whose list is long: %v", err)
	}
}

// A server at a URL, and the ways in which it can fail.
func TestAServerAtAURLThatFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer    func(w http.ResponseWriter)
		transient bool
		after     time.Duration
		code      string
		want      string
	}{
		"credentials": {func(w http.ResponseWriter) {
			http.Error(w, "no such token: Bearer tok_1234\\/5678", http.StatusUnauthorized)
		}, false, 0, "",
			"does not let the worker in: it answered 401 Unauthorized: no such token: Bearer [TOKEN]. To the operator: look at the value of TOKEN."},
		"busy": {func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}, true, 7 * time.Second, "", "429 Too Many Requests"},
		"ill":  {func(w http.ResponseWriter) { http.Error(w, "out of\nmemory", http.StatusInternalServerError) }, true, 0, "", "failed: it answered 500 Internal Server Error: out of memory"},
		"lost": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusGatewayTimeout) }, true, 0, "outcome_unknown", "not known"},
		"cut": {func(w http.ResponseWriter) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		}, true, 0, "outcome_unknown", "not known"},
		"half": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"jsonrpc":`))
		}, true, 0, "outcome_unknown", "not known"},
		"no stream": {func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }, true, 0, "outcome_unknown", "not known"},
		"redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, false, 0, "", "redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var failing atomic.Bool
			settings := reached(t, nil, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Header.Get("X-Key") != "tok_1234/5678" || r.Header.Get("Authorization") != "Bearer tok_1234/5678" {
					t.Errorf("a request with %v", r.Header)
				}
				if failing.Load() && r.Method == http.MethodPost {
					c.answer(w)
					return
				}
				next.ServeHTTP(w, r)
			})
			settings.HeaderEnv = map[string]string{"X-Key": "TOKEN", "Authorization": "TOKEN"}
			p := open(t, settings, map[string]string{"TOKEN": "tok_1234/5678"})
			p.about()
			failing.Store(true)
			_, err := p.run(t.Context(), "echo", `{}`)
			failing.Store(false)
			var transient *handlers.TransientError
			var failure *handlers.Failure
			if !errors.As(err, &failure) || failure.Code != c.code || !strings.Contains(failure.Message, c.want) || errors.As(err, &transient) != c.transient ||
				c.transient && transient.After != c.after {
				t.Errorf("the error is %v %+v %+v", err, failure, transient)
			}
			until(t, "the next call", func() bool {
				_, err := p.run(t.Context(), "echo", `{}`)
				return err == nil
			})
			for _, line := range p.logs.All() {
				if strings.Contains(fmt.Sprint(line.ContextMap()), "tok_1234/5678") {
					t.Errorf("the log has %v", line)
				}
			}
		})
	}
}

func TestAServerThatForgotTheSessionIsAskedOnceMore(t *testing.T) {
	t.Parallel()
	var forget atomic.Bool
	var calls atomic.Int64
	settings := reached(t, nil, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Mcp-Session-Id") != "" && forget.Swap(false) {
			http.Error(w, "session not found", http.StatusNotFound)
			return
		}
		if r.Header.Get("Mcp-Name") != "" || r.Header.Get("Mcp-Session-Id") != "" {
			calls.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	p := open(t, settings, nil)
	p.about()
	forget.Store(true)
	p.about()
}

func TestAServerThatCannotBeReachedIsTriedAgain(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	p := open(t, elsewhere.Server{URL: "http://" + address}, nil)
	for range 4 {
		_, err := p.run(t.Context(), "echo", `{}`)
		if transient := (*handlers.TransientError)(nil); !errors.As(err, &transient) || outcomeUnknown(err) || !strings.Contains(err.Error(), "nothing was sent") {
			t.Errorf("%v", err)
		}
		if n := len(p.call.Effects().ExternalCalls); n > 0 {
			t.Errorf("%d effects", n)
		}
	}
	failed := p.logs.FilterMessage("the MCP server cannot be reached").Len()
	if failed == 0 || failed > 4 {
		t.Errorf("%d attempts", failed)
	}
}
