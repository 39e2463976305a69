package dashboard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/watch"
)

const (
	healthTime = 2 * time.Second // for Postgres to answer
	healthKept = time.Second     // anybody may ask, and Postgres is asked no more often
)

// health knows why the pages could not be shown a moment ago; empty if they could.
type health struct {
	mu    sync.Mutex
	at    time.Time
	fault string
}

// healthz answers 200, or 503 and why the pages cannot be shown. It needs no user, and any name of the host will do.
func (s *site) healthz(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if fault := s.health.ask(q.Context(), s.check); fault != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, fault+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (h *health) ask(ctx context.Context, check func(context.Context) error) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > healthKept {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime) // others wait for the same answer
		defer cancel()
		h.fault = faultOf(check(ctx))
		h.at = time.Now()
	}
	return h.fault
}

// check looks whether the pages find what they read.
func (s *site) check(ctx context.Context) error {
	return watch.Read(ctx, s.Read, watch.Check)
}

// faultOf says why the pages cannot be shown, to anybody: so in none of Postgres's words. A busy Postgres is no fault.
func faultOf(err error) string {
	switch {
	case err == nil || errors.Is(err, watch.ErrTooSlow):
		return ""
	case lacksSchema(err):
		return otherSchema
	case store.HasCode(err, "42501"):
		return "The dashboard's database role may not read what the pages show."
	case isAway(err):
		return "Postgres cannot be reached."
	}
	return "Postgres returns an error. The dashboard's log has the details."
}
