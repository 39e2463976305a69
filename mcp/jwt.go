package mcp

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gemworker/gem/internal/issuer"
)

// jwtVerifier identifies callers by the tokens of an issuer.
type jwtVerifier struct{ tokens *issuer.Verifier }

func (v *jwtVerifier) verify(ctx context.Context, token string) (caller, error) {
	claims, err := v.tokens.Verify(ctx, token)
	if err != nil {
		return caller{}, err
	}
	subject, _ := claims["sub"].(string)
	if problem := subjectProblem(subject); problem != "" {
		return caller{}, refuse("the token's sub %s", problem)
	}
	// A token with such a role is for PostgREST, where it has fewer or more rights than a signed-in user.
	if role, _ := claims["role"].(string); role == "anon" || role == "service_role" {
		return caller{}, refuse("tokens of the role %s are not for this server", role)
	}
	all, err := json.Marshal(claims)
	if err != nil {
		return caller{}, refuse("the token's claims cannot be read")
	}
	return caller{subject: subject, claims: all, scopes: scopesOf(claims)}, nil
}

// scopesOf returns the scopes of a token: scope is a text in RFC 9068, and scp a text or a list with some issuers.
func scopesOf(claims map[string]any) []string {
	var scopes []string
	for _, name := range []string{"scope", "scp"} {
		switch value := claims[name].(type) {
		case string:
			scopes = append(scopes, strings.Fields(value)...)
		case []any:
			for _, s := range value {
				if s, ok := s.(string); ok {
					scopes = append(scopes, s)
				}
			}
		}
	}
	return scopes
}
