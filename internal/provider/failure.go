package provider

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter limits the pause that a provider may request.
const maxRetryAfter = 24 * time.Hour

// tooLong matches the words with which providers report that a prompt does not fit the model.
var tooLong = regexp.MustCompile(
	`(?i)context[ _-]?(length|window|size|limit)|maximum context|(prompt|input|request)( is|'s)? too long|` +
		`too many tokens|input token count|exceeds? the (maximum|max|model'?s?)[a-z ]* tokens?`)

// Failed maps an unsuccessful response to an [*Error]: its kind by the status, and for 400 and 422 also by the message.
// message is the provider's message from the body. It is not part of the error if the kind is [Unauthorized].
func Failed(status int, h http.Header, message, key string, now time.Time) *Error {
	e := &Error{
		Kind:       kindOf(status, message),
		Status:     status,
		Message:    Clean(message, key),
		RetryAfter: RetryAfter(h, now),
		Final:      strings.EqualFold(strings.TrimSpace(h.Get("X-Should-Retry")), "false"),
		RequestID:  RequestID(h, key),
	}
	if e.Kind == Unauthorized {
		e.Message = ""
	}
	return e
}

func kindOf(status int, message string) ErrorKind {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusPaymentRequired, status == http.StatusForbidden:
		return Unauthorized
	case status == http.StatusNotFound, status >= 300 && status < 400:
		return NotFound
	case status == http.StatusTooManyRequests:
		return RateLimited
	case status == http.StatusServiceUnavailable, status == 529:
		return Overloaded
	case status == http.StatusRequestTimeout, status >= 500:
		return Unavailable
	case status == http.StatusRequestEntityTooLarge:
		return TooLarge
	case tooLong.MatchString(message):
		return ContextLength
	}
	return BadRequest
}

// RequestID returns the provider's id of the request, or "" if there is none.
func RequestID(h http.Header, key string) string {
	for _, name := range []string{"Request-Id", "X-Request-Id"} {
		if id := h.Get(name); id != "" {
			return Word(id, key)
		}
	}
	return ""
}

// Broke maps an error of the transport to an [*Error]: [Unreachable] before the response has begun, [Cut] after. If ctx
// has ended, it returns the cause. It returns an [*Error] in the chain of err, such as an error of [Bound], unchanged.
// The cause is only in the message, cleaned, because its text may contain data from the server.
func Broke(ctx context.Context, err error, begun bool, key string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	kind := Unreachable
	if begun {
		kind = Cut
	}
	return &Error{Kind: kind, Message: Clean(err.Error(), key)}
}

// RetryAfter reads retry-after-ms, and then retry-after, which has seconds or a date. It returns 0 for a value that is
// unreadable, not positive or in the past. The result is at most 24 hours.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if d := number(h.Get("Retry-After-Ms"), time.Millisecond); d > 0 {
		return d
	}
	text := h.Get("Retry-After")
	if d := number(text, time.Second); d > 0 {
		return d
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

func number(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil && !math.IsInf(n, 1) || math.IsNaN(n) || n <= 0 {
		return 0
	}
	if n >= float64(maxRetryAfter/unit) {
		return maxRetryAfter
	}
	return time.Duration(n * float64(unit))
}
