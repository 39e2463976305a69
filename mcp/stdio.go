package mcp

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// How long requests have to be answered once there are no new ones.
const (
	ownEnd    = 500 * time.Millisecond // after the end of stdin, for results
	anyEnd    = 300 * time.Millisecond // after that, as pending
	signalEnd = 1500 * time.Millisecond
)

// ServeStdio serves one client that sends messages over in, a line each, and reads the answers from out. It returns soon after in has ended or ctx has:
// requests that wait are answered as pending, and their calls go on.
func (d *Door) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	answers := &lines{to: out}
	messages := newFilter(in, answers, func() {
		if !d.o.CancelOnDisconnect { // otherwise each request is to hear of the end
			answers.answered(ownEnd)
			d.Stop()
			answers.answered(anyEnd)
		}
	})
	session, err := d.server.Connect(withCaller(context.WithoutCancel(ctx), caller{subject: d.o.Subject}), &sdk.IOTransport{Reader: messages, Writer: answers}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		if errors.Is(err, syscall.EPIPE) { // nobody reads the answers any more
			return nil
		}
		return err
	case <-ctx.Done():
	}
	messages.closing.Store(true)
	d.Stop()
	answers.answered(signalEnd)
	go func() { _ = session.Close() }()
	select {
	case err = <-ended:
	case <-time.After(anyEnd):
	}
	return err
}
