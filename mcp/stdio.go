package mcp

import (
	"context"
	"io"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// How long requests have to be answered once nobody sends new ones.
const (
	afterEOF    = 800 * time.Millisecond  // the client has closed stdin
	afterSignal = 1500 * time.Millisecond // the process is to end
)

// ServeStdio serves one client that sends messages over in, a line each, and reads the answers from out. It returns when in has ended or ctx does: requests
// that wait are then answered as pending, if that is still possible, and their calls go on.
func (d *Door) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	answers := &lines{to: out}
	messages := newFilter(in, answers)
	session, err := d.server.Connect(withCaller(context.WithoutCancel(ctx), caller{subject: d.o.Subject}), &sdk.IOTransport{Reader: messages, Writer: answers}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	last := afterSignal
	select {
	case err := <-ended:
		return err
	case <-messages.ended:
		last = afterEOF
	case <-ctx.Done():
		go func() { _ = session.Close() }() // takes no new requests, and ends after those that are under way
	}
	d.Stop()
	select {
	case err = <-ended:
	case <-time.After(last):
	}
	return err
}
