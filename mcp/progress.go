package mcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// How often a request with a progressToken gets news of its call.
const (
	// the shortest interval, at which the journal is first read; later every two seconds
	progressEvery = 500 * time.Millisecond
	aliveEvery    = 15 * time.Second // without news: clients abandon silent requests
)

// progress notifies the client of a request about its call, until the returned function is called: it sends the
// journal's last entry each time the journal has grown. It does nothing if the client did not ask.
func (d *Server) progress(ctx context.Context, c caller, req *sdk.CallToolRequest, id string) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	telling, stopTelling := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		told, silent := 0.0, time.Now() // told is the last number sent, which must grow
		for pause := progressEvery; ; pause = min(pause*5/4, 4*progressEvery) {
			select {
			case <-telling.Done():
				return
			case <-d.closing.Done():
				return
			case <-time.After(pause):
			}
			message := "no news"
			events, err := d.events(telling, c, id, int(told))
			switch {
			case err == nil && len(events) > 0:
				last := events[len(events)-1]
				told, message, pause = float64(last.Seq), progressMessage(last), progressEvery
			case time.Since(silent) < aliveEvery:
				continue
			default: // halfway to the next entry, and halfway again
				told += (float64(int(told)+1) - told) / 2
			}
			silent = time.Now()
			if req.Session.NotifyProgress(telling, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: told,
				Message: message}) != nil {
				return
			}
		}
	})
	return func() {
		stopTelling()
		done.Wait()
	}
}

// events returns the entries of a call's journal after a given one.
func (d *Server) events(ctx context.Context, c caller, id string, after int) (events []receipts.Event, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		events, err = client.VisibleJournal(ctx, db, id, after)
		return err
	})
	return events, err
}

func progressMessage(e receipts.Event) string {
	if e.Attempt > 1 {
		return fmt.Sprintf("%s (attempt %d)", e.Event, e.Attempt)
	}
	return e.Event
}
