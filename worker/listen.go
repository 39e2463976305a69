package worker

import (
	"context"
	"errors"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// wantWake tells the database whether inserts are to notify this worker, and reports whether that is new.
func (w *Worker) wantWake(ctx context.Context, wanted bool) (changed bool) {
	if w.registered.Swap(false) {
		w.wakeWanted = false
	}
	if w.wakeWanted == wanted {
		return false
	}
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := store.WantWake(asking, w.options.Control, w.id, wanted)
	w.warn(ignoreEnd(ctx, err), "ask for notifications")
	if err == nil {
		w.wakeWanted = wanted
	}
	return err == nil
}

// listen receives notifications, and connects again when the connection breaks. The worker polls until the first has arrived.
func (w *Worker) listen(ctx context.Context) {
	pause := time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listenOnce(ctx)
		w.listening.Store(false)
		w.sweepSoon() // the server may be another one now, which lacks the last ends of calls
		signal(w.wake)
		if ctx.Err() != nil {
			return
		}
		w.warn(err, "get notifications: polling until they are back", zap.Duration("next_try", pause))
		sleep(ctx, jitter(pause))
		pause = min(pause*2, time.Minute)
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
	}
}

func (w *Worker) listenOnce(ctx context.Context) error {
	config, err := pgx.ParseConfig(w.options.ListenURL)
	if err != nil {
		return errors.New("the connection string for notifications is not valid")
	}
	config.ConnectTimeout = statementTimeout
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
	if err := w.proveListening(ctx, conn); err != nil {
		return err
	}
	w.listening.Store(true)
	w.log.Debug("notifications arrive")
	signal(w.wake)
	signal(w.beat) // someone may have asked to cancel a call meanwhile
	for {
		payload, err := receive(ctx, conn)
		switch {
		case err != nil:
			return err
		case payload == store.PayloadCancel:
			signal(w.beat)
			continue
		case payload == store.PayloadAgain:
			w.rewind.Store(true)
		}
		signal(w.wake)
	}
}

var errNotDelivered = errors.New("LISTEN works, but the worker's own NOTIFY never arrived: this may be a pooler in transaction mode, " +
	"or another database than that of DATABASE_URL. Set DIRECT_URL to Postgres itself, or DATABASE_POOLER=transaction to poll without trying")

// proveListening listens, and waits for a notification that the worker sends over another connection. Some poolers accept LISTEN
// and deliver nothing, or only notifications of the connection itself.
func (w *Worker) proveListening(ctx context.Context, conn *pgx.Conn) error {
	proving, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := conn.PgConn().Exec(proving, "listen "+store.Channel).Close(); err != nil { // prepares nothing
		return err
	}
	if err := store.Notify(proving, w.options.Control, w.id); err != nil {
		return err
	}
	for {
		note, err := conn.WaitForNotification(proving)
		switch {
		case err != nil && proving.Err() != nil && ctx.Err() == nil:
			return errNotDelivered
		case err != nil:
			return err
		case note.Payload == w.id:
			return nil
		}
	}
}

// receive returns the payload of the next notification. It asks the server from time to time, since a connection may break
// without a sign.
func receive(ctx context.Context, conn *pgx.Conn) (payload string, err error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
		note, err := conn.WaitForNotification(waiting)
		timedOut := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return note.Payload, nil
		}
		if timedOut {
			asking, cancel := context.WithTimeout(ctx, statementTimeout)
			err = conn.Ping(asking)
			cancel()
		}
		if err != nil {
			return "", err
		}
	}
}
