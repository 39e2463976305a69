package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"go.uber.org/zap"
)

// watchQuestions prints each new question with the command that answers it. It grants each role that a question names
// to the users of the private database, once.
func (s *setup) watchQuestions(ctx context.Context, out io.Writer) {
	printed := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		granted, err := store.TakeRoles(ctx, s.pools[0], operatorLogin)
		for _, g := range granted {
			role := cut(printable(g.Role), 200)
			fmt.Fprintf(out, "\nGranted to %s, since a question names it: the role %s. "+
				"gem roles remove %[1]s %[2]s takes it back.\n", g.Subject, role)
		}
		var open []client.Question
		if err == nil {
			open, err = client.FirstQuestions(ctx, s.pools[0], mostQuestions)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot look for questions", zap.Error(err))
		}
		for _, q := range open {
			if !printed[q.ID] {
				printed[q.ID] = true
				fmt.Fprintf(out, "\nA call asks:\n%s\n\n", asked(q))
			}
		}
	}
}
