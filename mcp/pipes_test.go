package mcp

import (
	"net"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// pipe is one end of a connection that can be cut.
type pipe struct {
	sdk.IOTransport
	conn net.Conn
}

// hangUp cuts the connection, like the death of a client.
func (p *pipe) hangUp() error { return p.conn.Close() }

func pipes() (here, there *pipe) {
	a, b := net.Pipe()
	return &pipe{sdk.IOTransport{Reader: a, Writer: a}, a}, &pipe{sdk.IOTransport{Reader: b, Writer: b}, b}
}
