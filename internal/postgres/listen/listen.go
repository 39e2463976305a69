// Package listen receives notifications of Postgres for as long as a process needs them.
package listen

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
)

// Listener keeps one connection that receives the notifications of a channel. All fields are required.
type Listener struct {
	URL     string // a connection string that leads through no pooler in transaction mode
	Channel string
	// Token is a text that only this listener sends. Before the first notification counts, the listener sends it through
	// By, which is another connection, and waits until it arrives. Some poolers accept LISTEN and deliver nothing, or
	// deliver only notifications of the connection itself.
	Token string
	By    store.DB
	// Up is called when notifications begin to arrive. Received is called with the payload of each, except for tokens.
	// Down is called when they stop arriving or ctx ends, with the reason and the pause before the next attempt.
	Up       func()
	Received func(payload string)
	Down     func(err error, pause time.Duration)
}

const (
	connectTimeout = 10 * time.Second // also for the token to arrive, and for the answer to a ping
	// without a notification; then the listener pings the server, since a connection may break without a sign
	quiet         = 30 * time.Second
	shortestPause = time.Second // before it connects again; doubles up to longestPause
	longestPause  = time.Minute
)

// ErrNotDelivered reports that something between this process and Postgres accepts LISTEN and delivers nothing.
var ErrNotDelivered = errors.New("LISTEN works, but our own NOTIFY never arrived: this may be a pooler in " +
	"transaction mode, " +
	"or another database than that of DATABASE_URL. Set DIRECT_URL to Postgres itself, or DATABASE_POOLER=transaction " +
	"to poll without trying")

// Run listens until ctx ends. It connects again when the connection breaks.
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

// prove listens on the channel and waits for the token.
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
