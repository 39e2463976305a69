package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestAStatusHasItsKind(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]provider.ErrorKind{
		301: provider.NotFound, 302: provider.NotFound, 307: provider.NotFound, 308: provider.NotFound,
		400: provider.BadRequest, 401: provider.Unauthorized, 402: provider.Unauthorized, 403: provider.Unauthorized,
		404: provider.NotFound,
		408: provider.Unavailable, 409: provider.BadRequest, 413: provider.TooLarge, 418: provider.BadRequest,
		422: provider.BadRequest, 429: provider.RateLimited,
		500: provider.Unavailable, 502: provider.Unavailable, 503: provider.Overloaded, 504: provider.Unavailable,
		524: provider.Unavailable, 529: provider.Overloaded,
	} {
		e := provider.Failed(status, http.Header{}, "it did not work", "", noon)
		if e.Kind != want || e.Status != status {
			t.Errorf("HTTP %d: got %s, want %s", status, e.Kind, want)
		}
		if wantMessage := want != provider.Unauthorized; (e.Message != "") != wantMessage {
			t.Errorf("HTTP %d: got the message %q", status, e.Message)
		}
	}
}

func TestAPromptThatDoesNotFitHasAKindOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, message := range []string{
		"This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
		"context_length_exceeded",
		"prompt is too long: 210000 tokens > 200000 maximum",
		"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
		"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
		"prompt too long; exceeded max context length by 4 tokens",
		"Prompt contains 140000 tokens, too large for model with 128000 maximum context length",
	} {
		if e := provider.Failed(400, http.Header{}, message, "", noon); e.Kind != provider.ContextLength {
			t.Errorf("%q: got %s", message, e.Kind)
		}
		if e := provider.Failed(429, http.Header{}, message, "", noon); e.Kind != provider.RateLimited {
			t.Errorf("429 with %q: got %s", message, e.Kind)
		}
	}
	for _, message := range []string{"max_tokens is too large: 5000", "unknown field \"context\"", "Invalid request"} {
		if e := provider.Failed(400, http.Header{}, message, "", noon); e.Kind != provider.BadRequest {
			t.Errorf("%q: got %s", message, e.Kind)
		}
	}
}

func TestRetryAfterIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ms, after string
		want      time.Duration
	}{
		{"", "", 0},
		{"", "7", 7 * time.Second},
		{"", " 1.5 ", 1500 * time.Millisecond},
		{"250", "7", 250 * time.Millisecond},
		{"0", "1", time.Second},
		{"soon", "1", time.Second},
		{"", "soon", 0},
		{"", "-3", 0},
		{"", "NaN", 0},
		{"", "Fri, 02 Jan 2026 12:00:48 GMT", 48 * time.Second},
		{"", "Fri, 02 Jan 2026 11:00:00 GMT", 0},
		{"", "Sat, 02 Jan 2027 12:00:00 GMT", 24 * time.Hour},
		{"", "99999999999999999999", 24 * time.Hour},
		{"1e400", "", 24 * time.Hour},
	} {
		h := http.Header{}
		if test.ms != "" {
			h.Set("Retry-After-Ms", test.ms)
		}
		if test.after != "" {
			h.Set("Retry-After", test.after)
		}
		if got := provider.RetryAfter(h, noon); got != test.want {
			t.Errorf("%q, %q: got %s, want %s", test.ms, test.after, got, test.want)
		}
		if got := provider.Failed(429, h, "", "", noon).RetryAfter; got != test.want {
			t.Errorf("%q, %q: the error has %s, want %s", test.ms, test.after, got, test.want)
		}
	}
}

func TestTheProviderNamesTheRequestAndWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	h := http.Header{"X-Request-Id": {"req_1"}, "X-Should-Retry": {"false"}}
	if e := provider.Failed(500, h, "", "", noon); e.RequestID != "req_1" || !e.Final {
		t.Errorf("got %+v", e)
	}
	h = http.Header{"Request-Id": {"hello sesame-and-more\x00"}, "X-Request-Id": {"no"}, "X-Should-Retry": {"true"}}
	if e := provider.Failed(500, h, "", "sesame", noon); e.RequestID != "hello [cut]-and-more" || e.Final {
		t.Errorf("got %+v", e)
	}
}

func TestAConnectionThatBreaksIsUnreachableOrCut(t *testing.T) {
	t.Parallel()
	broken := &url.Error{Op: "Post", URL: "https://provider.invalid/?key=sesame",
		Err: fmt.Errorf("the server said sesame: %w", io.ErrUnexpectedEOF)}
	for _, begun := range []bool{false, true} {
		e, ok := errors.AsType[*provider.Error](provider.Broke(t.Context(), broken, begun, "sesame"))
		if !ok || (e.Kind == provider.Cut) != begun || (e.Kind == provider.Unreachable) == begun {
			t.Fatalf("begun %v: got %+v", begun, e)
		}
		if e.Message != "the server said [cut]: unexpected EOF" || e.Err != nil {
			t.Errorf("got %+v", e)
		}
	}
	why := errors.New("nobody waits any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := provider.Broke(ctx, broken, true, ""); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestForeignTextIsOneCleanLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		" two\r\n\tlines\x00\x1b[31m ":    "two lines [31m",
		"not \xff valid":                  "not \uFFFD valid",
		"the key open sesame!? is no key": "the key [cut] is no key",
		"at /?key=open+sesame%21%3F&x=1":  "at /?key=[cut]&x=1",
		"at /open%20sesame%21%3F/x":       "at /[cut]/x",
		"Incorrect API key provided: sk-proj-abcd********wxyz.":               "Incorrect API key provided: [cut]",
		"Authorization: Bearer abcdef.ghi":                                    "Authorization: [cut]",
		"key AIzaSyA-1234567890 is no longer valid":                           "key [cut] is no longer valid",
		"hash 0123456789abcdef0123456789abcdef":                               "hash [cut]",
		"token dGhpcyBpcyBhIHNlY3JldCB0aGF0IGlzIGxvbmc=":                      "token [cut]",
		"model claude-haiku-4-5-20251001-of-a-very-long-name":                 "model claude-haiku-4-5-20251001-of-a-very-long-name",
		"see https://provider.invalid/docs/guides/errors/and/what/they/mean":  "see https://provider.invalid/docs/guides/errors/and/what/they/mean",
		"request 8e99c5c3-11c1-47b2-bb95-dec88a0fc0ab took too long to serve": "request 8e99c5c3-11c1-47b2-bb95-dec88a0fc0ab took too long to serve",
	} {
		if got := provider.Clean(text, "", "x", "open sesame!?"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := []rune(provider.Clean(strings.Repeat("ä", 501))); len(got) != 500 || got[499] != '…' {
		t.Errorf("got %d characters", len(got))
	}
	if got := provider.Clean(strings.Repeat("ä", 500)); got != strings.Repeat("ä", 500) {
		t.Errorf("got %d bytes", len(got))
	}
	// A key is cut out before the text is shortened: no part of it stays at the end.
	if got := provider.Clean(strings.Repeat("a ", 245)+"open sesame!?"+strings.Repeat(" b", 100),
		"open sesame!?"); strings.Contains(got, "open") {
		t.Errorf("got %q", got)
	}
}
