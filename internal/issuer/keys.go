package issuer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	keysPause = time.Minute      // between two fetches of an issuer's keys
	keysAge   = 10 * time.Minute // after which keys are fetched again: the longest validity of a withdrawn key

	maxWaiting = 256 // callers that wait for one fetch: anyone can send tokens with unknown keys
)

// Keys holds the keys that an issuer publishes at one address. A token has no influence on that address, and cannot
// cause more than one fetch a minute, even with an unknown key or while the issuer is away.
type Keys struct {
	url    string
	client *http.Client
	now    func() time.Time

	known atomic.Pointer[keys]

	mu       sync.Mutex
	fetching *fetching // nil if no fetch is running
	tried    time.Time // when the last fetch began
	last     error     // how it ended: nil or ErrKeysAway
}

// fetching is a fetch that is running, for all callers that wait for it.
type fetching struct {
	done    chan struct{}
	err     error // once done
	waiting int   // callers
}

// keys are those of one answer.
type keys struct {
	byID map[string]publicKey
	at   time.Time
}

// publicKey is a key for signatures of one algorithm, or of any that fits its type if alg is empty.
type publicKey struct {
	key crypto.PublicKey
	alg string
}

// NewKeys returns the keys that are published at an address. They are fetched when a token needs one.
func NewKeys(url string, now func() time.Time) *Keys {
	return &Keys{url: url, now: now, client: httpClient(5 * time.Second)}
}

// key returns the key with an id for an algorithm. Its error is a [*RefusedError] if the issuer has no such key. If
// the token has no id, the issuer must have only one key.
func (s *Keys) key(ctx context.Context, id, alg string) (crypto.PublicKey, error) {
	held := s.known.Load()
	k, ok := held.find(id)
	if !ok || s.now().Sub(held.at) > keysAge {
		err := s.fetch(ctx, held)
		if k, ok = s.known.Load().find(id); !ok && err != nil {
			return nil, err // the token may be valid
		}
	}
	if !ok {
		return nil, refuse("the issuer has no key with the token's kid")
	}
	if k.alg != "" && k.alg != alg {
		return nil, refuse("the token's alg is not that of its key")
	}
	return k.key, nil
}

func (k *keys) find(id string) (publicKey, bool) {
	switch {
	case k == nil:
		return publicKey{}, false
	case id == "" && len(k.byID) == 1:
		for _, only := range k.byID {
			return only, true
		}
	}
	found, ok := k.byID[id]
	return found, ok && id != ""
}

// ErrKeysAway reports that the last fetch of the keys failed, less than a minute ago, or that too many callers wait for
// the present one.
var ErrKeysAway = errors.New("the issuer's keys are unavailable; they are fetched at most once a minute")

// fetch reads the keys, unless someone did since held, or within the last minute. After a failure the keys that are
// known stay. A caller waits no longer than its context; the fetch continues for the others.
func (s *Keys) fetch(ctx context.Context, held *keys) error {
	f, err := s.begin(ctx, held)
	if f == nil {
		return err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		f.waiting--
		return ctx.Err()
	}
}

// begin returns the fetch to wait for, which it starts if none is running; nil if there is none to wait for.
func (s *Keys) begin(ctx context.Context, held *keys) (*fetching, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.known.Load() != held:
		return nil, nil
	case s.fetching != nil && s.fetching.waiting >= maxWaiting:
		return nil, ErrKeysAway
	case s.fetching != nil:
		s.fetching.waiting++
		return s.fetching, nil
	case !s.tried.IsZero() && s.now().Sub(s.tried) < keysPause:
		return nil, s.last
	}
	s.tried = s.now()
	f, at := &fetching{done: make(chan struct{}), waiting: 1}, s.tried
	s.fetching = f
	go func() {
		fetched, err := s.get(context.WithoutCancel(ctx)) // the client bounds its time
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			f.err, s.last = fmt.Errorf("fetch the issuer's keys: %w", err), ErrKeysAway
		} else {
			s.known.Store(&keys{byID: fetched, at: at})
			s.last = nil
		}
		s.fetching = nil
		close(f.done)
	}()
	return f, nil
}

func (s *Keys) get(ctx context.Context) (map[string]publicKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	status, text, err := send(s.client, req)
	switch {
	case err != nil:
		return nil, err
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s returned HTTP status %d", s.url, status)
	}
	return parseKeys(text)
}

// jwk is a key in the format of RFC 7517 and RFC 7518, with the fields that public keys for signatures need.
type jwk struct {
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
	Crv string `json:"crv"`
	N   string `json:"n"`
	E   string `json:"e"`
	X   string `json:"x"`
	Y   string `json:"y"`
}

// parseKeys reads a JWK Set. It ignores keys that are not for signatures, symmetric keys, unreadable keys, and ids
// that two keys share.
func parseKeys(text []byte) (map[string]publicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("the answer is not a JWK Set")
	}
	all, twice := map[string]publicKey{}, map[string]bool{}
	for _, raw := range set.Keys {
		var k jwk
		if json.Unmarshal(raw, &k) != nil || k.Use != "" && k.Use != "sig" {
			continue
		}
		key := k.public()
		if key == nil {
			continue
		}
		_, known := all[k.Kid]
		twice[k.Kid] = known
		all[k.Kid] = publicKey{key: key, alg: k.Alg}
	}
	for id, is := range twice {
		if is {
			delete(all, id)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the answer has no public key for signatures")
	}
	return all, nil
}

// public returns the key, or nil if it cannot check signatures.
func (k jwk) public() crypto.PublicKey {
	n, e, x, y := number(k.N), number(k.E), number(k.X), number(k.Y)
	switch {
	case k.Kty == "RSA" && n != nil && e != nil:
		modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
		if bits := modulus.BitLen(); bits < 2048 || bits > 8192 || exponent.BitLen() > 31 || exponent.Int64() < 3 {
			return nil
		}
		return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}
	case k.Kty == "EC" && x != nil && y != nil:
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(),
			"P-521": elliptic.P521()}[k.Crv]
		if curve == nil {
			return nil
		}
		size := (curve.Params().BitSize + 7) / 8
		if len(x) != size || len(y) != size {
			return nil
		}
		// rejects a point that is not on the curve
		key, err := ecdsa.ParseUncompressedPublicKey(curve, append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil
		}
		return key
	case k.Kty == "OKP" && k.Crv == "Ed25519" && len(x) == ed25519.PublicKeySize:
		return ed25519.PublicKey(x)
	}
	return nil
}

// number decodes a member of a key. It returns nil if the member is missing or wrong.
func number(text string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}
