package outbound_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/outbound"
	"github.com/gemworker/gem/internal/testing/switching"
)

func TestAResponseThatSwitchesProtocolsHasNoBodyAndNoConnection(t *testing.T) {
	t.Parallel()
	url, closed := switching.New(t)
	client := http.Client{Transport: outbound.Once(http.DefaultTransport)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusSwitchingProtocols || len(body) > 0 || err != nil {
		t.Errorf("%d %q %v", resp.StatusCode, body, err)
	}
	<-closed
	_ = resp.Body.Close()
}

// resetting starts a server that takes each request over HTTP/2 and then resets it, with an error code of RFC 9113,
// section 7.
func resetting(t *testing.T, code byte) (server *httptest.Server, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	server = httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, conn *tls.Conn, _ http.Handler) {
			const settings, headers, data, ended, answered = 4, 1, 0, 1, 1
			_, _ = io.CopyN(io.Discard, conn, 24) // the preface
			_, _ = conn.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
			for {
				var head [9]byte
				if _, err := io.ReadFull(conn, head[:]); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
				kind, flags, stream := head[3], head[4], head[5:]
				switch {
				case kind == settings && flags&answered == 0:
					_, _ = conn.Write([]byte{0, 0, 0, settings, answered, 0, 0, 0, 0})
				case (kind == headers || kind == data) && flags&ended != 0:
					requests.Add(1)
					_, _ = conn.Write(append(append([]byte{0, 0, 4, 3, 0}, stream...), 0, 0, 0, code))
				}
			}
		},
	}
	server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, requests
}

func TestARequestThatTheServerResetsIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]byte{"protocol error": 1, "refused stream": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, requests := resetting(t, code)
			wire := server.Client().Transport.(*http.Transport).Clone()
			wire.ForceAttemptHTTP2 = true
			client := http.Client{Transport: outbound.Once(wire), Timeout: 5 * time.Second}
			defer client.CloseIdleConnections()
			for n := range int64(2) { // on a new connection, and on one that was used
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("a call"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if got := requests.Load(); err == nil || got != n+1 {
					t.Errorf("request %d: %d were sent, %v", n+1, got, err)
				}
			}
		})
	}
}
