package issuer

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/gemworker/gem/internal/outbound"
)

// maxAnswer limits an answer of an issuer, in bytes.
const maxAnswer = 1 << 20

// httpClient returns a client that follows no redirect: it sends requests only to the configured address, or to one
// that the issuer published.
func httpClient(timeout time.Duration) *http.Client {
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Timeout: timeout, CheckRedirect: stay, Transport: outbound.Once(http.DefaultTransport)}
}

// send sends a request that asks for JSON, and returns the status and the body, which must not be longer than
// maxAnswer.
func send(client *http.Client, req *http.Request) (status int, body []byte, err error) {
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("read the answer of %s: %w", req.URL.Redacted(), err)
	case len(body) > maxAnswer:
		return 0, nil, fmt.Errorf("the answer of %s is longer than %d bytes", req.URL.Redacted(), maxAnswer)
	}
	return resp.StatusCode, body, nil
}

// IsSafe reports whether a text is the URL of a server whose answers nobody on the network can change: an https URL,
// or one of this machine. It must not have a user, a query or a fragment.
func IsSafe(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.User == nil && u.RawQuery == "" && u.Fragment == "" && safe(u)
}

func safe(u *url.URL) bool {
	return u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && outbound.IsLoopback(u.Hostname()))
}
