package supabase

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"
)

// Claims are what a token says.
type Claims map[string]any

// User is the token of a signed-in user, whose id is sub.
func (p *Project) User(sub string) string {
	return p.Sign(Claims{"role": "authenticated", "aud": "authenticated", "sub": sub,
		"exp": time.Now().Add(time.Hour).Unix()})
}

// Server is the token of a server of the project's own: its secret key.
func (p *Project) Server() string { return p.Sign(Claims{"role": "service_role"}) }

// Anon is the token that the gateway gives to visitors.
func (p *Project) Anon() string { return p.Sign(Claims{"role": "anon"}) }

// Secret is what the tokens are signed with.
func (p *Project) Secret() string { return p.secret }

// Sign makes a token that PostgREST accepts.
func (p *Project) Sign(c Claims) string {
	return Token(Claims{"alg": "HS256", "typ": "JWT"}, c, p.secret)
}

// Token makes a token of any header, claims and secret, so also a forged one.
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
