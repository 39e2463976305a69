package dashboard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/jackc/pgx/v5/pgxpool"
)

// afterAction is how long all pages are read from the primary after somebody acted, so that people see what they did.
const afterAction = 5 * time.Second

// acted is when somebody last acted, in Unix nanoseconds.
type acted struct{ atomic.Int64 }

func (a *acted) record() { a.Store(time.Now().UnixNano()) }

func (a *acted) recently() bool { return time.Since(time.Unix(0, a.Load())) < afterAction }

// readList reads data that every viewer may see: from the standby if it can be used, otherwise from the primary. do may
// run twice.
func (s *site) readList(ctx context.Context, r *request, primary *pgxpool.Pool,
	do func(ctx context.Context, db view.DB) error) error {
	if s.replica == nil || s.acted.recently() {
		return view.Read(ctx, primary, do)
	}
	source, err := s.replica.Read(ctx, primary, do)
	r.source = &source
	return err
}

// readByRights reads a page that shows operators more than viewers: for an operator from the primary, since the
// standby's login has only a viewer's rights.
func (s *site) readByRights(ctx context.Context, r *request, do func(ctx context.Context, db view.DB) error) error {
	if r.operates() {
		return view.Read(ctx, r.db(), do)
	}
	return s.readList(ctx, r, r.db(), do)
}
