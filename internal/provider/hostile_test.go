package provider_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// The body of a 101 is the connection itself. No context ends a read of it, so a server could hold a caller forever.
func TestAServerThatSwitchesProtocolsHoldsNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadAtLeast(conn, make([]byte, 4096), 1)
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		<-over
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := provider.NewHTTP(nil).Do(r) //nolint:bodyclose // it is closed below
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read, done := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadAll(resp.Body)
		done()
	}()
	select {
	case <-read.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the body does not end")
	}
}
