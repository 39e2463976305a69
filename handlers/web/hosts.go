package web

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
	"golang.org/x/net/idna"
)

// allowList is HTTP_ALLOWED_HOSTS: hosts, and hosts with a port, in their normal form. A URL is compared with it by
// name, and the address of that name when the connection is made, so a name that changes its address gives access to
// nothing else.
//
// `api.example.com` allows that host on the scheme's own port (80 or 443), and only at public addresses.
// `intranet:8443` allows that port, even at an address in a private network: an operator who writes the port knows the
// service.
type allowList map[string]bool

// Decode reads the list from the environment.
func (l *allowList) Decode(list string) error {
	*l = allowList{}
	for entry := range strings.SplitSeq(list, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		host, port, err := parseEntry(entry)
		if err != nil {
			return err
		}
		if port != "" {
			host = net.JoinHostPort(host, port)
		}
		(*l)[host] = true
	}
	return nil
}

// parseEntry reads a host, or a host and a port. An IPv6 address with a port is in brackets.
func parseEntry(entry string) (host, port string, err error) {
	host = entry
	_, notAddress := netip.ParseAddr(entry)
	brackets := strings.HasPrefix(entry, "[")
	switch {
	case brackets && strings.HasSuffix(entry, "]"):
		host = entry[1 : len(entry)-1]
	case notAddress != nil && strings.Contains(entry, ":"):
		if host, port, err = net.SplitHostPort(entry); err == nil {
			port, err = normalPort(port)
		}
	}
	if err == nil && brackets && !strings.Contains(host, ":") {
		err = errors.New("brackets are for IPv6 addresses")
	}
	if err != nil {
		return "", "", err
	}
	host, err = normalHost(host)
	return host, port, err
}

// check returns the URL in the form in which it is compared and requested, or an error if it cannot be requested.
func (l allowList) check(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, handlers.Fail("invalid_url", "url is not a URL such as https://api.example.com/path.")
	}
	return l.checkURL(u)
}

func (l allowList) checkURL(u *url.URL) (*url.URL, error) {
	own := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	switch {
	case own == "" || u.Opaque != "" || u.Host == "":
		return nil, handlers.Fail("invalid_url", "url must begin with http:// or https:// and name a host.")
	case u.User != nil:
		return nil, handlers.Fail("credentials_in_url",
			"url carries a user or a password: send an Authorization header instead.")
	}
	host, err := normalHost(u.Hostname())
	if err != nil {
		return nil, handlers.Fail("invalid_url", "url has no valid host.")
	}
	port := u.Port()
	if port == "" {
		port = own
	} else if port, err = normalPort(port); err != nil {
		return nil, handlers.Fail("invalid_url", "url has no valid port.")
	}
	address := net.JoinHostPort(host, port)
	if !l[address] && (!l[host] || port != own) {
		return nil, handlers.Fail("host_not_allowed", address+
			" is not listed in HTTP_ALLOWED_HOSTS: the operator of the worker can add it.")
	}

	// It is requested in the form that was compared, so that later code cannot interpret the name differently.
	checked := *u
	checked.Host = address
	if port == own {
		checked.Host = strings.TrimSuffix(address, ":"+port)
	}
	checked.Fragment, checked.RawFragment = "", ""
	return &checked, nil
}

func normalPort(port string) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("%q is not a port", receipts.Shorten(port, 20))
	}
	return strconv.FormatUint(n, 10), nil
}

// names converts international names into ASCII. Unlike idna.Lookup it accepts underscores, which some hosts have.
var names = idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.VerifyDNSLength(true))

// normalHost returns the one form of a name or an address: lower case, without the dot at the end, international names
// in their ASCII form, addresses in their shortest. An IPv6 address that contains an IPv4 address remains an IPv6
// address.
func normalHost(host string) (string, error) {
	if strings.Contains(host, ":") {
		address, err := netip.ParseAddr(host)
		if err != nil || address.Zone() != "" {
			return "", fmt.Errorf("%q is not an address", receipts.Shorten(host, 100))
		}
		return address.String(), nil
	}
	name, err := names.ToASCII(strings.TrimSuffix(host, "."))
	if err != nil || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return "", fmt.Errorf("%q is not a host name", receipts.Shorten(host, 100))
	}
	return name, nil
}

// notPublic are the ranges outside the public internet, from IANA's registries of special-purpose addresses.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// publicV6 is the only part of IPv6 that is routed in public. Outside it are loopback, link-local, unique local and
// multicast addresses, and addresses that contain an IPv4 address: mapped, compatible and NAT64.
var publicV6 = netip.MustParsePrefix("2000::/3")

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(all))
	for i, s := range all {
		parsed[i] = netip.MustParsePrefix(s)
	}
	return parsed
}

func isPublic(address netip.Addr) bool {
	if !address.IsValid() || address.Zone() != "" || !address.Is4() && !publicV6.Contains(address) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(address) })
}
