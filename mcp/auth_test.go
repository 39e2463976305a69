package mcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/issuer"
	"github.com/gemworker/gem/internal/testing/issuertest"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

const (
	testIssuer   = "https://issuer.example"
	testResource = "https://tools.example.com/mcp"
	testSecret   = issuertest.Secret
)

// sign makes a token with claims that a verifier accepts, except for the changes; a nil removes a claim.
func sign(t *testing.T, method jwt.SigningMethod, key any, kid string, changes map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": testIssuer, "aud": testResource, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return issuertest.Sign(t, method, key, kid, claims)
}

// newJWTVerifier takes either keys or a secret.
func newJWTVerifier(keys *issuer.Keys, secret handlers.Secret) *jwtVerifier {
	return &jwtVerifier{issuer.NewVerifier(testIssuer, testResource, keys, secret, time.Now)}
}

func TestATokenOfTheIssuerForThisServerIsItsSubjects(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	v := newJWTVerifier(issuer.NewKeys(i.URL, time.Now), "")
	for name, token := range map[string]string{
		"RS256": sign(t, jwt.SigningMethodRS256, i.RSA, "rsa", nil),
		"PS256": sign(t, jwt.SigningMethodPS256, i.RSA, "rsa", nil),
		"ES256": sign(t, jwt.SigningMethodES256, i.EC, "ec", nil),
		"EdDSA": sign(t, jwt.SigningMethodEdDSA, i.Ed, "ed", nil),
		"among audiences": sign(t, jwt.SigningMethodES256, i.EC, "ec",
			map[string]any{"aud": []string{"other", testResource}}),
		"expired just now": sign(t, jwt.SigningMethodES256, i.EC, "ec",
			map[string]any{"exp": time.Now().Add(-issuer.Skew / 2).Unix()}),
		"of a Supabase user": sign(t, jwt.SigningMethodES256, i.EC, "ec", map[string]any{"role": "authenticated"}),
	} {
		c, err := v.verify(t.Context(), token)
		if err != nil || c.subject != "ada" || !json.Valid(c.claims) {
			t.Errorf("%s: caller %q, error %v", name, c.subject, err)
		}
	}
	if n := i.Fetches.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

func TestATokenThatIsNotForThisServerIsRefused(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	published := newJWTVerifier(issuer.NewKeys(i.URL, time.Now), "")
	secret := newJWTVerifier(nil, testSecret)
	other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	public, err := x509.MarshalPKIXPublicKey(&i.RSA.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	es := func(changes map[string]any) string { return sign(t, jwt.SigningMethodES256, i.EC, "ec", changes) }
	hs := func(changes map[string]any) string {
		return sign(t, jwt.SigningMethodHS256, []byte(testSecret), "", changes)
	}
	valid := es(nil)
	parts := strings.Split(valid, ".")
	critical := jwt.NewWithClaims(jwt.SigningMethodHS256,
		jwt.MapClaims{"iss": testIssuer, "aud": testResource, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()})
	critical.Header["crit"] = []string{"b64"}
	withCrit, _ := critical.SignedString([]byte(testSecret))
	twice := hs(nil)
	payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(twice, ".")[1])
	twice = strings.Split(twice, ".")[0] + "." + base64.RawURLEncoding.EncodeToString(
		append([]byte(`{"sub":"bob",`), payload[1:]...))
	signature, _ := jwt.SigningMethodHS256.Sign(twice, []byte(testSecret))
	twice += "." + base64.RawURLEncoding.EncodeToString(signature)
	for name, c := range map[string]struct {
		v     *jwtVerifier
		token string
		want  string
	}{
		"another audience": {published, es(map[string]any{"aud": "https://other.example/mcp"}), "audience"},
		"no audience":      {published, es(map[string]any{"aud": nil}), "lacks"},
		"another issuer":   {published, es(map[string]any{"iss": "https://evil.example"}), "issuer"},
		"no issuer":        {published, es(map[string]any{"iss": nil}), "lacks"},
		"expired": {
			published, es(map[string]any{"exp": time.Now().Add(-2 * issuer.Skew).Unix()}), "expired",
		},
		"without an end": {published, es(map[string]any{"exp": nil}), "lacks"},
		"not yet": {
			published, es(map[string]any{"nbf": time.Now().Add(2 * issuer.Skew).Unix()}), "not valid yet",
		},
		"no subject":                 {published, es(map[string]any{"sub": nil}), "sub is missing"},
		"an empty subject":           {published, es(map[string]any{"sub": ""}), "sub is missing"},
		"a subject that is a number": {published, es(map[string]any{"sub": 5}), "sub is missing"},
		"a long subject":             {published, es(map[string]any{"sub": strings.Repeat("a", 256)}), "255"},
		"NUL in the subject":         {published, es(map[string]any{"sub": "ada\x00"}), "unprintable"},
		"the role of a backend":      {published, es(map[string]any{"role": "service_role"}), "service_role"},
		"the role of nobody":         {published, es(map[string]any{"role": "anon"}), "anon"},
		"alg none": {
			published, sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "ec", nil), "wrong",
		},
		"alg none, for a secret": {
			secret, sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "", nil), "wrong",
		},
		"HS256 with the RSA key's PEM": {published, sign(t, jwt.SigningMethodHS256, asPEM, "rsa", nil), "wrong"},
		"HS256 with the RSA key's modulus": {
			published, sign(t, jwt.SigningMethodHS256, i.RSA.N.Bytes(), "rsa", nil), "wrong",
		},
		"HS256 with the set's symmetric": {
			published, sign(t, jwt.SigningMethodHS256, []byte(testSecret), "symmetric", nil), "wrong",
		},
		"RS256 where a secret counts": {secret, sign(t, jwt.SigningMethodRS256, i.RSA, "", nil), "wrong"},
		"HS512 where HS256 counts":    {secret, sign(t, jwt.SigningMethodHS512, []byte(testSecret), "", nil), "wrong"},
		"another secret": {
			secret, sign(t, jwt.SigningMethodHS256, []byte(testSecret+"!"), "", nil), "wrong",
		},
		"another's key":                {published, sign(t, jwt.SigningMethodES256, other, "ec", nil), "wrong"},
		"the key of another algorithm": {published, sign(t, jwt.SigningMethodRS256, i.RSA, "ec", nil), "alg"},
		"a key for encryption": {
			published, sign(t, jwt.SigningMethodRS256, i.RSA, "for encryption", nil), "kid",
		},
		"a key of an unknown id":            {published, sign(t, jwt.SigningMethodES256, i.EC, "new", nil), "kid"},
		"no id, where there are three keys": {published, sign(t, jwt.SigningMethodES256, i.EC, "", nil), "kid"},
		"critical and unknown":              {secret, withCrit, "wrong"},
		"another payload": {
			published, parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob"}`)) + "." + parts[2], "wrong",
		},
		"no signature":           {published, parts[0] + "." + parts[1] + ".", "wrong"},
		"two parts":              {published, parts[0] + "." + parts[1], "wrong"},
		"no token at all":        {published, "ada", "wrong"},
		"a claim twice":          {secret, twice, "twice"},
		"expired, with a secret": {secret, hs(map[string]any{"exp": 1}), "expired"},
	} {
		got, err := c.v.verify(t.Context(), c.token)
		var refused *issuer.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.want) || got.subject != "" {
			t.Errorf("%s: caller %q, error %v, want %q", name, got.subject, err, c.want)
		}
	}
	if c, err := secret.verify(t.Context(), hs(map[string]any{"scope": "read:db write:db",
		"scp": []string{"send:sms"}})); err != nil ||
		!slices.Equal(c.scopes, []string{"read:db", "write:db", "send:sms"}) {
		t.Errorf("scopes %v, error %v", c.scopes, err)
	}
}

func TestATokenOfTheFileIsItsSubjects(t *testing.T) {
	t.Parallel()
	ada, adaLine, err := NewToken("ada", "read:db", "write:db")
	if err != nil {
		t.Fatal(err)
	}
	bob, bobLine, _ := NewToken("bob")
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, "# who may come in\n\n"+adaLine+"\n")
	core, logged := observer.New(zap.InfoLevel)
	f, err := openTokens(path, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	whose := func(token string) string {
		c, err := f.verify(t.Context(), token)
		var refused *issuer.RefusedError
		if err != nil && !errors.As(err, &refused) {
			t.Errorf("error %v", err)
		}
		return strings.Join(append([]string{c.subject}, c.scopes...), " ")
	}
	if got := whose(ada); got != "ada read:db write:db" {
		t.Errorf("ada's token is %q's", got)
	}
	for _, wrong := range []string{bob, "", strings.Fields(adaLine)[0], ada + " ", ada[:20]} {
		if got := whose(wrong); got != "" {
			t.Errorf("%q is %q's", wrong, got)
		}
	}
	write(t, path, bobLine+"\nnot a hash "+ada+"\n") // a token by mistake, in place of its hash
	if got := whose(bob) + "," + whose(ada); got != "bob," {
		t.Errorf("after the change: %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := whose(bob); got != "" {
		t.Errorf("without the file: %q", got)
	}
	write(t, path, bobLine)
	if got := whose(bob); got != "bob" {
		t.Errorf("with the file again: %q", got)
	}
	for _, entry := range logged.All() {
		for _, secret := range []string{ada, bob} {
			if strings.Contains(fmt.Sprint(entry.Message, entry.ContextMap()), secret) {
				t.Errorf("a token is in the log: %s", entry.Message)
			}
		}
	}
}

func TestAFileOfTokensWithAFaultIsRefusedAtStart(t *testing.T) {
	t.Parallel()
	_, line, _ := NewToken("ada")
	sum := strings.Fields(line)[0]
	for text, want := range map[string]string{
		"gem_secret ada":                       "line 1 does not begin",
		line + "\n" + sum:                      "line 2 names no subject",
		line + "\n# again\n" + line:            "line 3 has the same token",
		sum + " " + strings.Repeat("a", 256):   "255",
		sum[:60] + " ada":                      "line 1 does not begin",
		sum + " ada\x07":                       "unprintable",
		strings.ToUpper(sum) + " ada\n" + line: "line 2 has the same token",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		write(t, path, text)
		_, err := openTokens(path, zap.NewNop())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "gem_secret") {
			t.Errorf("%q: error %v", text, err)
		}
	}
	if _, err := openTokens(t.TempDir(), zap.NewNop()); err == nil {
		t.Error("a folder was taken for a file")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	beside := path + ".new"
	if err := os.WriteFile(beside, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(beside, path); err != nil {
		t.Fatal(err)
	}
}

func TestScopesThatDoNotCountAreTold(t *testing.T) {
	t.Parallel()
	for line, scopes := range map[string]string{"ada read:db": "off", "bob": "off", "carol read:db": "on"} {
		core, logs := observer.New(zap.WarnLevel)
		d, err := New(Options{Registry: parsed(t), Log: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		path, _ := tokensFor(t, line)
		if _, err := d.newHTTPServer(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1},
			HTTPConfig{Auth: "token", Tokens: path, Scopes: scopes}); err != nil {
			t.Fatal(err)
		}
		if logged := logs.FilterMessageSnippet("which are ignored").Len() == 1; logged != (line == "ada read:db") {
			t.Errorf("%s with scopes %s: logged: %v", line, scopes, logged)
		}
	}
}
