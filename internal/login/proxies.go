package login

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are the addresses of trusted proxies.
type Proxies []netip.Prefix

// ParseProxies reads addresses and networks, such as 10.0.0.0/8.
func ParseProxies(texts []string) (all Proxies, err error) {
	for _, text := range texts {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
			}
			a = a.Unmap()
			p = netip.PrefixFrom(a, a.BitLen())
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// sent reports whether a request came from a trusted proxy.
func (p Proxies) sent(r *http.Request) bool { return p.has(peer(r)) }

func (p Proxies) has(a netip.Addr) bool {
	for _, one := range p {
		if one.Contains(a) {
			return true
		}
	}
	return false
}

// client returns the origin of a request: the last address that is not a proxy's. A client can add addresses before
// it, but not after it.
func (p Proxies) client(r *http.Request) netip.Addr {
	from := peer(r)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && p.has(from); i-- {
		before, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		from = before.Unmap().WithZone("")
	}
	return from
}

// peer returns the address at the other end of the connection.
func peer(r *http.Request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return a.Addr().Unmap().WithZone("")
}
