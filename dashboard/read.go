package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"time"
)

// read reads a page as soon as the user may: each reads a few pages at once, on half of the connections, so that one
// user's slow filters do not block others. Further pages wait for up to 5 s.
func (s *site) read(ctx context.Context, r *request, show func(context.Context, *request) (*content, error)) (*content,
	error) {
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(s.shareWait, 5*time.Second))
	defer cancel()
	end, err := s.shares.Take(waiting, r.user, max(int(r.db().Stat().MaxConns())/2, 1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, &pageError{http.StatusServiceUnavailable,
			"Your other pages are still loading. Try again when they have loaded."}
	}
	defer end()
	return show(ctx, r)
}
