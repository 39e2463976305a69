package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/client/view"
)

// openCount is the number of open questions, for the frame of each page. It is read at most every few seconds.
type openCount struct {
	mu   sync.Mutex
	at   time.Time
	open int
}

const (
	openCountKept   = 5 * time.Second
	mostOpenCounted = 100 // above this the frame shows no number
)

// count returns the number of open questions, or 0 if it cannot be read.
func (a *openCount) count(ctx context.Context, s *site) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) > openCountKept {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		a.at, a.open = time.Now(), 0
		_ = view.Read(ctx, s.Read, func(ctx context.Context, db view.DB) (err error) { // the page itself reports an error
			a.open, err = view.CountQuestions(ctx, db, mostOpenCounted)
			return err
		})
	}
	return a.open
}
