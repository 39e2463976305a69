package webhook_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
)

// deployed is a service that is down for a while, as during a deployment.
type deployed struct {
	*service
	address string
}

// away returns a service at a port that is free, so that connections are refused.
func away(t *testing.T) *deployed {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return &deployed{address: l.Addr().String()}
}

// back starts the service at its address.
func (d *deployed) back(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	d.service = &service{got: map[string][]request{}}
	server := &http.Server{Handler: http.HandlerFunc(d.answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// byDefault is the registry crm, without retry settings.
func byDefault() []byte {
	return []byte(strings.ReplaceAll(string(crm), `, "retry": {"max_attempts": 3, "backoff_ms": 1}`, ""))
}

// In each mode, a tool without retry settings loses no call if its service refuses connections for a minute.
func TestNoCallIsLostWhenAServiceIsAwayForAMinute(t *testing.T) {
	t.Parallel()
	d := away(t)
	env := prepareWith(t, "http://"+d.address, set(), byDefault())
	env.StartWorker()
	calls := map[string]string{}
	for tool, input := range map[string]string{"crm.refund": `{}`, "crm.sum.up": `{}`, "crm.keyed": `{"key": "a"}`} {
		calls[tool] = env.Insert(handlertest.Call{Tool: tool, Input: input})
	}
	tried := func(n int) func() bool {
		return func() bool {
			for _, id := range calls {
				if strings.Count(strings.Join(env.Journal(id), " "), "retried") < n {
					return false
				}
			}
			return true
		}
	}
	var passed time.Duration
	for n := 1; passed <= time.Minute; n++ {
		env.Until(fmt.Sprintf("attempt %d", n), tried(n))
		env.Pass(min(time.Second<<(n-1), time.Minute))
		passed += min(time.Second<<(n-1), time.Minute)
	}
	d.back(t)
	env.Pass(2 * time.Minute)
	for tool, id := range calls {
		if r := env.Await(id); r.Status != receipts.Succeeded || len(d.requests(id)) != 1 {
			t.Errorf("%s: %s, after %d requests", tool, ended(t, r), len(d.requests(id)))
		}
	}
}

// If the service answers 503 for a minute or breaks connections, a tool that may run twice also loses no call. The call
// of a tool that must not run twice ends at once.
func TestOnlyWhatMustNotRunTwiceEndsWhenAServiceFailsForAMinute(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := prepareWith(t, s.URL, set(), byDefault())
	env.StartWorker()
	for name, fault := range map[string]answer{"answers 503": {Status: 503, Body: "deploying"},
		"breaks connections": {Status: 0}} {
		t.Run(name, func(t *testing.T) {
			failing := slices.Repeat([]answer{fault}, 7) // with pauses of 1, 2, 4, 8, 16, 32 and 60 s, or at least half
			once := env.Insert(handlertest.Call{Tool: "crm.refund", Input: input(failing...)})
			calls := []string{env.Insert(handlertest.Call{Tool: "crm.sum.up", Input: input(failing...)}),
				env.Insert(handlertest.Call{Tool: "crm.keyed",
					Input: strings.Replace(input(failing...), "{", `{"key": "`+name+`", `, 1)})}
			for n := 1; n <= len(failing); n++ {
				env.Until(fmt.Sprintf("attempt %d", n), func() bool {
					return !slices.ContainsFunc(calls, func(id string) bool {
						return strings.Count(strings.Join(env.Journal(id), " "), "retried") < n
					})
				})
				env.Pass(min(time.Second<<(n-1), time.Minute))
			}
			for _, id := range calls {
				if r := env.Await(id); r.Status != receipts.Succeeded || len(s.requests(id)) != 8 {
					t.Errorf("%s, after %d requests", ended(t, r), len(s.requests(id)))
				}
			}
			if r := env.Await(once); r.Status != receipts.Failed || len(s.requests(once)) != 1 {
				t.Errorf("mode none: %s, after %d requests", ended(t, r), len(s.requests(once)))
			}
		})
	}
}
