// Package web is the domain http: requests to hosts that the operator of the worker listed.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/outbound"
	"github.com/gemworker/gem/receipts"
	"golang.org/x/net/http/httpguts"
)

const (
	maxRequestBody  = 1 << 20   // bytes
	maxResponseBody = 256 << 10 // bytes; the rest is cut off
	maxHeaders      = 64 << 10  // bytes, of a response
	maxRedirects    = 5
)

// HTTP has the tools of the domain.
type HTTP struct {
	config    config
	transport *http.Transport
}

type config struct {
	AllowedHosts allowList `envconfig:"HTTP_ALLOWED_HOSTS" may:"a list such as api.example.com,10.0.0.5:8080 of hosts, each with or without a port, without scheme and path" desc:"The hosts that http.request may reach, separated by commas. One with a port may be in a private network."`
}

// Domain returns the domain http. Without hosts in HTTP_ALLOWED_HOSTS, calls to its tool end as not_configured.
func Domain() handlers.Domain {
	h := &HTTP{transport: &http.Transport{
		Proxy: nil, // a proxy would resolve names itself, so that no address could be checked
		// One request per connection: each goes to an address that was checked for it.
		DisableKeepAlives:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}}
	h.resolveWith(nil)
	return handlers.Domain{Tools: h, Config: &h.config, Remote: []string{"*"}}
}

// resolveWith makes connections with resolver, or with the system's if it is nil.
func (h *HTTP) resolveWith(resolver *net.Resolver) {
	h.transport.DialContext = func(ctx context.Context, network, hostPort string) (net.Conn, error) {
		dialer := &net.Dialer{Timeout: 10 * time.Second, Resolver: resolver}
		dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
			address, err := netip.ParseAddrPort(resolved)
			if err != nil || !h.config.AllowedHosts[hostPort] && !isPublic(address.Addr()) {
				return handlers.Fail("private_address", fmt.Sprintf(
					"%s leads to an address that is not public: it can be reached only if HTTP_ALLOWED_HOSTS lists it with its port.",
					hostPort))
			}
			return nil
		}
		return dialer.DialContext(ctx, network, hostPort)
	}
}

// Request is a request to make.
type Request struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"` // at most 1 MiB
}

// Response is the server's response, whatever its status code.
type Response struct {
	StatusCode int `json:"status_code"`
	// Headers has the values of a repeated header joined by ", ". Set-Cookie is omitted, because receipts are stored, and
	// must not contain a session.
	Headers   map[string]string `json:"headers"`
	Body      string            `json:"body"`      // at most 256 KiB of UTF-8; invalid bytes and NUL became U+FFFD
	Truncated bool              `json:"truncated"` // the body was longer
}

// Request is http.request. It follows up to 5 redirects, each to a listed host, and not from https to http. A redirect
// to another scheme, host or port is followed without the caller's headers.
func (h *HTTP) Request(ctx context.Context, call *handlers.Call, in Request) (Response, error) {
	if len(h.config.AllowedHosts) == 0 {
		return Response{}, &handlers.NotConfigured{
			Reason:      "HTTP_ALLOWED_HOSTS lists no host, so no request can be made.",
			RequiredEnv: []string{"HTTP_ALLOWED_HOSTS"},
			NextSteps: []string{
				"Set HTTP_ALLOWED_HOSTS in the worker's environment to the hosts that may be reached, such as " +
					"api.example.com,hooks.example.com:8443.",
				"Restart the worker and make the call again.",
			},
		}
	}
	target, err := h.config.AllowedHosts.check(in.URL)
	if err != nil {
		return Response{}, err
	}
	header, err := requestHeader(in.Headers)
	if err != nil {
		return Response{}, err
	}
	if len(in.Body) > maxRequestBody {
		return Response{}, handlers.Fail("body_too_large",
			fmt.Sprintf("body has %d bytes, and can have %d (1 MiB).", len(in.Body), maxRequestBody))
	}

	method, body := in.Method, in.Body
	for followed := 0; ; followed++ {
		resp, err := h.send(ctx, call, method, target, header, body)
		if unsent, ok := errors.AsType[*handlers.TransientError](err); ok && unsent.NothingSent {
			if followed > 0 {
				return Response{}, handlers.Transient(fmt.Errorf("the request was sent, and redirected: %w", unsent.Err))
			}
			return Response{}, handlers.NothingSent(fmt.Errorf("nothing was sent: %w", unsent.Err), 0)
		}
		if err != nil {
			return Response{}, err
		}
		location := resp.Header.Get("Location")
		if !slices.Contains(redirects, resp.StatusCode) || location == "" {
			return readResponse(resp)
		}
		_ = resp.Body.Close()
		if followed == maxRedirects {
			return Response{}, handlers.Fail("too_many_redirects",
				fmt.Sprintf("The request was redirected more than %d times.", maxRedirects))
		}
		next, err := h.follow(target, location)
		if err != nil {
			return Response{}, err
		}
		// As browsers do: a redirected POST becomes a GET, unless the status code forbids it.
		if code := resp.StatusCode; code == http.StatusSeeOther && method != http.MethodHead ||
			(code == http.StatusMovedPermanently || code == http.StatusFound) && method == http.MethodPost {
			method, body = http.MethodGet, ""
			header.Del("Content-Type")
		}
		if next.Scheme != target.Scheme || next.Host != target.Host {
			kept := http.Header{}
			if contentType := header.Values("Content-Type"); body != "" && len(contentType) > 0 {
				kept["Content-Type"] = contentType // it belongs to the body, which a 307 or 308 sends along
			}
			header = kept
		}
		target = next
	}
}

// follow checks the target of a redirect.
func (h *HTTP) follow(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	if err != nil {
		return nil, handlers.Fail("invalid_redirect", "The server redirects to something that is not a URL.")
	}
	next, err := h.config.AllowedHosts.checkURL(to)
	if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
		failure.Message = "The server redirects to a URL that cannot be requested: " + failure.Message
		return nil, failure
	}
	if from.Scheme == "https" && next.Scheme == "http" {
		return nil, handlers.Fail("redirect_to_http", "The server redirects from https to http, which would reveal what "+
			"https hides.")
	}
	return next, nil
}

var redirects = []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
	http.StatusPermanentRedirect}

// send makes one request. The caller closes the response's body.
func (h *HTTP) send(ctx context.Context, call *handlers.Call, method string, target *url.URL, header http.Header,
	body string) (
	*http.Response, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, method, target.String(), content)
	if err != nil {
		return nil, handlers.Fail("invalid_request", "The method or the url cannot be written as a request.")
	}
	req.Header = header.Clone()
	if len(req.Header.Values("User-Agent")) == 0 {
		req.Header.Set("User-Agent", "gem")
	}
	shown := receipts.Shorten(target.Scheme+"://"+target.Host+target.EscapedPath(), 2000)
	// RoundTrip follows no redirects, keeps no cookies and adds no headers.
	resp, err := outbound.Once(h.transport).RoundTrip(req)
	if err == nil {
		call.Called("http", shown, resp.StatusCode)
		return resp, nil
	}
	if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
		return nil, failure // refused before the connection: no request was made
	}
	call.Called("http", shown, 0)
	if unknown := (*net.DNSError)(nil); errors.As(err, &unknown) {
		return nil, handlers.NothingSent(fmt.Errorf("the name %s could not be resolved", target.Hostname()), 0)
	}
	if !sent.Load() {
		return nil, handlers.NothingSent(fmt.Errorf("%s could not be connected: %s", target.Host, value.OneLine(err.Error())),
			0)
	}
	if strings.Contains(err.Error(), "server response headers exceeded") {
		return nil, handlers.Fail("headers_too_large", fmt.Sprintf("The headers of the response take more than %d bytes.",
			maxHeaders))
	}
	if handlers.IsNetworkError(err) || ctx.Err() != nil {
		return nil, handlers.Transient(fmt.Errorf("no answer from %s: %w", target.Host, err))
	}
	return nil, handlers.Fail("request_failed", fmt.Sprintf("The request to %s failed: %s", target.Host,
		value.OneLine(err.Error())))
}

// ownHeaders are set by the worker, or belong to one connection and not to the request.
var ownHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection",
	"Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Upgrade", "Expect", "Accept-Encoding"}

func requestHeader(given map[string]string) (http.Header, error) {
	header := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(given[name]):
			return nil, handlers.Fail("invalid_header",
				fmt.Sprintf("The header %q has a name or a value that is not allowed: it may have a line break.",
					receipts.Shorten(name, 100)))
		case slices.Contains(ownHeaders, canonical):
			return nil, handlers.Fail("header_not_allowed",
				fmt.Sprintf("The header %s is set by the worker: leave it out.", canonical))
		case header[canonical] != nil:
			return nil, handlers.Fail("invalid_header", fmt.Sprintf("The header %s is given twice.",
				receipts.Shorten(canonical, 100)))
		}
		header[canonical] = []string{given[name]}
	}
	return header, nil
}

func readResponse(resp *http.Response) (Response, error) {
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBody+1))
	if err != nil && len(data) <= maxResponseBody {
		return Response{}, handlers.Transient(fmt.Errorf("the server answered %d, then the connection broke: %w",
			resp.StatusCode, err))
	}
	body := receipts.Storable(receipts.Truncate(string(data), maxResponseBody))
	out := Response{
		StatusCode: resp.StatusCode,
		Headers:    map[string]string{},
		Body:       receipts.Truncate(body, maxResponseBody),
		Truncated:  max(len(data), len(body)) > maxResponseBody, // a replacement takes three bytes
	}
	for name, values := range resp.Header {
		if name != "Set-Cookie" && name != "Set-Cookie2" {
			out.Headers[receipts.Storable(name)] = receipts.Storable(strings.Join(values, ", "))
		}
	}
	return out, nil
}
