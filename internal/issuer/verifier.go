// Package issuer handles an issuer of tokens: it fetches the issuer's keys, verifies the tokens that the issuer
// signed, and lets people sign in there with OpenID Connect.
package issuer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/golang-jwt/jwt/v5"
)

// Skew is how far the clocks of an issuer and of this process may differ.
const Skew = 30 * time.Second

// RefusedError is why a token or a sign-in is not valid. The sender may read the reason, which
// quotes nothing of the token.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refuse(why string) error { return &RefusedError{why} }

// Verifier accepts the tokens of one issuer for one audience.
type Verifier struct {
	parser *jwt.Parser
	keys   *Keys           // of the issuer; nil with a secret
	secret handlers.Secret // of HS256
}

// asymmetric are the algorithms with public keys. HS256 is not one of them: its key would be a published text.
var asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// NewVerifier returns a verifier with published keys, or with a secret if keys is nil.
func NewVerifier(issuer, audience string, keys *Keys, secret handlers.Secret, now func() time.Time) *Verifier {
	methods := asymmetric
	if keys == nil {
		methods = []string{"HS256"}
	}
	parser := jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithLeeway(Skew), jwt.WithTimeFunc(now), jwt.WithJSONNumber(),
		jwt.WithStrictDecoding())
	return &Verifier{keys: keys, secret: secret, parser: parser}
}

// Verify returns the claims of a token; numbers are of type [json.Number]. The error is a [*RefusedError] if the
// token is not valid. Any other error means that the validity is unknown.
func (v *Verifier) Verify(ctx context.Context, token string) (claims map[string]any, err error) {
	claims = map[string]any{}
	var keyErr error
	_, err = v.parser.ParseWithClaims(token, jwt.MapClaims(claims), func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical { // RFC 7515: an unknown critical header makes a token invalid
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
		return nil, keyErr
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, refuse("the token has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return nil, refuse("the token is not valid yet")
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return nil, refuse("the token is for another audience")
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return nil, refuse("the token is from another issuer")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return nil, refuse("the token lacks exp, iss or aud")
	case err != nil: // its text may quote the token
		return nil, refuse("the token's form, algorithm, key or signature is wrong")
	case !hasUniqueNames(token):
		return nil, refuse("the token has a claim twice")
	}
	return claims, nil
}

// hasUniqueNames reports whether no object in the claims of a verified token has a duplicate name. Other readers of
// such a token might read another value.
func hasUniqueNames(token string) bool {
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	return uniqueIn(d)
}

// uniqueIn reads one value, and reports whether its names are unique.
func uniqueIn(d *json.Decoder) bool {
	begin, err := d.Token()
	if err != nil {
		return false
	}
	if begin != json.Delim('{') && begin != json.Delim('[') {
		return true
	}
	names := map[any]bool{}
	for d.More() {
		if begin == json.Delim('{') {
			name, err := d.Token()
			if err != nil || names[name] {
				return false
			}
			names[name] = true
		}
		if !uniqueIn(d) {
			return false
		}
	}
	_, err = d.Token()
	return err == nil
}
