package worker

import (
	"context"
	"errors"
	"time"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// channel is where gem.wake_workers notifies.
const channel = "gem_calls"

// want tells the database whether inserts are to notify this worker, when that has changed, and reports whether it has.
func (w *Worker) want(ctx context.Context, wanted bool) (changed bool) {
	if w.wanted == wanted {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, controlDeadline)
	defer cancel()
	if _, err := w.control.Exec(ctx, "select gem.want_wake($1, $2)", w.id, wanted); err != nil {
		w.say(ignoreEnd(ctx, err), "ask for notifications")
		return false
	}
	w.wanted = wanted
	return true
}

// nudge makes the loop look at the queue now.
func (w *Worker) nudge() { signal(w.wake) }

// signal wakes whoever waits at the channel, or will next. Two signals may be one.
func signal(at chan struct{}) {
	select {
	case at <- struct{}{}:
	default:
	}
}

// listen keeps a connection that notifications come in on, and connects again when it breaks. Until a notification from
// another connection has come through, the worker polls: some poolers accept LISTEN and never deliver, but for what comes
// while the connection itself runs a statement.
func (w *Worker) listen(ctx context.Context) {
	pause := time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listenOnce(ctx)
		w.listening.Store(false)
		w.nudge()
		if ctx.Err() != nil {
			return
		}
		w.Log.Warn("no notifications: polling until they are back", zap.String("reason", pgpool.Reason(err)), zap.Duration("next_try", pause))
		sleep(ctx, jitter(pause))
		pause = min(pause*2, time.Minute)
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
	}
}

var errNotDelivered = errors.New("LISTEN was accepted, and a notification to oneself did not come: is this a pooler in transaction mode, or another database than DATABASE_URL's? " +
	"Set DIRECT_URL to Postgres itself, or DATABASE_POOLER=transaction to poll without trying")

func (w *Worker) listenOnce(ctx context.Context) error {
	config, err := pgx.ParseConfig(w.ListenURL)
	if err != nil {
		return errors.New("the connection string for notifications is not valid")
	}
	config.ConnectTimeout = statementDeadline
	config.RuntimeParams["application_name"] = "gem listen"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()

	proving, cancel := context.WithTimeout(ctx, statementDeadline)
	defer cancel()
	if err := conn.PgConn().Exec(proving, "listen "+channel).Close(); err != nil { // prepares nothing
		return err
	}
	if _, err := w.control.Exec(proving, "select pg_notify($1, $2)", channel, w.id); err != nil {
		return err
	}
	for {
		note, err := conn.WaitForNotification(proving)
		if err != nil {
			if proving.Err() != nil && ctx.Err() == nil {
				return errNotDelivered
			}
			return err
		}
		if note.Payload == w.id {
			break
		}
	}
	w.listening.Store(true)
	w.Log.Debug("notifications come through")
	w.nudge()
	signal(w.beatNow) // someone may have asked to cancel a call meanwhile

	for {
		// A connection that broke without a word is noticed by asking from time to time.
		waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
		note, err := conn.WaitForNotification(waiting)
		timedOut := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case timedOut:
			asking, cancel := context.WithTimeout(ctx, statementDeadline)
			err := conn.Ping(asking)
			cancel()
			if err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			switch note.Payload {
			case "cancel":
				signal(w.beatNow)
				continue
			case "again":
				w.lookAgain.Store(true)
			}
			w.nudge()
		}
	}
}
