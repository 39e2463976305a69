package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// complaint is a server's description of an error. Each server has a different form.
type complaint struct {
	message string
	code    string // a word, such as rate_limit_exceeded, from code, type or status
	status  int    // the HTTP status that it amounts to, or 0
}

// complaintOf reads the body of an error: an object, a list of them, a string, or any text.
func complaintOf(body []byte) complaint {
	var c complaint
	c.read(body, 0)
	if c.message == "" && c.code == "" {
		if text := bytes.TrimSpace(body); len(text) > 0 && !bytes.HasPrefix(text, []byte("<")) && !json.Valid(text) {
			c.message = string(text)
		}
	}
	return c
}

// read takes the values at the known places, from the outside to the inside.
func (c *complaint) read(raw json.RawMessage, depth int) {
	if depth > 4 {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		c.say(text)
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		if len(list) > 0 {
			c.read(list[0], depth+1)
		}
		return
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return
	}
	for _, name := range []string{"error", "message", "detail", "msg"} {
		if inside, ok := fields[name]; ok {
			c.read(inside, depth+1)
		}
	}
	for _, name := range []string{"code", "status", "type"} {
		c.classify(fields[name])
	}
}

func (c *complaint) say(text string) {
	if c.message == "" {
		c.message = text
	}
}

func (c *complaint) classify(raw json.RawMessage) {
	word := strings.Trim(string(raw), `"`)
	if n, err := strconv.Atoi(word); err == nil {
		if c.status == 0 && n >= 400 && n < 600 {
			c.status = n
		}
		return
	}
	if c.code == "" && word != "null" && len(word) < 100 && json.Unmarshal(raw, &word) == nil && word != "error" {
		c.code = word
	}
}

// String returns the message, with the code where the message does not have it.
func (c *complaint) String() string {
	switch {
	case c.message == "":
		return c.code
	case c.code == "" || strings.Contains(c.message, c.code):
		return c.message
	}
	return c.message + " (" + c.code + ")"
}

var (
	quota        = regexp.MustCompile(`(?i)insufficient_quota|billing`)
	unauthorized = regexp.MustCompile(
		`(?i)^(invalid_api_key|authentication_error|permission_error|permission_denied|unauthenticated)$`)
	noKey      = regexp.MustCompile(`(?i)api key not valid|api_key_invalid`)
	limited    = regexp.MustCompile(`(?i)rate.?limit|too_many_requests|resource_exhausted|insufficient_quota`)
	overloaded = regexp.MustCompile(`(?i)overloaded|unavailable|at_capacity`)
	notFound   = regexp.MustCompile(`(?i)not_found`)
	moderated  = regexp.MustCompile(`(?i)\bflagged\b|moderation|content[ _]policy|prompt injection`)
	badRequest = regexp.MustCompile(`(?i)invalid_request|invalid_argument|bad_?request|context_length|unprocessable`)
)

// isFinal reports whether another attempt is useless, because the account has no credit left.
func (c *complaint) isFinal() bool { return quota.MatchString(c.code) }

// isUnauthorized reports whether the key is wrong, even with another status: Gemini sends 400.
func (c *complaint) isUnauthorized() bool {
	return unauthorized.MatchString(c.code) || noKey.MatchString(c.message)
}

// statusOf returns the status. OpenRouter sends 403 if it rejects the words of a prompt: neither the key
// nor the model is at fault, and no other request should wait because of it.
func (c *complaint) statusOf(status int) int {
	if status == http.StatusForbidden && (moderated.MatchString(c.message) || moderated.MatchString(c.code)) {
		return http.StatusBadRequest
	}
	return status
}

// inStream returns the error inside a response that began as a success.
func (c *complaint) inStream(key string) *provider.Error {
	status := c.status
	switch {
	case status != 0:
	case limited.MatchString(c.code):
		status = http.StatusTooManyRequests
	case overloaded.MatchString(c.code):
		status = http.StatusServiceUnavailable
	case notFound.MatchString(c.code):
		status = http.StatusNotFound
	case badRequest.MatchString(c.code):
		status = http.StatusBadRequest
	default:
		status = http.StatusInternalServerError
	}
	e := provider.Failed(c.statusOf(status), nil, c.String(), key, time.Time{})
	if c.isUnauthorized() {
		e.Kind, e.Message = provider.Unauthorized, ""
	}
	e.Final = e.Final || c.isFinal()
	return e
}
