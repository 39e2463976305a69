package mcp

import (
	"context"
	"io"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ServeStdio serves one client over lines of JSON, until in ends or ctx does. Calls go on in both cases.
func (d *Door) ServeStdio(ctx context.Context, in io.ReadCloser, out io.Writer) error {
	session, err := d.server.Connect(withCaller(context.WithoutCancel(ctx), caller{subject: d.o.Subject}), &sdk.IOTransport{Reader: in, Writer: keptOpen{out}}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	d.Stop() // waits are answered as pending
	go func() { _ = session.Close() }()
	select {
	case err = <-ended:
	case <-time.After(1500 * time.Millisecond):
	}
	return err
}

// keptOpen is a writer that others close.
type keptOpen struct{ io.Writer }

func (keptOpen) Close() error { return nil }
