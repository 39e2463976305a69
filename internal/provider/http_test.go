package provider_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// get reads an answer by size bytes at a time.
func get(t *testing.T, c *http.Client, address string, size int) (status int, body string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var got strings.Builder
	_, err = io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{resp.Body}, make([]byte, size))
	if err != nil {
		if _, again := resp.Body.Read(make([]byte, 1)); again == nil || again.Error() != err.Error() {
			t.Errorf("after %v the next read got %v", err, again)
		}
	}
	return resp.StatusCode, got.String(), err
}

func TestARedirectIsTheResponse(t *testing.T) {
	t.Parallel()
	followed := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed = followed || r.URL.Path == "/elsewhere"
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	status, _, err := get(t, provider.NewHTTP(nil), s.URL, 4096)
	if status != http.StatusTemporaryRedirect || followed || err != nil {
		t.Errorf("got HTTP %d, followed %v, %v", status, followed, err)
	}
}

func TestTheEnvironmentGivesNoProxy(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "here")
	}))
	defer s.Close()
	if _, _, err := get(t, provider.NewHTTP(nil), s.URL, 4096); err != nil {
		t.Error(err)
	}
	proxied := false
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied = true }))
	defer proxy.Close()
	at, _ := url.Parse(proxy.URL)
	if _, _, err := get(t, provider.NewHTTP(at), "http://provider.invalid/", 4096); err != nil || !proxied {
		t.Errorf("the given proxy was used: %v, %v", proxied, err)
	}
	if _, _, err := get(t, provider.NewHTTP(nil), "http://provider.invalid/", 4096); err == nil ||
		strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("without a proxy: got %v", err)
	}
}

func TestABodyThatBringsNothingEnds(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer s.Close()
	c := &http.Client{Transport: provider.Bound(http.DefaultTransport, 20*time.Millisecond, provider.MaxLine)}
	_, got, err := get(t, c, s.URL, 4096)
	if got != "first\n" {
		t.Errorf("got %q", got)
	}
	if e, ok := errors.AsType[*provider.Error](provider.Broke(t.Context(), err, true, "")); !ok ||
		e.Kind != provider.Stalled {
		t.Errorf("got %v", err)
	}
	<-gone
}

func TestALineHasABound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		want int // bytes read before the error; -1: no error
	}{
		"lines within it":              {"12345678\n1234567\r\n1\n", -1},
		"a line of one byte more":      {"1234\n123456789\n", 5 + 8},
		"the last line, without end":   {"1234\n1234567890", 5 + 8},
		"an endless line":              {strings.Repeat("x", 1000), 8},
		"no line":                      {"", -1},
		"as much as may be, at an end": {"12345678", -1},
	} {
		for _, size := range []int{1, 2, 3, 7, 4096} {
			c := &http.Client{Transport: provider.Bound(canned(test.body), time.Minute, 8)}
			_, got, err := get(t, c, "http://provider.invalid/", size)
			if test.want < 0 {
				if err != nil || got != test.body {
					t.Errorf("%s, read by %d: got %q, %v", name, size, got, err)
				}
				continue
			}
			if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.AnswerTooBig || len(got) != test.want {
				t.Errorf("%s, read by %d: got %q, %v", name, size, got, err)
			}
		}
	}
}

// canned answers every request with a body.
type canned string

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(c)))}, nil
}

func TestTheBeginningOfALongFailureHasNoPartOfTheKey(t *testing.T) {
	t.Parallel()
	const key = "Zq3-Echoed-Key-Zq3-Echoed-Key"
	for before := 64<<10 - len(key); before < 64<<10; before++ {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, strings.Repeat(" ", before)+key+strings.Repeat(".", 1000))
		}))
		var got string
		_, _ = provider.Post{URL: server.URL, Key: key, Failed: func(_ int, _ http.Header, body []byte) *provider.Error {
			got = string(body)
			return &provider.Error{Kind: provider.BadRequest}
		}}.Send(t.Context())
		if text := strings.TrimSpace(strings.ReplaceAll(got, "[cut]", "")); text != "" || len(got) > 64<<10 {
			t.Errorf("%d bytes before it: %q", before, text)
		}
		server.Close()
	}
}

func TestAMediaTypeThatEchoesTheKeyIsInNoError(t *testing.T) {
	t.Parallel()
	const key = "Zq3-Echoed-Key"
	for kind, want := range map[string]string{
		"text/" + key: "of another type", "text/x; a=" + key: "of another type", key: "of another type", "": "of no type",
		"text/html; charset=utf-8": "text/html",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{kind}
		}))
		_, err := provider.Post{URL: server.URL, Key: key}.Send(t.Context())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Garbled ||
			e.Message != "the response is not a stream of events but "+want {
			t.Errorf("%q: %v", kind, err)
		}
		server.Close()
	}
}
