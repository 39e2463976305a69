// Package listen receives Postgres's notifications, for as long as a process wants them.
package listen

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
)

// Listener keeps one connection on which the notifications of a channel arrive. All fields are required.
type Listener struct {
	URL     string // a connection string that leads through no pooler in transaction mode
	Channel string
	// Token is a text that only this listener sends. Before the first notification counts, the listener sends it through
	// By, which is another connection, and waits until it arrives: some poolers accept LISTEN and deliver nothing, or only
	// notifications of the connection itself.
	Token string
	By    store.DB
	// Up is called when notifications begin to arrive, and Received for each, except tokens, with its payload. Down is
	// called when they stop arriving or ctx ends, with the reason and the pause before the next try.
	Up       func()
	Received func(payload string)
	Down     func(err error, pause time.Duration)
}

const (
	connectTimeout = 10 * time.Second // and for the token to arrive, and an answer to a ping
	// without a notification: then the server is asked, since a connection may break without a sign
	quiet         = 30 * time.Second
	shortestPause = time.Second // before it connects again; doubled up to longestPause
	longestPause  = time.Minute
)

// ErrNotDelivered says that the connection string leads through something that accepts LISTEN and delivers nothing.
var ErrNotDelivered = errors.New("LISTEN works, but our own NOTIFY never arrived: this may be a pooler in " +
	"transaction mode, " +
	"or another database than that of DATABASE_URL. Set DIRECT_URL to Postgres itself, or DATABASE_POOLER=transaction " +
	"to poll without trying")

// Run listens until ctx ends, and connects again when the connection breaks.
func (l *Listener) Run(ctx context.Context) {
	pause := shortestPause
	for ctx.Err() == nil {
		began := time.Now()
		l.Down(l.once(ctx), pause)
		if ctx.Err() != nil {
			return
		}
		jittered := time.NewTimer(time.Duration(float64(pause) * (0.8 + 0.4*rand.Float64())))
		select {
		case <-ctx.Done():
		case <-jittered.C:
		}
		jittered.Stop()
		pause = min(pause*2, longestPause)
		if time.Since(began) > longestPause {
			pause = shortestPause
		}
	}
}

// once listens on one connection until it breaks or ctx ends.
func (l *Listener) once(ctx context.Context) error {
	config, err := pgx.ParseConfig(l.URL)
	if err != nil {
		return errors.New("the connection string for notifications is not valid")
	}
	config.ConnectTimeout = connectTimeout
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
	if err := l.prove(ctx, conn); err != nil {
		return err
	}
	l.Up()
	for {
		payload, err := receive(ctx, conn)
		if err != nil {
			return err
		}
		if payload != l.Token {
			l.Received(payload)
		}
	}
}

// prove listens, and waits for the token.
func (l *Listener) prove(ctx context.Context, conn *pgx.Conn) error {
	proving, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := conn.PgConn().Exec(proving, "listen "+l.Channel).Close(); err != nil { // prepares nothing
		return err
	}
	if err := store.Notify(proving, l.By, l.Channel, l.Token); err != nil {
		return err
	}
	for {
		note, err := conn.WaitForNotification(proving)
		switch {
		case err != nil && proving.Err() != nil && ctx.Err() == nil:
			return ErrNotDelivered
		case err != nil:
			return err
		case note.Payload == l.Token:
			return nil
		}
	}
}

// receive returns the payload of the next notification.
func receive(ctx context.Context, conn *pgx.Conn) (payload string, err error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, quiet)
		note, err := conn.WaitForNotification(waiting)
		timedOut := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return note.Payload, nil
		}
		if timedOut {
			asking, cancel := context.WithTimeout(ctx, connectTimeout)
			err = conn.Ping(asking)
			cancel()
		}
		if err != nil {
			return "", err
		}
	}
}
