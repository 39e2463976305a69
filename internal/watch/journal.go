package watch

import (
	"context"

	"github.com/gemworker/gem/receipts"
)

// Event is an entry of a call's journal. Its Data has what the view gem.journal shows, and no payload: names of steps, waits and children, times,
// the code and message of an error, by and reason, ids of calls and receipts.
type Event = receipts.Event

// Journal returns the events of a call behind the one numbered after, in order, up to a limit.
func Journal(ctx context.Context, db DB, callID string, after, limit int) ([]Event, error) {
	return nil, nil
}
