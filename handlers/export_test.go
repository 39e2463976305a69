package handlers

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
)

// What the tests of this package reach beyond its exported names.

var (
	IsPublic   = isPublic
	NormalHost = normalHost
	Words      = words
)

// HTTPWith is the domain http with a resolver and with certificates to trust.
func HTTPWith(c HTTPConfig, resolver *net.Resolver, roots *x509.CertPool) HTTP {
	h := newHTTP(c, resolver)
	h.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return h
}

// CommsWith is the domain comms.
func CommsWith(d Deps) Comms { return newComms(d) }

// AllowsURL says whether a request to a URL passes the list, and as what it would be made.
func AllowsURL(entries []string, url string) (string, error) {
	u, err := newAllowList(entries).check(url)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// AllowsAddress says whether a connection to host:port may be made to an address.
func AllowsAddress(entries []string, hostPort, address string) bool {
	return newAllowList(entries).allowsAddress(hostPort, netip.MustParseAddr(address))
}
