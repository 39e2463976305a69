package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/gemworker/gem/internal/issuer"
)

// verifier identifies callers by their tokens. Its error is an [*issuer.RefusedError] if the token is not valid. Any
// other error means that the validity is unknown.
type verifier interface {
	verify(ctx context.Context, token string) (caller, error)
}

func refuse(format string, args ...any) error {
	return &issuer.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// authenticate identifies the caller of each request by its bearer token. Without a verifier, the server's one
// subject makes all requests.
func (s *httpServer) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := caller{subject: s.server.o.Subject}
		if s.verifier != nil {
			token, err := bearer(r)
			if err == nil {
				c, err = s.verifier.verify(r.Context(), token)
			}
			var refused *issuer.RefusedError
			switch {
			case errors.As(err, &refused):
				s.challenge(w, http.StatusUnauthorized, refused.Reason, given(token, "invalid_token"), "")
				return
			case err != nil:
				if !errors.Is(err, issuer.ErrKeysAway) { // which was logged when they were fetched
					s.server.o.Log.Warn("tokens cannot be checked, see GEM_MCP_JWKS: " + err.Error())
				}
				w.Header().Set("Retry-After", "5")
				http.Error(w, "the token cannot be checked at the moment", http.StatusServiceUnavailable)
				return
			}
		}
		c.limited = s.config.Scopes == "on"
		next.ServeHTTP(w, r.WithContext(withCaller(r.Context(), c)))
	})
}

// given returns the code of an error about a token, or "" without a token: RFC 6750 allows no code then.
func given(token, code string) string {
	if token == "" {
		return ""
	}
	return code
}

// bearer returns the token of a request.
func bearer(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", refuse("a bearer token is required")
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	if len(headers) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t,") {
		return "", refuse("there must be one header Authorization, of the form: Bearer TOKEN")
	}
	return token, nil
}

// challenge rejects a request as RFC 6750 and RFC 9728 require. The code and the scope may be empty.
func (s *httpServer) challenge(w http.ResponseWriter, status int, reason, code, scope string) {
	parts := []string{fmt.Sprintf("resource_metadata=%q", s.metadataURL)}
	if code != "" {
		parts = append(parts, fmt.Sprintf("error=%q", code), fmt.Sprintf("error_description=%q", reason))
	}
	if scope != "" {
		parts = append(parts, fmt.Sprintf("scope=%q", scope))
	}
	w.Header().Set("WWW-Authenticate", "Bearer "+strings.Join(parts, ", "))
	http.Error(w, reason, status)
}

// subjectProblem returns why a text cannot be the created_by of a call, or "".
func subjectProblem(subject string) string {
	switch {
	case subject == "":
		return "is missing"
	case len([]rune(subject)) > 255:
		return "has more than 255 characters"
	case strings.ContainsFunc(subject, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "has unprintable characters"
	}
	return ""
}
