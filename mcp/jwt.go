package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/golang-jwt/jwt/v5"
)

// skew is how far the clocks of an issuer and of this process may be apart.
const skew = 30 * time.Second

// jwtVerifier accepts the tokens of one issuer for one audience.
type jwtVerifier struct {
	parser *jwt.Parser
	keys   *keySet         // of the issuer; nil with a secret
	secret handlers.Secret // of HS256
}

// asymmetric are the algorithms whose keys an issuer publishes. HS256 is not among them: its key would be a text that everybody can read.
var asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// newJWTVerifier takes either keys or a secret.
func newJWTVerifier(issuer, audience string, keys *keySet, secret handlers.Secret, now func() time.Time) *jwtVerifier {
	methods := asymmetric
	if keys == nil {
		methods = []string{"HS256"}
	}
	return &jwtVerifier{keys: keys, secret: secret, parser: jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithLeeway(skew), jwt.WithTimeFunc(now), jwt.WithJSONNumber(), jwt.WithStrictDecoding())}
}

func (v *jwtVerifier) verify(ctx context.Context, token string) (caller, error) {
	claims := jwt.MapClaims{}
	var keyErr error
	_, err := v.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical { // RFC 7515: what is critical and unknown makes a token invalid
			return nil, errors.New("crit")
		}
		if v.keys == nil {
			return []byte(v.secret.Reveal()), nil
		}
		kid, _ := t.Header["kid"].(string)
		var key any
		key, keyErr = v.keys.key(ctx, kid, t.Method.Alg())
		return key, keyErr
	})
	switch {
	case keyErr != nil:
		return caller{}, keyErr
	case errors.Is(err, jwt.ErrTokenExpired):
		return caller{}, refuse("the token has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return caller{}, refuse("the token is not valid yet")
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return caller{}, refuse("the token is for another audience")
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return caller{}, refuse("the token is of another issuer")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return caller{}, refuse("the token lacks exp, iss or aud")
	case err != nil: // its text may quote the token
		return caller{}, refuse("the token's form, algorithm, key or signature is wrong")
	}
	subject, _ := claims["sub"].(string)
	if problem := subjectProblem(subject); problem != "" {
		return caller{}, refuse("the token's sub %s", problem)
	}
	// A token with such a role is for PostgREST, which gives it less or more than a signed-in user has.
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
func scopesOf(claims jwt.MapClaims) []string {
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
