package dashboard

import (
	"context"
	"fmt"
	"strconv"

	"github.com/gemworker/gem/client/view"
)

// epochs shows the changes of the Postgres server.
func (s *site) epochs(ctx context.Context, r *request) (*content, error) {
	var changes []view.ServerChange
	err := s.readList(ctx, r, s.Read, func(ctx context.Context, db view.DB) (err error) {
		changes, err = view.ServerChanges(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &content{Title: "Postgres servers", Template: "epochs", Data: changes, JSON: changes}, nil
}

// epoch shows what one change of the server lost.
func (s *site) epoch(ctx context.Context, r *request) (*content, error) {
	number, err := strconv.ParseInt(r.PathValue("epoch"), 10, 64)
	if err != nil {
		return nil, notFound("No change of the server has this number.")
	}
	var change *view.ServerChange
	err = s.readList(ctx, r, s.Read, func(ctx context.Context, db view.DB) (err error) {
		change, err = view.ReadServerChange(ctx, db, number)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case change == nil:
		return nil, notFound("No change of the server in the last 90 days has this number.")
	}
	return &content{Title: fmt.Sprintf("Postgres server %d", number), Template: "epoch", Data: change, JSON: change}, nil
}
