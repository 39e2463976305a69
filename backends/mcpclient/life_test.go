package mcpclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/testdb"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"
)

// about is what the tool about says.
type about struct {
	Env  []string                   `json:"env"`
	PID  int                        `json:"pid"`
	Meta map[string]json.RawMessage `json:"meta"`
}

func (p *backend) about() (a about) {
	p.t.Helper()
	ctx := trace.ContextWithSpanContext(p.t.Context(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
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

// outcomeUnknown reports whether a call with this error runs again if its tool may, and otherwise ends as
// outcome_unknown.
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
	testdb.Eventually(t, "the end of the program", func() bool { return !alive(first.PID) })
	if third := p.about(); third.PID == first.PID {
		t.Errorf("no other program was started")
	}
	ended := func() int { return p.logs.FilterMessage("the connection to the MCP server has ended").Len() }
	before := ended()
	if err := syscall.Kill(p.about().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, "the end of the connection", func() bool { return ended() > before })
	p.about()
}

func TestACallKnowsItsKeyAndItsTrace(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, p *backend) {
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
	for _, settings := range []backends.Server{started("", "ONE", "SET", "TWO"),
		{URL: "http://127.0.0.1:1", HeaderEnv: map[string]string{"A": "ONE", "B": "SET", "C": "TWO"}}} {
		p := open(t, settings, map[string]string{"SET": "x", "TWO": " "})
		_, err := p.run(t.Context(), "echo", `{}`)
		var unset *handlers.NotConfigured
		if !errors.As(err, &unset) || fmt.Sprint(unset.RequiredEnv) != "[ONE TWO]" {
			t.Errorf("%v", err)
		}
	}
	p := open(t, backends.Server{Command: "no-such-program-anywhere"}, nil)
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
		testdb.Eventually(t, "the end of "+how, func() bool {
			return p.logs.FilterMessage("the program of the MCP server has ended").
				Len() > 0
		})
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
			_, err := handler.Run(ctx, &handlers.Call{ID: "1",
				Input: json.RawMessage(`{"x": "` + strings.Repeat("x", 100_000) + `"}`)}, nil, nil)
			if !outcomeUnknown(err) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	p.Close()
	testdb.Eventually(t, "its end", func() bool { return !alive(pid) })
}

func TestCloseEndsAProgramWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	p := open(t, started("stubborn"), nil)
	pid := p.about().PID
	said := p.logs.FilterMessage("the MCP server says")
	testdb.Eventually(t, "its word", func() bool {
		said = p.logs.FilterMessage("the MCP server says")
		return said.Len() > 0
	})
	sleeper, err := strconv.Atoi(strings.TrimPrefix(said.All()[0].ContextMap()["line"].(string), "sleeper "))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	testdb.Eventually(t, "the end of both", func() bool { return !alive(pid) && gone(sleeper) })
}

// gone reports whether a process has exited. Its new parent may not have waited for it yet.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil && !alive(pid) || strings.Contains(string(stat), ") Z ")
}

func TestACallThatEndsIsCancelledAtTheServer(t *testing.T) {
	t.Parallel()
	asked, left := make(chan bool), make(chan string, 1)
	for name, settings := range map[string]backends.Server{
		"stdio":    started(""),
		"sessions": reached(t, nil, nil),
		// The newest protocol has no session: the request is cancelled by its end.
		"stateless": reached(t, &sdk.StreamableHTTPOptions{Stateless: true},
			func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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
			other := &backend{Servers: p.Servers, t: t}
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
	if !errors.As(err, &failure) || !strings.HasPrefix(failure.Message,
		"The server asked for elicitation/create, which GEM does not answer") ||
		!strings.Contains(failure.Message, "I heard: GEM calls tools") {
		t.Errorf("one that asks although nobody can answer: %v", err)
	}
	flood := open(t, started("flood"), nil)
	for err = nil; !outcomeUnknown(err); { // its answer is skipped, and the call ends with its time
		limited, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err = flood.run(limited, "do", `{}`); err == nil {
			t.Fatal("one whose answer has no end succeeded")
		}
		cancel()
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
			"does not let the worker in: it answered 401 Unauthorized: no such token: Bearer [TOKEN]. To the operator: look " +
				"at the value of TOKEN."},
		"busy": {func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}, true, 7 * time.Second, "", "429 Too Many Requests"},
		"ill": {func(w http.ResponseWriter) { http.Error(w, "out of\nmemory", http.StatusInternalServerError) }, true, 0, "",
			"failed: it answered 500 Internal Server Error: out of memory"},
		"lost": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusGatewayTimeout) }, true, 0, "outcome_unknown",
			"not known"},
		"cut": {func(w http.ResponseWriter) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		}, true, 0, "outcome_unknown", "not known"},
		"half": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"jsonrpc":`))
		}, true, 0, "outcome_unknown", "not known"},
		"no stream": {func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }, true, 0,
			"outcome_unknown", "not known"},
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
			if !errors.As(err, &failure) || failure.Code != c.code || !strings.Contains(failure.Message, c.want) ||
				errors.As(err, &transient) != c.transient ||
				c.transient && transient.After != c.after {
				t.Errorf("the error is %v %+v %+v", err, failure, transient)
			}
			testdb.Eventually(t, "the next call", func() bool {
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

func TestAMediaTypeThatEchoesASecretIsShownNowhere(t *testing.T) {
	t.Parallel()
	const secret = "Tok-Echoed-By-The-Server"
	settings := reached(t, nil, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/"+r.Header.Get("X-Key"))
	})
	settings.HeaderEnv = map[string]string{"X-Key": "TOKEN"}
	p := open(t, settings, map[string]string{"TOKEN": secret})
	_, err := p.run(t.Context(), "echo", `{}`)
	if err == nil || strings.Contains(strings.ToLower(err.Error()), "echoed") {
		t.Errorf("the error is %v", err)
	}
	for _, line := range p.logs.All() {
		if strings.Contains(strings.ToLower(fmt.Sprint(line.ContextMap())), "echoed") {
			t.Errorf("the log has %v", line.ContextMap())
		}
	}
}

// The call then counts as not sent, and may run again in any mode.
func TestACallThatEndsBeforeItsRequestLeavesDoesNotReachTheServer(t *testing.T) {
	t.Parallel()
	var called atomic.Int64
	server := reached(t, nil, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
			called.Add(1)
		}
	})
	message := `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}}`
	if sent := mcpclient.SendLate(t.Context(), server.URL, message); sent || called.Load() != 0 {
		t.Errorf("it counts as sent: %t, and the server has got it %d times", sent, called.Load())
	}
}

// The server takes a new connection for each request.
func TestACallWhoseConnectionCannotBeSecuredWasNotSent(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"the handshake fails": false, "the call ends before the handshake": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			ended := make(chan struct{})
			var fails atomic.Bool
			server := newServer()
			h := httptest.NewUnstartedServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
				&sdk.StreamableHTTPOptions{Stateless: true}))
			h.Config.SetKeepAlivesEnabled(false)
			h.Config.ErrorLog = log.New(io.Discard, "", 0)
			h.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				if !fails.Load() {
					return nil, nil
				}
				if early {
					end()
					<-ended
				}
				return nil, errors.New("no")
			}}
			h.StartTLS()
			t.Cleanup(h.Close)
			p := open(t, backends.Server{URL: h.URL}, nil)
			p.about()
			fails.Store(true)
			_, err := p.run(ctx, "echo", `{}`)
			close(ended)
			if transient := (*handlers.TransientError)(nil); !errors.As(err, &transient) || !transient.NothingSent {
				t.Errorf("the error is %v", err)
			}
			if n := len(p.call.Effects().ExternalCalls); n > 0 {
				t.Errorf("%d effects", n)
			}
			fails.Store(false)
			p.about()
		})
	}
}

func forgot(code, message, id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","error":{"code":%s,"message":%q},"id":%s}`, code, message, id)
}

// forgetful is a server that forgets the session of each call, and counts the calls. then may answer an
// initialize after the first call, and reports whether it did.
func forgetful(t *testing.T, calls *atomic.Int64, then func(w http.ResponseWriter) bool) backends.Server {
	return reached(t, nil, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var m called
		_ = json.Unmarshal(body, &m)
		switch {
		case m.Method == "tools/call":
			calls.Add(1)
			http.Error(w, "session not found", http.StatusNotFound)
		case m.Method == "initialize" && calls.Load() > 0 && then(w):
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func TestACallWhoseSessionIsForgottenAgainIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempt int
		then    func(w http.ResponseWriter) bool
		calls   int64
	}{
		"the new session is forgotten": {1, func(http.ResponseWriter) bool { return false }, 2},
		"there is no new session": {1, func(w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}, 1},
		"the second attempt": {2, func(http.ResponseWriter) bool { return false }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			p := open(t, forgetful(t, &calls, c.then), nil)
			handler, _ := p.For("lab.echo")
			_, err := handler.Run(t.Context(), &handlers.Call{ID: "1", Attempt: c.attempt, Input: json.RawMessage(`{}`)},
				nil, nil)
			transient := (*handlers.TransientError)(nil)
			if !outcomeUnknown(err) || errors.As(err, &transient) && transient.NothingSent {
				t.Errorf("%v", err)
			}
			if n := calls.Load(); n != c.calls {
				t.Errorf("%d calls, want %d", n, c.calls)
			}
		})
	}
}

func TestAResultUnderAnyStatusLeavesTheCallOpen(t *testing.T) {
	t.Parallel()
	for _, status := range []int{303, 401, 403, 408, 425, 429, 500, 501, 503, 599} {
		for name, c := range map[string]struct{ kind, body string }{
			"a result":            {"application/json", fine},
			"another's result":    {"application/json", strings.Replace(fine, "ID", "null", 1)},
			"in a batch":          {"application/json", "[" + fine + "]"},
			"as an event":         {"text/event-stream", ": first\n\ndata: " + fine + "\n\n"},
			"as an event in text": {"text/plain", "data: " + fine + "\n\n"},
			"its id as a text":    {"application/json", strings.Replace(fine, "ID", `"ID"`, 1)},
			"cut off":             {"application/json", strings.TrimSuffix(fine, "}]}}")},
			"long":                {"application/json", strings.Replace(fine, "done", strings.Repeat("x", 3<<20), 1)},
		} {
			t.Run(fmt.Sprintf("%d %s", status, name), func(t *testing.T) {
				t.Parallel()
				p := open(t, reached(t, nil, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					body, _ := io.ReadAll(r.Body)
					r.Body = io.NopCloser(bytes.NewReader(body))
					var m called
					if _ = json.Unmarshal(body, &m); m.Method != "tools/call" {
						next.ServeHTTP(w, r)
						return
					}
					w.Header().Set("Content-Type", c.kind)
					w.Header().Set("Location", "/elsewhere")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, strings.ReplaceAll(c.body, "ID", string(m.ID)))
				}), nil)
				if _, err := p.run(t.Context(), "echo", `{}`); endsAs(err) != unknown {
					t.Errorf("the call ended as %s", endsAs(err)[:min(300, len(endsAs(err)))])
				}
			})
		}
	}
}

func TestACallIsRepeatedOnlyIfTheServerSaysThatItForgotTheSession(t *testing.T) {
	t.Parallel()
	const plain, text, stream = "application/json", "text/plain; charset=utf-8", "text/event-stream"
	for name, c := range map[string]struct{ kind, body, want string }{
		"the SDK of Go":         {text, "session not found\n", succeeds},
		"the SDK of Rust":       {text, "Not Found: Session not found", succeeds},
		"the SDK of Ruby":       {plain, `{"error":"Session not found"}`, succeeds},
		"the SDK of TypeScript": {plain, forgot("-32001", "Session not found", "null"), succeeds},
		"the SDK of C#":         {plain, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}`, succeeds},
		"the SDK of Python":     {plain, forgot("-32600", "Session not found", `"server-error"`), succeeds},
		"the SDK of Python, of a session that ended": {plain,
			forgot("-32600", "Not Found: Session has been terminated", `"server-error"`), succeeds},
		"an error for the call":         {plain, forgot("-32001", "Session not found", "ID"), succeeds},
		"an error for the call, a text": {plain, forgot("-32001", "Session not found", `"ID"`), succeeds},
		"nothing":                       {text, "", unknown},
		"another error for the call":    {plain, forgot("-32000", "card charged; receipt gave 404", `"ID"`), refused},
		"another error":                 {plain, forgot("-32000", "card charged; receipt gave 404", "null"), unknown},
		"another code":                  {plain, forgot("-32603", "Session not found", "null"), unknown},
		"another message": {plain, forgot("-32001", "The checkout session was not found", "null"),
			unknown},
		"an error for another call":          {plain, forgot("-32001", "Session not found", "99"), unknown},
		"an error for an id with a fraction": {plain, forgot("-32000", "No", "ID.5"), unknown},
		"an error for the call, an event":    {stream, "data: " + forgot("-32000", "No", "ID") + "\n\n", refused},
		"an error and a result": {plain,
			`{"jsonrpc":"2.0","result":{},"error":{"code":-32001,"message":"Session not found"}}`, unknown},
		"another session":             {text, "No such checkout session: cs_1", unknown},
		"the end of a session":        {text, "sent. session closed", unknown},
		"an error of Ruby's and more": {plain, `{"error":"Session not found","result":{}}`, unknown},
		"its refusal":                 {plain, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"No"}}`, refused},
		"its answer":                  {plain, fine, unknown},
		"its answer, long":            {plain, strings.Replace(fine, "done", strings.Repeat("x", 70_000), 1), unknown},
		"its answer in a batch":       {plain, "[" + fine + "]", unknown},
		"its answer as an event":      {stream, "data: " + fine + "\n\n", unknown},
		"an event after the session":  {text, "session not found\ndata: " + fine + "\n\n", unknown},
		"its answer and an error":     {plain, strings.TrimSuffix(fine, "}") + `,"error":{"code":1,"message":"x"}}`, unknown},
		"its answer and more":         {plain, fine + fine, unknown},
		"an answer of another id":     {plain, `{"jsonrpc":"2.0","id":"other","result":{}}`, unknown},
		"an error of no JSON-RPC":     {plain, `{"error":"the session sent the mail and then broke"}`, unknown},
		"an error of no version":      {plain, `{"id":null,"error":{"code":-32001,"message":"Session not found"}}`, unknown},
		"a page":                      {"text/html", "<h1>Your session is over</h1>", unknown},
		"a text about something else": {text, "user 7 not found", unknown},
		"cut off":                     {text, "CUT", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var forget atomic.Bool
			var sessions, calls atomic.Int64
			settings := reached(t, nil, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				var m called
				_ = json.Unmarshal(body, &m)
				switch m.Method {
				case "initialize":
					sessions.Add(1)
				case "tools/call":
					calls.Add(1)
					if r.Header.Get("Mcp-Session-Id") == "" {
						t.Error("the call has no session")
					}
					if !forget.Swap(false) {
						break
					}
					w.Header().Set("Content-Type", c.kind)
					if c.body == "CUT" {
						w.Header().Set("Content-Length", "100")
					}
					w.WriteHeader(http.StatusNotFound)
					if c.body != "CUT" {
						_, _ = io.WriteString(w, strings.ReplaceAll(c.body, "ID", string(m.ID)))
					}
					return
				}
				next.ServeHTTP(w, r)
			})
			p := open(t, settings, nil)
			p.about()
			calls.Store(0)
			forget.Store(true)
			_, err := p.run(t.Context(), "echo", `{}`)
			if endsAs(err) != c.want {
				t.Errorf("the call ended as %s, want %s: %v", endsAs(err), c.want, err)
			}
			if times, want := calls.Load(), map[bool]int64{true: 2, false: 1}[c.want == succeeds]; times != want {
				t.Errorf("it was sent %d times, want %d", times, want)
			}
			p.about()
			if n := sessions.Load(); n != 2 {
				t.Errorf("%d sessions, want 2", n)
			}
		})
	}
}

func TestAServerThatCannotBeReachedIsTriedAgain(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	p := open(t, backends.Server{URL: "http://" + address}, nil)
	for range 4 {
		_, err := p.run(t.Context(), "echo", `{}`)
		if transient := (*handlers.TransientError)(nil); !errors.As(err, &transient) || outcomeUnknown(err) ||
			!strings.Contains(err.Error(), "nothing was sent") {
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
