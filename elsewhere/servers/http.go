package servers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// requests sends the requests to a server at a URL, with its headers, and bounds the answers.
type requests struct {
	skip    func(text []byte) // of what is no message
	header  http.Header
	version *atomic.Pointer[string]
}

// wire is how servers are reached: as other requests, but for a bounded wait for a connection.
var wire = func() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}()

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, values := range r.header {
		req.Header[name] = values
	}
	if version := r.version.Load(); version != nil && req.Header.Get("Mcp-Protocol-Version") == "" {
		req.Header.Set("Mcp-Protocol-Version", *version)
	}
	resp, err := wire.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &bounded{ReadCloser: resp.Body, left: maxMessage}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		if asked := askedFor(req); asked != nil && resp.StatusCode < 500 {
			if err := r.answer(asked, resp); err != nil {
				return nil, err
			}
			return resp, nil
		}
		if resp.StatusCode < 500 {
			return resp, nil // the SDK knows more about it
		}
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 2000))
	return nil, &statusError{code: resp.StatusCode, text: string(text), after: retryAfter(resp.Header.Get("Retry-After"))}
}

// statusError is an answer that says by its status why the request failed.
type statusError struct {
	code  int
	text  string        // the beginning of its body
	after time.Duration // as its Retry-After says
}

// final reports whether the same request would get the same answer.
func (e *statusError) final() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return e.code < 500
}

func (e *statusError) Error() string {
	said := fmt.Sprintf("it answered %d %s", e.code, http.StatusText(e.code))
	if e.text != "" {
		said += ": " + e.text
	}
	return said
}

// retryAfter reads the header, in seconds or as a time; 0 for none.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

var errRedirect = errors.New("the server redirects: write the address to which it leads into domains.json")

// refuseRedirect keeps the headers from other hosts.
func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// bounded is the body of an answer, which fails beyond its limit. Events of a stream are bounded each by the SDK, and together by this.
type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxMessage)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
