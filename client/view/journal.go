package view

import (
	"context"
	"fmt"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Event is an entry of a call's journal. Its Data is that of the view gem.journal, without payloads: names of steps,
// waits and children, times, the code and message of an error, by and reason, ids of calls and receipts.
type Event = receipts.Event

// Journal returns the events of a call after the one numbered after, in order, up to a limit. It returns none for a
// call that does not exist.
func Journal(ctx context.Context, db DB, callID string, after, limit int) ([]Event, error) {
	rows, err := db.Query(ctx, `select seq, at, event, attempt, worker_id, data::text from gem.journal
		where call_id = $1 and seq > $2 order by seq limit $3`, callID, after, limit)
	if err == nil {
		var events []Event
		events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Event, err error) {
			var data *string
			err = row.Scan(&e.Seq, &e.At, &e.Event, &e.Attempt, (*zeronull.Text)(&e.WorkerID), &data)
			if data != nil {
				e.Data = []byte(*data)
			}
			return e, err
		})
		if err == nil {
			return events, nil
		}
	}
	return nil, fmt.Errorf("read the journal of call %s: %w", callID, err)
}
