// Package switching is an HTTP server that switches to another protocol without a request to do so.
package switching

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// New returns the URL of a server that answers each request with 101 Switching Protocols and keeps the connection open.
// closed receives a value when a client closes its connection.
func New(t testing.TB) (url string, closed <-chan struct{}) {
	t.Helper()
	left := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		left <- struct{}{}
	}))
	t.Cleanup(s.Close)
	return s.URL, left
}
