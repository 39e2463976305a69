package dashboard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/store"
)

const (
	healthTime = 2 * time.Second // for Postgres's answer
	healthKept = time.Second     // anybody may ask, so Postgres is asked no more often
)

// health keeps the latest reason that the pages cannot be shown; it is empty if they can.
type health struct {
	mu    sync.Mutex
	at    time.Time
	fault string
}

// healthz answers 200, or 503 and why the pages cannot be shown. It needs no user, and accepts any host
// name.
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

// check tests whether the pages can read their data.
func (s *site) check(ctx context.Context) error {
	return view.Read(ctx, s.Read, view.Check)
}

// faultOf explains to anybody why the pages cannot be shown, so it uses none of Postgres's words. A busy Postgres is
// not a fault.
func faultOf(err error) string {
	switch {
	case err == nil || errors.Is(err, view.ErrTooSlow):
		return ""
	case lacksSchema(err):
		return otherSchema
	case store.IsForbidden(err):
		return "The dashboard's database role may not read what the pages show."
	case isAway(err):
		return "Postgres cannot be reached."
	}
	return "Postgres returns an error. The dashboard's log has the details."
}
