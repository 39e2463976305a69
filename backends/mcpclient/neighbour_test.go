package mcpclient_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/handlers"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// inFlight is a call of slow that its server has carried out, and not yet answered.
type inFlight struct {
	id      atomic.Pointer[json.RawMessage]
	effects atomic.Int64
	began   chan struct{}
	answer  chan struct{}
	ended   <-chan error
}

// withOneInFlight opens a server at a URL with sessions, and makes a call of slow. The answers to other messages come
// from odd, unless it returns false.
func withOneInFlight(t *testing.T, odd func(http.ResponseWriter, *http.Request, called) bool) (*backend, *inFlight) {
	t.Helper()
	f := &inFlight{began: make(chan struct{}, 10), answer: make(chan struct{})}
	p := open(t, reached(t, nil, func(w http.ResponseWriter, r *http.Request, rest http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var m called
		_ = json.Unmarshal(body, &m)
		switch {
		case m.Params.Name == "slow":
			f.effects.Add(1)
			f.id.Store(&m.ID)
			f.began <- struct{}{}
			<-f.answer
			writeAnswer(w, fine, m.ID)
		case !odd(w, r, m):
			rest.ServeHTTP(w, r)
		}
	}), nil)
	f.ended = p.start(t.Context(), "slow", `{}`)
	<-f.began
	return p, f
}

func writeAnswer(w http.ResponseWriter, text string, id json.RawMessage) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, strings.ReplaceAll(text, "ID", string(id)))
}

// succeedsOnce answers the call, and checks that it succeeds and ran once.
func (f *inFlight) succeedsOnce(t *testing.T) {
	t.Helper()
	close(f.answer)
	if err := <-f.ended; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if n := f.effects.Load(); n != 1 {
		t.Errorf("it was carried out %d times", n)
	}
}

func TestAForgottenSessionEndsNoCallInFlight(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"a text": {"session not found", succeeds},
		"an error of no request": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`,
			succeeds},
		"an error of no request, as Python writes it": {
			`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}`, succeeds},
		"an answer to this request": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no file"}}`, refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var forgot atomic.Bool
			var connections, calls atomic.Int64
			p, f := withOneInFlight(t, func(w http.ResponseWriter, _ *http.Request, m called) bool {
				switch {
				case m.Method == "initialize":
					connections.Add(1)
				case m.Params.Name == "echo" && !forgot.Swap(true):
					w.WriteHeader(http.StatusNotFound)
					writeAnswer(w, c.body, m.ID)
					return true
				case m.Params.Name == "echo":
					calls.Add(1)
				}
				return false
			})
			if _, err := p.run(t.Context(), "echo", `{}`); endsAs(err) != c.want {
				t.Errorf("the call ended as %s, want %s: %v", endsAs(err), c.want, err)
			}
			for range 3 {
				if _, err := p.run(t.Context(), "echo", `{}`); err != nil {
					t.Errorf("a later call: %v", err)
				}
			}
			if n := connections.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
			f.succeedsOnce(t)
		})
	}
}

func TestAnOddAnswerToAMessageThatIsNoRequestEndsNoCall(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"a notification", "an answer"} {
		for _, status := range []int{200, 204, 300, 302, 307, 400, 401, 404, 405, 500} {
			t.Run(fmt.Sprintf("%d to %s", status, to), func(t *testing.T) {
				t.Parallel()
				hangs, answered := make(chan struct{}), make(chan struct{})
				p, f := withOneInFlight(t, func(w http.ResponseWriter, r *http.Request, m called) bool {
					switch {
					case m.Params.Name == "hangs":
						close(hangs)
						<-r.Context().Done()
					case m.Params.Name == "asks":
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":"q","method":"ping"}`+"\n\n")
						w.(http.Flusher).Flush()
						<-answered
						_, _ = io.WriteString(w, "data: "+strings.ReplaceAll(fine, "ID", string(m.ID))+"\n\n")
					case m.ID != nil && m.Method == "" || m.Method == "notifications/cancelled":
						w.Header().Set("Mcp-Session-Id", "another")
						w.Header().Set("Location", "/elsewhere")
						w.Header().Set("Content-Type", "text/html")
						w.WriteHeader(status)
						close(answered)
					default:
						return false
					}
					return true
				})
				if to == "an answer" {
					if _, err := p.run(t.Context(), "asks", `{}`); err != nil {
						t.Errorf("the call that the server asked something for: %v", err)
					}
				} else {
					ctx, cancel := context.WithCancel(t.Context())
					go func() {
						<-hangs
						cancel()
					}()
					if _, err := p.run(ctx, "hangs", `{}`); !outcomeUnknown(err) {
						t.Errorf("the call that was cancelled: %v", err)
					}
					<-answered
				}
				for range 3 { // after which the answer was seen
					if _, err := p.run(t.Context(), "echo", `{}`); err != nil {
						t.Errorf("a later call: %v", err)
					}
				}
				f.succeedsOnce(t)
				if n := p.logs.FilterMessage("the connection to the MCP server has ended").Len(); n > 0 {
					t.Error("the connection ended")
				}
			})
		}
	}
}

const otherRefused = `{"jsonrpc":"2.0","id":NEIGHBOUR,"error":{"code":-32600,"message":"no"}}`

func TestAStreamThatBreaksOffEndsOnlyItsCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		text   string
	}{
		"it cannot be resumed":        {http.StatusMethodNotAllowed, ""},
		"its rest fails":              {http.StatusInternalServerError, ""},
		"its rest is no message":      {http.StatusOK, "data: hello\n\n"},
		"its rest answers another":    {http.StatusOK, "data: " + otherRefused + "\n\n"},
		"its rest breaks off as well": {http.StatusOK, ": nothing\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f *inFlight
			p, flying := withOneInFlight(t, func(w http.ResponseWriter, r *http.Request, m called) bool {
				switch {
				case m.Params.Name == "echo" && m.Params.Arguments.Say == "":
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, "id: 7\nretry: 1\ndata:\n\n")
				case r.Method == http.MethodGet:
					w.Header().Set("Content-Type", "text/event-stream")
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, strings.ReplaceAll(c.text, "NEIGHBOUR", string(*f.id.Load())))
				default:
					return false
				}
				return true
			})
			f = flying
			if _, err := p.run(t.Context(), "echo", `{}`); !outcomeUnknown(err) {
				t.Errorf("the call whose stream broke off: %v", err)
			}
			for range 3 {
				if _, err := p.run(t.Context(), "echo", say("x")); err != nil {
					t.Errorf("a later call: %v", err)
				}
			}
			f.succeedsOnce(t)
		})
	}
}

// With such a header, net/http takes a POST for one that may be sent again.
func TestAHeaderWithAKeySendsNoCallTwice(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		var effects atomic.Int64
		settings := reached(t, &sdk.StreamableHTTPOptions{Stateless: true},
			func(w http.ResponseWriter, r *http.Request, rest http.Handler) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				var m called
				if _ = json.Unmarshal(body, &m); m.Method != "tools/call" {
					rest.ServeHTTP(w, r) // the connection is used again
					return
				}
				effects.Add(1)
				panic(http.ErrAbortHandler)
			})
		settings.HeaderEnv = map[string]string{header: "KEY"}
		p := open(t, settings, map[string]string{"KEY": "k"})
		if _, err := p.run(t.Context(), "echo", `{}`); !outcomeUnknown(err) {
			t.Errorf("%s: %v", header, err)
		}
		if n := effects.Load(); n != 1 {
			t.Errorf("%s: the call took effect %d times", header, n)
		}
	}
}

// answersAfter answers a call of echo with an event, written some times, and then with the result. It returns false for
// other messages.
func answersAfter(w http.ResponseWriter, m called, event string, times int) bool {
	if m.Params.Name != "echo" {
		return false
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range times {
		_, _ = io.WriteString(w, event)
	}
	_, _ = io.WriteString(w, "\n\ndata: "+strings.ReplaceAll(fine, "ID", string(m.ID))+"\n\n")
	return true
}

// Each event comes before the answer to a call. None affects other calls.
func TestAnOddEventEndsNoCall(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]string{
		"a notification without parameters": `data: {"jsonrpc":"2.0","method":"notifications/elicitation/complete"}`,
		"an unknown notification":           `data: {"jsonrpc":"2.0","method":"notifications/unheard/of","params":3}`,
		"a request that is asked twice": `data: {"jsonrpc":"2.0","id":"q","method":"ping"}` + "\n\n" +
			`data: {"jsonrpc":"2.0","id":"q","method":"ping"}`,
		"unknown fields":   "retry: 1\nfield: value\n: a comment\nid: 7",
		"an unknown event": "event: other\ndata: {}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, f := withOneInFlight(t, func(w http.ResponseWriter, _ *http.Request, m called) bool {
				return answersAfter(w, m, event, 1)
			})
			for range 3 {
				if _, err := p.run(t.Context(), "echo", `{}`); err != nil {
					t.Errorf("the call of the event: %v", err)
				}
			}
			f.succeedsOnce(t)
		})
	}
}

// The event is larger than any message may be.
func TestAnEventThatIsTooLargeEndsOnlyItsCall(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{"data": "data: 0123456789", "fields": "field: 0123456789"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, f := withOneInFlight(t, func(w http.ResponseWriter, _ *http.Request, m called) bool {
				part := strings.Repeat(line+"\n", 1000)
				return answersAfter(w, m, part, 1+17<<20/len(part))
			})
			if _, err := p.run(t.Context(), "echo", `{}`); endsAs(err) != unknown {
				t.Errorf("it ended as %s: %v", endsAs(err), err)
			}
			f.succeedsOnce(t)
		})
	}
}

func TestTheProtocolVersionIsAgreedOnOnce(t *testing.T) {
	t.Parallel()
	var versions atomic.Pointer[string]
	p, f := withOneInFlight(t, func(w http.ResponseWriter, r *http.Request, m called) bool {
		if m.Params.Name == "" {
			return false
		}
		versions.Store(new(r.Header.Get("Mcp-Protocol-Version")))
		writeAnswer(w, `{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"x\r\ny: 1","supportedVersions":[],"content":[]}}`,
			m.ID)
		return true
	})
	if _, err := p.run(t.Context(), "echo", `{}`); err != nil {
		t.Error(err)
	}
	before := *versions.Load()
	if _, err := p.run(t.Context(), "echo", `{}`); err != nil {
		t.Error(err)
	}
	if after := *versions.Load(); before == "" || after != before {
		t.Errorf("the version was %q, and is %q", before, after)
	}
	f.succeedsOnce(t)
}

func TestOnlyAResultThatIsNotTheEndLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		`{"resultType":"task","status":"working"}`:                   unknown,
		`{"resultType":"partial","content":[]}`:                      unknown,
		`{"task":{"taskId":"1","status":"working"}}`:                 unknown,
		`{"resultType":"input_required","requestState":"x"}`:         refused,
		`{"resultType":"complete","content":[],"task":null}`:         succeeds,
		`{"content":[{"type":"text","text":"x"}],"task":{"id":"1"}}`: succeeds,
	} {
		t.Run(result, func(t *testing.T) {
			t.Parallel()
			p, f := withOneInFlight(t, func(w http.ResponseWriter, _ *http.Request, m called) bool {
				if m.Params.Name == "" {
					return false
				}
				writeAnswer(w, `{"jsonrpc":"2.0","id":ID,"result":`+result+`}`, m.ID)
				return true
			})
			_, err := p.run(t.Context(), "echo", `{}`)
			got, failure := endsAs(err), (*handlers.Failure)(nil)
			if errors.As(err, &failure) && failure.Code != "" {
				got = failure.Code
			}
			if got != want {
				t.Errorf("it ended as %s, want %s", got, want)
			}
			f.succeedsOnce(t)
		})
	}
}
