package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/watch"
)

// openCount is the number of open questions, which the frame of each page shows. It is read at most every few seconds.
type openCount struct {
	mu   sync.Mutex
	at   time.Time
	open int
}

const (
	openCountKept   = 5 * time.Second
	mostOpenCounted = 100 // beyond that the frame shows no number
)

// count returns the number of open questions; 0 if that cannot be read.
func (a *openCount) count(ctx context.Context, s *site) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) > openCountKept {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		a.at, a.open = time.Now(), 0
		_ = watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) { // the page itself says what is wrong
			a.open, err = watch.CountQuestions(ctx, db, mostOpenCounted)
			return err
		})
	}
	return a.open
}
