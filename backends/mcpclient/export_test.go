package mcpclient

import (
	"crypto/tls"
	"crypto/x509"
)

// Trust has all servers of the tests accept a certificate. It must run before them.
func Trust(certificate *x509.Certificate) {
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	wire.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// Readable returns how many messages and how many other parts a text has.
func Readable(text []byte) (messages, skipped int) {
	m, s := readable(text)
	return len(m), len(s)
}
