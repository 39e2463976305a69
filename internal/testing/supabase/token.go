package supabase

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"
)

// Claims are the claims of a token.
type Claims map[string]any

// User returns the token of a signed-in user with the id sub.
func (p *Project) User(sub string) string {
	return p.Sign(Claims{"role": "authenticated", "aud": "authenticated", "sub": sub,
		"exp": time.Now().Add(time.Hour).Unix()})
}

// Server returns the token of the project's own server: its secret key.
func (p *Project) Server() string { return p.Sign(Claims{"role": "service_role"}) }

// Anon returns the token that the gateway gives to visitors.
func (p *Project) Anon() string { return p.Sign(Claims{"role": "anon"}) }

// Secret returns the secret that signs the tokens.
func (p *Project) Secret() string { return p.secret }

// Sign returns a token that PostgREST accepts.
func (p *Project) Sign(c Claims) string {
	return Token(Claims{"alg": "HS256", "typ": "JWT"}, c, p.secret)
}

// Token returns a token with any header, claims and secret, including forged ones.
func Token(header, claims Claims, secret string) string {
	part := func(c Claims) string {
		text, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(header) + "." + part(claims)
	if header["alg"] == "none" {
		return signed + "."
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
