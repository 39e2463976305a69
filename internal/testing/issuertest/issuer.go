// Package issuertest is an issuer of tokens for tests. It publishes keys, signs tokens and signs people in with OpenID
// Connect. By default it behaves correctly, and tests can make each part of it misbehave.
package issuertest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// Secret is the symmetric key in the published set, which nobody may use.
const Secret = "a secret of thirty-two bytes or more"

// Issuer publishes keys at each path except those of OpenID Connect.
type Issuer struct {
	*httptest.Server
	RSA     *rsa.PrivateKey   // kid rsa
	EC      *ecdsa.PrivateKey // kid ec
	Ed      ed25519.PrivateKey
	Fetches atomic.Int64 // number of requests for the keys

	mu     sync.Mutex
	answer http.HandlerFunc // replaces the answer with the keys
	keys   []map[string]string

	signIn
}

// rsaKey is created once, because that is slow.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, _ := rsa.GenerateKey(rand.Reader, 2048)
	return key
})

// New starts an issuer that stops at the end of the test.
func New(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{}
	i.RSA = rsaKey()
	i.EC, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, i.Ed, _ = ed25519.GenerateKey(rand.Reader)
	point, err := i.EC.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	i.keys = []map[string]string{
		{"kty": "RSA", "kid": "rsa", "use": "sig", "n": text64(i.RSA.N.Bytes()), "e": "AQAB"},
		{"kty": "EC", "kid": "ec", "alg": "ES256", "crv": "P-256", "x": text64(point[1:33]), "y": text64(point[33:])},
		{"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": text64(i.Ed.Public().(ed25519.PublicKey))},
		{"kty": "RSA", "kid": "for encryption", "use": "enc", "n": text64(i.RSA.N.Bytes()), "e": "AQAB"},
		{"kty": "oct", "kid": "symmetric", "k": text64([]byte(Secret))},
		{"kty": "EC", "kid": "off the curve", "crv": "P-256", "x": text64(point[1:33]), "y": text64(point[1:33])},
		{"kty": "RSA", "kid": "too short", "n": text64(i.RSA.N.Bytes()[:64]), "e": "AQAB"},
	}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	i.begin(i)
	return i
}

func (i *Issuer) serve(w http.ResponseWriter, r *http.Request) {
	if i.signIn.serve(w, r) {
		return
	}
	i.Fetches.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.answer != nil {
		i.answer(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": i.keys})
}

// Answers replaces the answer to requests for keys.
func (i *Issuer) Answers(with http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = with
}

// Rename changes the id of a published key.
func (i *Issuer) Rename(kid, to string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.keys {
		if k["kid"] == kid {
			k["kid"] = to
		}
	}
}

// Sign signs claims and returns the token.
func Sign(t testing.TB, method jwt.SigningMethod, key any, kid string, claims map[string]any) string {
	t.Helper()
	signed, err := sign(method, key, kid, claims)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func sign(method jwt.SigningMethod, key any, kid string, claims map[string]any) (string, error) {
	token := jwt.NewWithClaims(method, jwt.MapClaims(claims))
	if kid != "" {
		token.Header["kid"] = kid
	}
	return token.SignedString(key)
}

func text64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
