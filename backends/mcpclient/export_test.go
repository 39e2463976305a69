package mcpclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Trust has all servers of the tests accept a certificate. It must run before them.
func Trust(certificate *x509.Certificate) {
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	wire.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// Writes reports whether a message to the program of a domain is on its way.
func Writes(s *Servers, domain string) bool {
	made := sessionOf(s, domain)
	return made != nil && made.input.since.Load() != 0
}

// Hurry makes the program of a domain count as hung at once.
func Hurry(s *Servers, domain string) { sessionOf(s, domain).input.patience = 0 }

func sessionOf(s *Servers, domain string) *session {
	of := s.byDomain[domain]
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.session
}

// Readable returns how many messages and how many other parts a text has.
func Readable(text []byte) (messages, skipped int) {
	m, s := readable(text, func(jsonrpc.ID) string { return "tools/call" })
	return len(m), len(s)
}

// SendLate sends the message of a call that has just ended to a server. It returns whether the message counts as sent.
func SendLate(ctx context.Context, url, message string) bool {
	var d delivery
	transport := &requests{version: new(atomic.Pointer[string]), skip: func([]byte) {}, forgotten: func() {}}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, deliveryKey{}, &d), http.MethodPost, url,
		strings.NewReader(message))
	if err != nil {
		panic(err)
	}
	sent := d.end()
	if resp, err := transport.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
	}
	return sent
}
