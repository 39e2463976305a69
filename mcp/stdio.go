package mcp

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// How long requests may take once no new ones are read.
const (
	ownEnd    = 500 * time.Millisecond // after the end of stdin, for results
	anyEnd    = 300 * time.Millisecond // after that, as pending
	signalEnd = 1500 * time.Millisecond
)

// ServeStdio serves one client that sends messages over in, one per line, and reads the answers from out. It returns
// soon after in or ctx ends: waiting requests are answered as pending, and their calls continue.
func (d *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	answers := &lines{to: out}
	messages := newFilter(in, answers, func() {
		if !d.o.CancelOnDisconnect { // otherwise each request must see the end
			answers.answered(ownEnd)
			d.Stop()
			answers.answered(anyEnd)
		}
	})
	session, err := d.sdk.Connect(withCaller(context.WithoutCancel(ctx), caller{subject: d.o.Subject}),
		&sdk.IOTransport{Reader: messages, Writer: answers}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		if errors.Is(err, syscall.EPIPE) { // nobody reads the answers
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
