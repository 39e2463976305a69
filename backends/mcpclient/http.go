package mcpclient

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/internal/outbound"
)

// requests sends the requests to a server at a URL, with its headers, and limits the answers.
type requests struct {
	skip      func(text []byte) // called with each part that is not a message
	forgotten func()            // of a session that the server no longer has
	secrets   secrets
	header    http.Header
	version   *atomic.Pointer[string]
}

// wire is the transport to servers. It is the default transport, except that waiting for a connection is limited.
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
	asked := askedFor(req)
	var wrote atomic.Bool
	sent := req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() {
		wrote.Store(true)
	}}))
	if asked != nil {
		sendWhileAwaited(sent, deliveryOf(req.Context(), asked))
	}
	resp, err := outbound.Once(wire).RoundTrip(sent)
	if err != nil {
		if !wrote.Load() {
			err = &unsentError{err}
		}
		return nil, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, left: maxMessage}
	switch {
	case asked != nil:
		if err := r.answer(asked, resp); err != nil {
			return nil, err
		}
		return resp, nil
	case resp.StatusCode >= 500 || slices.Contains(deciding, resp.StatusCode):
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxQuoted+1))
		return nil, r.statusError(resp, text)
	case expectsNothing(req): // the SDK would end the connection after an odd answer
		_ = resp.Body.Close()
		return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody, Request: req}, nil
	}
	hideOtherType(resp.Header)
	return resp, nil // the SDK knows more about it
}

// sendWhileAwaited lets the body of a call's request leave only while somebody waits for the answer: a server cannot
// carry out a call without its body.
func sendWhileAwaited(req *http.Request, d *delivery) {
	if d == nil {
		return
	}
	req.Body = &deliveredBody{req.Body, d}
	if again := req.GetBody; again != nil {
		req.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			return &deliveredBody{body, d}, err
		}
	}
}

type deliveredBody struct {
	io.ReadCloser
	delivery *delivery
}

func (b *deliveredBody) Read(p []byte) (int, error) {
	if !b.delivery.begin() {
		return 0, errors.New("the call has ended")
	}
	return b.ReadCloser.Read(p)
}

// deciding are the statuses below 500 that mean more than the body, unless the body has a result.
var deciding = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly,
	http.StatusTooManyRequests}

// maxQuoted is the number of bytes of a body that are searched for secrets before its beginning is quoted.
const maxQuoted = 64 << 10

func (r *requests) statusError(resp *http.Response, text []byte) error {
	return &statusError{code: resp.StatusCode, text: strings.TrimSpace(r.secrets.beginning(string(text), maxQuoted)),
		after: retryAfter(resp.Header.Get("Retry-After"))}
}

// hideOtherType removes an unexpected media type from a header. The SDK would quote it in lower case, in which scrub
// would not find an echoed secret.
func hideOtherType(header http.Header) {
	switch kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")); kind {
	case "application/json", "text/event-stream", "text/plain", "text/html", "":
	default:
		header.Set("Content-Type", "other")
	}
}

// statusError is an answer whose status is the reason for the failure.
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

// errForgotten is the error of a request whose session the server no longer has.
var errForgotten = errors.New("the server says that it forgot the session")

var errRedirect = errors.New("the server redirects: write the address to which it leads into domains.json")

// refuseRedirect prevents redirects, so that other hosts do not get the headers.
func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// limitedBody is the body of an answer. Reading it fails beyond its limit.
type limitedBody struct {
	io.ReadCloser
	left int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxMessage)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
