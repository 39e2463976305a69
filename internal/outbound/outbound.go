// Package outbound is what all clients of other services have in common.
package outbound

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync/atomic"
)

// IsLoopback reports whether a host, without a port, is a name or an address of this machine alone.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Once returns a transport that sends a request with a body only once. It tries again only over HTTP/1, if nothing of
// the request was sent and it has no idempotency key. The bodies of its responses end with the context of their
// request. The body of a 101 Switching Protocols does not: it is the connection itself. It is closed, and the response
// has no body.
func Once(next http.RoundTripper) http.RoundTripper { return transport{next} }

// errReset is the error of a request that net/http would send again.
var errReset = errors.New("the server broke off the request and may have carried it out")

// once returns a request that net/http does not send again. Over HTTP/2, net/http would send it several more times
// after resets, whatever the server has done by then. If it has an idempotency key, net/http would send it again after
// a broken connection.
func once(r *http.Request) *http.Request {
	body := r.GetBody
	if body == nil {
		return r
	}
	if r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil {
		r = r.WithContext(r.Context())
		r.GetBody = nil
		return r
	}
	var http2 atomic.Bool
	connected := func(to httptrace.GotConnInfo) {
		secure, ok := to.Conn.(*tls.Conn)
		http2.Store(ok && secure.ConnectionState().NegotiatedProtocol == "h2")
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: connected}))
	r.GetBody = func() (io.ReadCloser, error) {
		if http2.Load() {
			return nil, errReset
		}
		return body()
	}
	return r
}

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(once(r))
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
