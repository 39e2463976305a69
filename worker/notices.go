package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/notify"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

const (
	noticesEvery          = time.Second
	noticesPerTransaction = 100
)

// notices moves notices into batches, and makes the calls that deliver them, until ctx ends.
func (w *Worker) notices(ctx context.Context) {
	for ctx.Err() == nil {
		running, cancel := context.WithTimeout(ctx, statementTimeout)
		more, err := w.deliverNotices(running)
		cancel()
		w.warn(ignoreEnd(ctx, err), "deliver notices")
		if !more {
			sleep(ctx, jitter(noticesEvery))
		}
	}
}

// deliverNotices takes some notices and delivers the batches that are due, in one transaction. more reports whether
// there may be others.
func (w *Worker) deliverNotices(ctx context.Context) (more bool, err error) {
	set := w.options.Notify
	err = pgx.BeginFunc(ctx, w.options.Control, func(tx pgx.Tx) error {
		taken, err := store.TakeNotices(ctx, tx, set.Version, noticesPerTransaction)
		if err != nil {
			return err
		}
		notices := make([]notify.Notice, len(taken))
		for i, n := range taken {
			notices[i] = notify.Notice(n)
		}
		if batches := set.Batches(notices); len(batches) > 0 {
			encoded, err := json.Marshal(batches)
			if err != nil {
				return err
			}
			if err := store.AddToBatches(ctx, tx, encoded); err != nil {
				return err
			}
		}
		due, err := store.DueNotices(ctx, tx, set.Channels(), noticesPerTransaction)
		if err != nil {
			return err
		}
		for _, d := range due {
			if err := w.deliver(ctx, tx, d); err != nil {
				return err
			}
		}
		more = len(taken) == noticesPerTransaction || len(due) == noticesPerTransaction
		return nil
	})
	return more && err == nil, err
}

// deliver makes the call that delivers a batch.
func (w *Worker) deliver(ctx context.Context, tx pgx.Tx, d store.DueNotice) error {
	set := w.options.Notify
	input := set.Input(d.Channel, notify.Message{Count: d.Count, FirstAt: d.FirstAt, LastAt: d.LastAt, First: d.First,
		Dashboard: w.options.Dashboard})
	tool, err := set.Tool(d.Channel) // which is one of the set's
	if err != nil {
		return err
	}
	problem, err := store.SendNotice(ctx, tx, d.ID, uuid.Must(uuid.NewV7()).String(), tool, input)
	if problem != "" {
		w.log.Warn("a notice could not be delivered, and is tried again", zap.String("channel", d.Channel),
			zap.String("error", problem))
	}
	return err
}

// wantNotices records the notify.json, and makes GEM write the notices that it needs.
func (w *Worker) wantNotices(ctx context.Context) error {
	set := w.options.Notify
	if set == nil {
		return nil
	}
	sha256, recorded, err := store.RecordNotify(ctx, w.options.Control, set.Version, set.SHA256(), set.JSON())
	if err != nil {
		return fmt.Errorf("record the version of the notices: %w", err)
	}
	if sha256 != set.SHA256() {
		earlier, err := notify.Parse(recorded)
		if err != nil {
			return fmt.Errorf("another %s was recorded as version %s, and this program cannot read it: raise the version",
				notify.File, set.Version)
		}
		return notify.CheckUpgrade(earlier, set)
	}
	kinds, marks := set.Kinds()
	return store.WantNotices(ctx, w.options.Control, kinds, marks)
}
