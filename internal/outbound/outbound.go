// Package outbound is what all clients of other services have in common.
package outbound

import (
	"net/http"
	"net/netip"
	"strings"
)

// IsLoopback reports whether a host, without a port, is a name or an address of this machine alone.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Bounded returns a transport whose bodies end with the context of their request. The body of a 101 Switching Protocols
// does not: it is the connection itself. It is closed, and the response has no body.
func Bounded(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		resp.Body = http.NoBody
	}
	return resp, err
}

// CloseIdleConnections lets [http.Client.CloseIdleConnections] through.
func (t transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
