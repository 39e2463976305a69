package dashboard

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	healthTime = 2 * time.Second // for Postgres to answer
	healthKept = time.Second     // anybody may ask, and Postgres is asked no more often
)

// health knows whether Postgres could be reached a moment ago.
type health struct {
	mu sync.Mutex
	at time.Time
	ok bool
}

// healthz answers 200, or 503 while Postgres cannot be reached. It needs no user, and any name of the host will do.
func (s *site) healthz(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !s.health.reaches(q.Context(), s.Read.Ping) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "Postgres cannot be reached\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (h *health) reaches(ctx context.Context, ping func(context.Context) error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > healthKept {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime) // others wait for the same answer
		defer cancel()
		h.ok = ping(ctx) == nil
		h.at = time.Now()
	}
	return h.ok
}
