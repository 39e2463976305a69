package provider

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gemworker/gem/internal/outbound"
)

// The limits of a connection and of a body.
const (
	// MaxLine is the maximum length of a line of a body, in bytes.
	MaxLine = 1 << 20
	// BytesIdle is how long a body may send no bytes.
	BytesIdle = 120 * time.Second

	connectTime    = 10 * time.Second
	maxHeaderBytes = 256 << 10
)

// NewHTTP returns the client for one provider. The environment does not affect it: it uses the given proxy, or none.
//
// It follows no redirects, because another host would get the key: the 3xx is the response. It keeps no cookies and
// requests no compression. It uses TLS 1.2 or newer, and HTTP/2 if available. It limits bodies as [Bound] does. The
// context of the request limits the duration.
func NewHTTP(proxy *url.URL) *http.Client {
	t := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTime,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return &http.Client{
		Transport:     Bound(t, BytesIdle, MaxLine),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Bound returns a transport whose bodies end with an [*Error] if they send no byte for idle ([Stalled]), or have a line
// of more than line bytes ([AnswerTooBig]).
func Bound(next http.RoundTripper, idle time.Duration, line int) http.RoundTripper {
	return bounds{next, idle, line}
}

type bounds struct {
	next http.RoundTripper
	idle time.Duration
	line int
}

func (b bounds) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	resp, err := outbound.Once(b.next).RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	body := &boundBody{ReadCloser: resp.Body, cancel: cancel, bounds: b}
	body.timer = time.AfterFunc(b.idle, func() { cancel(errIdle) })
	body.timer.Stop()
	body.ctx = ctx
	resp.Body = body
	return resp, nil
}

// CloseIdleConnections makes [http.Client.CloseIdleConnections] work.
func (b bounds) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

var errIdle = errors.New("no byte came in time")

// boundBody is a body with limits. The clock runs only while a reader waits for a byte, so slow readers are allowed.
type boundBody struct {
	io.ReadCloser
	bounds bounds
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	line   int // bytes of the line so far
	err    error
}

func (b *boundBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	b.timer.Reset(b.bounds.idle)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if over := b.count(p[:n]); over >= 0 {
		b.err = &Error{Kind: AnswerTooBig, Message: fmt.Sprintf("a line of the response has more than %d bytes",
			b.bounds.line)}
		b.cancel(b.err)
		return over, b.err
	}
	if err != nil && err != io.EOF && errors.Is(context.Cause(b.ctx), errIdle) {
		err = &Error{Kind: Stalled, Message: fmt.Sprintf("the response brought no byte for %s", b.bounds.idle)}
	}
	b.err = err
	return n, err
}

// count returns the number of bytes of p within the limit of a line, or -1 if all are.
func (b *boundBody) count(p []byte) int {
	for at := 0; ; {
		end := bytes.IndexByte(p[at:], '\n')
		length := end
		if end < 0 {
			length = len(p) - at
		}
		if b.line+length > b.bounds.line {
			return at + b.bounds.line - b.line
		}
		if end < 0 {
			b.line += length
			return -1
		}
		b.line, at = 0, at+end+1
	}
}

func (b *boundBody) Close() error {
	err := b.ReadCloser.Close()
	b.timer.Stop()
	b.cancel(nil)
	return err
}
