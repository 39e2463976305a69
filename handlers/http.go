package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	httpMaxRequestBody = 1 << 20   // bytes
	httpMaxAnswerBody  = 256 << 10 // bytes; what comes after is cut off
	httpMaxHeaders     = 64 << 10  // bytes, of an answer
	httpMaxRedirects   = 5
)

// HTTP is the domain http: requests to the hosts that the worker's owner has listed. See [HTTPConfig] for which.
type HTTP struct {
	allowed   allowList
	transport *http.Transport
}

// newHTTP resolves names with resolver, or as the system does where that is nil.
func newHTTP(c HTTPConfig, resolver *net.Resolver) HTTP {
	allowed := newAllowList(c.AllowedHosts)
	return HTTP{allowed: allowed, transport: &http.Transport{
		// No proxy: it would resolve names itself, where no address can be checked.
		Proxy: nil,
		DialContext: func(ctx context.Context, network, hostPort string) (net.Conn, error) {
			dialer := &net.Dialer{Timeout: 10 * time.Second, Resolver: resolver, Control: allowed.control(hostPort)}
			return dialer.DialContext(ctx, network, hostPort)
		},
		// One request a connection: each is made to an address that was checked for it.
		DisableKeepAlives:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: httpMaxHeaders,
	}}
}

// control is asked with the resolved address before each connection.
func (l allowList) control(hostPort string) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		resolved, err := netip.ParseAddrPort(address)
		if err != nil || !l.allowsAddress(hostPort, resolved.Addr()) {
			return refuse("private_address", fmt.Sprintf(
				"%s leads to an address that is not public, and is reached only when HTTP_ALLOWED_HOSTS lists it with its port.", hostPort))
		}
		return nil
	}
}

// HTTPRequest is a request to make.
type HTTPRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"` // at most 1 MiB
}

// HTTPResponse is the answer, whatever its status code.
type HTTPResponse struct {
	StatusCode int `json:"status_code"`
	// Headers has the values of a repeated header joined by ", ". Set-Cookie is left out: a receipt is kept for ever, and
	// is no place for sessions.
	Headers   map[string]string `json:"headers"`
	Body      string            `json:"body"`      // at most 256 KiB of UTF-8; what is none became U+FFFD, and so did NUL
	Truncated bool              `json:"truncated"` // the body was longer
}

// Request is http.request. It follows up to 5 redirects, each to a listed host, and not from https to http. Where a
// redirect leads to another scheme, host or port, the caller's headers stay behind.
func (h HTTP) Request(ctx context.Context, call *Call, in HTTPRequest) (HTTPResponse, error) {
	if h.allowed.empty() {
		return HTTPResponse{}, &NotConfigured{
			Reason:      "No host is listed in HTTP_ALLOWED_HOSTS, so no request may leave.",
			RequiredEnv: []string{"HTTP_ALLOWED_HOSTS"},
			NextSteps: []string{
				"Set HTTP_ALLOWED_HOSTS in the worker's environment to the hosts that may be reached, such as api.example.com,hooks.example.com:8443.",
				"Restart the worker and make the call again.",
			},
		}
	}
	target, err := h.allowed.check(in.URL)
	if err != nil {
		return HTTPResponse{}, err
	}
	header, err := requestHeader(in.Headers)
	if err != nil {
		return HTTPResponse{}, err
	}
	if len(in.Body) > httpMaxRequestBody {
		return HTTPResponse{}, refuse("body_too_large", fmt.Sprintf("body has %d bytes, and may have %d (1 MiB).", len(in.Body), httpMaxRequestBody))
	}

	method, body := in.Method, in.Body
	for redirects := 0; ; redirects++ {
		resp, err := h.send(ctx, call, method, target, header, body)
		if err != nil {
			return HTTPResponse{}, err
		}
		location := resp.Header.Get("Location")
		if !isRedirect(resp.StatusCode) || location == "" {
			return readAnswer(resp)
		}
		_ = resp.Body.Close()
		if redirects == httpMaxRedirects {
			return HTTPResponse{}, refuse("too_many_redirects", fmt.Sprintf("The request was redirected more than %d times.", httpMaxRedirects))
		}
		next, err := h.follow(target, location)
		if err != nil {
			return HTTPResponse{}, err
		}
		// As browsers do: a POST that was redirected becomes a GET, unless the status code says that it must not.
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

// follow checks where a redirect leads.
func (h HTTP) follow(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	if err != nil {
		return nil, refuse("invalid_redirect", "The server redirects to what is no URL.")
	}
	next, err := h.allowed.checkURL(to)
	if failure := (*Failure)(nil); errors.As(err, &failure) {
		failure.Message = "The server redirects to a place that may not be reached: " + failure.Message
		return nil, failure
	}
	if from.Scheme == "https" && next.Scheme == "http" {
		return nil, refuse("redirect_to_http", "The server redirects from https to http, which would reveal what https hides.")
	}
	return next, nil
}

func isRedirect(code int) bool {
	switch code {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// send makes one request. The caller closes the answer's body.
func (h HTTP) send(ctx context.Context, call *Call, method string, target *url.URL, header http.Header, body string) (*http.Response, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), content)
	if err != nil {
		return nil, refuse("invalid_request", "The method or the url can not be written as a request.")
	}
	req.Header = header.Clone()
	if len(req.Header.Values("User-Agent")) == 0 {
		req.Header.Set("User-Agent", "gem")
	}
	shown := clip(target.Scheme+"://"+target.Host+target.EscapedPath(), 2000)
	// One exchange: no redirect, no cookie and no header of a client's own.
	resp, err := h.transport.RoundTrip(req)
	if err == nil {
		call.Called("http", shown, resp.StatusCode)
		return resp, nil
	}
	if failure := (*Failure)(nil); errors.As(err, &failure) {
		return nil, failure // refused before the connection: nothing was called
	}
	call.Called("http", shown, 0)
	if unknown := (*net.DNSError)(nil); errors.As(err, &unknown) {
		return nil, Transient(fmt.Errorf("the name %s could not be resolved", target.Hostname()))
	}
	if strings.Contains(err.Error(), "server response headers exceeded") {
		return nil, refuse("headers_too_large", fmt.Sprintf("The headers of the answer take more than %d bytes.", httpMaxHeaders))
	}
	if isNetworkError(err) || ctx.Err() != nil {
		return nil, Transient(fmt.Errorf("no answer from %s: %w", target.Host, err))
	}
	return nil, &Failure{
		Message: fmt.Sprintf("The request to %s failed: %s", target.Host, foreign(err.Error())),
		Details: map[string]string{"reason": "request_failed"},
	}
}

// ownHeaders are set by the worker, or belong to one connection and not to the request.
var ownHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection",
	"Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Upgrade", "Expect", "Accept-Encoding"}

func requestHeader(given map[string]string) (http.Header, error) {
	header := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !isToken(name) || strings.ContainsFunc(given[name], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return nil, refuse("invalid_header", fmt.Sprintf("The header %q has a name or a value that is not allowed, such as one with a line break.", clip(name, 100)))
		case slices.Contains(ownHeaders, canonical):
			return nil, refuse("header_not_allowed", fmt.Sprintf("The header %s is set by the worker: leave it out.", canonical))
		case header[canonical] != nil:
			return nil, refuse("invalid_header", fmt.Sprintf("The header %s is given twice.", clip(canonical, 100)))
		}
		header[canonical] = []string{given[name]}
	}
	return header, nil
}

func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func readAnswer(resp *http.Response) (HTTPResponse, error) {
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, httpMaxAnswerBody+1))
	if err != nil && len(data) <= httpMaxAnswerBody {
		return HTTPResponse{}, Transient(fmt.Errorf("the server answered %d, and the connection broke inside the body: %w", resp.StatusCode, err))
	}
	out := HTTPResponse{StatusCode: resp.StatusCode, Headers: map[string]string{}}
	for name, values := range resp.Header {
		if name != "Set-Cookie" && name != "Set-Cookie2" {
			out.Headers[storable(name)] = storable(strings.Join(values, ", "))
		}
	}
	if len(data) > httpMaxAnswerBody {
		data, out.Truncated = data[:httpMaxAnswerBody], true
		// A letter that was cut in two is left out, and not replaced.
		for cut := 1; cut < utf8.UTFMax; cut++ {
			if tail := data[len(data)-cut:]; utf8.RuneStart(tail[0]) {
				if !utf8.FullRune(tail) {
					data = data[:len(data)-cut]
				}
				break
			}
		}
	}
	out.Body = storable(string(data))
	// Replacements take three bytes each, so that the text may have grown over the limit.
	if len(out.Body) > httpMaxAnswerBody {
		cut := httpMaxAnswerBody
		for !utf8.RuneStart(out.Body[cut]) {
			cut--
		}
		out.Body, out.Truncated = out.Body[:cut], true
	}
	return out, nil
}

// storable makes a text one that jsonb can hold.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
