package handlers

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Which hosts http.request may reach. A URL is compared with HTTP_ALLOWED_HOSTS by name, and the address behind the name
// when the connection is made, so that a name that comes to point elsewhere opens nothing.

// Validate reports the entries of HTTP_ALLOWED_HOSTS that are no host and no host:port. Such an entry allows nothing.
func (c HTTPConfig) Validate() error {
	for _, entry := range c.AllowedHosts {
		if _, _, err := parseEntry(entry); err != nil {
			return fmt.Errorf("HTTP_ALLOWED_HOSTS: %w", err)
		}
	}
	return nil
}

// allowList is HTTP_ALLOWED_HOSTS, normalised.
type allowList struct {
	hosts map[string]bool // on the scheme's own port, at public addresses
	exact map[string]bool // host:port, wherever it is
}

func newAllowList(entries []string) allowList {
	l := allowList{hosts: map[string]bool{}, exact: map[string]bool{}}
	for _, entry := range entries {
		host, port, err := parseEntry(entry)
		switch {
		case err != nil:
		case port == "":
			l.hosts[host] = true
		default:
			l.exact[net.JoinHostPort(host, port)] = true
		}
	}
	return l
}

func (l allowList) empty() bool { return len(l.hosts) == 0 && len(l.exact) == 0 }

// parseEntry reads one entry: a host, or a host and a port.
func parseEntry(entry string) (host, port string, err error) {
	host = strings.TrimSpace(entry)
	if _, err := netip.ParseAddr(host); err != nil || !strings.Contains(host, ":") {
		if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
			host, port = host[:i], host[i+1:]
			if port, err = normalPort(port); err != nil {
				return "", "", fmt.Errorf("%q: %w", clip(entry, 100), err)
			}
		}
		if inner, ok := strings.CutPrefix(host, "["); ok {
			host, ok = strings.CutSuffix(inner, "]")
			if !ok || !strings.Contains(host, ":") {
				return "", "", fmt.Errorf("%q is no host such as api.example.com, api.example.com:8443 or [2001:db8::1]:8443", clip(entry, 100))
			}
		}
	}
	if host, err = normalHost(host); err != nil {
		return "", "", fmt.Errorf("%q is no host such as api.example.com, api.example.com:8443 or [2001:db8::1]:8443", clip(entry, 100))
	}
	return host, port, nil
}

// check returns the URL in the one form in which it is compared and requested, or why it may not be.
func (l allowList) check(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, refuse("invalid_url", "url is no URL such as https://api.example.com/path.")
	}
	return l.checkURL(u)
}

func (l allowList) checkURL(u *url.URL) (*url.URL, error) {
	own := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	switch {
	case own == "" || u.Opaque != "" || u.Host == "":
		return nil, refuse("invalid_url", "url must begin with http:// or https:// and name a host.")
	case u.User != nil:
		return nil, refuse("credentials_in_url", "url carries a user or a password: send an Authorization header instead.")
	}
	host, err := normalHost(u.Hostname())
	if err != nil {
		return nil, refuse("invalid_url", "url names no valid host.")
	}
	port := u.Port()
	if port == "" {
		port = own
	} else if port, err = normalPort(port); err != nil {
		return nil, refuse("invalid_url", "url has no valid port.")
	}
	address := net.JoinHostPort(host, port)
	if !l.exact[address] && (!l.hosts[host] || port != own) {
		return nil, refuse("host_not_allowed", fmt.Sprintf("%s is not listed in HTTP_ALLOWED_HOSTS: whoever runs the worker can add it.", address))
	}

	// Requested in the form that was compared: nothing after this reads the name in another way.
	checked := *u
	checked.Host = address
	if port == own {
		checked.Host = strings.TrimSuffix(address, ":"+port)
	}
	checked.Fragment, checked.RawFragment = "", ""
	return &checked, nil
}

// allowsAddress says whether a connection to host:port, as the transport writes it, may go to this address.
func (l allowList) allowsAddress(hostPort string, address netip.Addr) bool {
	return l.exact[hostPort] || isPublic(address)
}

func normalPort(port string) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("%q is no port", clip(port, 20))
	}
	return strconv.FormatUint(n, 10), nil
}

// normalHost brings a name or an address into one form: lower case, without the dot at the end, international names in
// their ASCII form, addresses in their shortest. Addresses that embed others stay what they are.
func normalHost(host string) (string, error) {
	if strings.Contains(host, ":") {
		address, err := netip.ParseAddr(host)
		if err != nil || address.Zone() != "" {
			return "", fmt.Errorf("%q is no address", clip(host, 100))
		}
		return address.String(), nil
	}
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(host), "."), ".")
	for i, label := range labels {
		ascii, err := asciiLabel(label)
		if err != nil {
			return "", err
		}
		labels[i] = ascii
	}
	name := strings.Join(labels, ".")
	if len(name) > 253 {
		return "", fmt.Errorf("the name is longer than 253 bytes")
	}
	return name, nil
}

func asciiLabel(label string) (string, error) {
	if slices.ContainsFunc([]rune(label), func(r rune) bool { return r >= 0x80 }) {
		label = "xn--" + punycode(label)
	}
	if label == "" || len(label) > 63 {
		return "", fmt.Errorf("a label of a name has 1 to 63 bytes")
	}
	for _, r := range label {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return "", fmt.Errorf("a name has letters, digits, hyphens and dots")
		}
	}
	return label, nil
}

// punycode encodes a label with letters outside ASCII, after RFC 3492. A name that it writes otherwise than a registry
// would is another name, which is not listed.
func punycode(label string) string {
	const base, tMin, tMax, skew, damp, firstBias, firstN = 36, 1, 26, 38, 700, 72, 0x80
	runes := []rune(label)
	var out []byte
	for _, r := range runes {
		if r < 0x80 {
			out = append(out, byte(r))
		}
	}
	basic, done := len(out), len(out)
	if basic > 0 {
		out = append(out, '-')
	}
	delta, bias, n := 0, firstBias, rune(firstN)
	for done < len(runes) {
		next := rune(math.MaxInt32)
		for _, r := range runes {
			if r >= n && r < next {
				next = r
			}
		}
		delta += int(next-n) * (done + 1)
		n = next
		for _, r := range runes {
			if r < n {
				delta++
			}
			if r != n {
				continue
			}
			q := delta
			for k := base; ; k += base {
				t := min(max(k-bias, tMin), tMax)
				if q < t {
					break
				}
				out = append(out, "abcdefghijklmnopqrstuvwxyz0123456789"[t+(q-t)%(base-t)])
				q = (q - t) / (base - t)
			}
			out = append(out, "abcdefghijklmnopqrstuvwxyz0123456789"[q])
			// The bias adapts to how far apart the letters lie.
			if done == basic {
				delta /= damp
			} else {
				delta /= 2
			}
			done++
			delta += delta / done
			bias = 0
			for ; delta > (base-tMin)*tMax/2; bias += base {
				delta /= base - tMin
			}
			bias += (base - tMin + 1) * delta / (delta + skew)
			delta = 0
		}
		delta++
		n++
	}
	return string(out)
}

// notPublic are the ranges that are not the public internet, from IANA's registries of special-purpose addresses.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// publicV6 is the only part of IPv6 that is routed in public. What lies outside takes in loopback, link-local, unique
// local and multicast addresses, and those that carry an IPv4 address: mapped, compatible and NAT64.
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

// refuse is the failure of a request that is not made. reason is for machines.
func refuse(reason, message string) error {
	return &Failure{Message: message, Details: map[string]string{"reason": reason}}
}
