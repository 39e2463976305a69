package issuer

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
)

const (
	metadataAge   = time.Hour        // after which the metadata is fetched again
	metadataPause = 10 * time.Second // between a failed fetch and the next
	mostExchanges = 8                // at a time; others wait
)

// Client signs people in at an issuer, by the code flow of OpenID Connect with PKCE and a nonce.
type Client struct {
	o         ClientOptions
	http      *http.Client
	exchanges chan struct{}

	fetching sync.Mutex // one fetch at a time; guards all fields below
	known    *Metadata
	at       time.Time
	tried    time.Time
	failure  error // of the last fetch
	keys     *Keys
}

// ClientOptions are the options of [NewClient]. Secret and Scopes may be empty.
type ClientOptions struct {
	Issuer   string
	ID       string
	Secret   handlers.Secret // empty for a public client, which the issuer must require to use PKCE
	Redirect string          // the URL to which the issuer sends the browser back
	Scopes   []string        // requested in addition to openid, if the issuer lists them
	Now      func() time.Time
}

// Metadata is the part of an issuer's published metadata that a client needs.
type Metadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	JWKS          string   `json:"jwks_uri"`
	AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Scopes        []string `json:"scopes_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	NamesIssuer   bool     `json:"authorization_response_iss_parameter_supported"`
}

// Pairwise reports whether the issuer gives each client a different `sub` for the same person.
func (m *Metadata) Pairwise() bool {
	return slices.Contains(m.SubjectTypes, "pairwise") && !slices.Contains(m.SubjectTypes, "public")
}

// NewClient returns a client. It connects when the first person signs in.
func NewClient(o ClientOptions) *Client {
	return &Client{o: o, http: httpClient(10 * time.Second), exchanges: make(chan struct{}, mostExchanges)}
}

// Metadata returns the issuer's metadata, which is fetched once an hour. After a failure the known metadata stays in
// use.
func (c *Client) Metadata(ctx context.Context) (*Metadata, error) {
	m, _, err := c.metadata(ctx)
	return m, err
}

func (c *Client) metadata(ctx context.Context) (*Metadata, *Keys, error) {
	c.fetching.Lock()
	defer c.fetching.Unlock()
	now := c.o.Now()
	stale := c.known == nil || now.Sub(c.at) > metadataAge
	if stale && (c.tried.IsZero() || now.Sub(c.tried) >= metadataPause) {
		c.tried = now
		m, err := c.fetch(context.WithoutCancel(ctx)) // other requests wait for it, too
		c.failure = err
		if err == nil {
			if c.known == nil || c.known.JWKS != m.JWKS {
				c.keys = NewKeys(m.JWKS, c.o.Now)
			}
			c.known, c.at = m, now
		}
	}
	if c.known == nil {
		return nil, nil, c.failure
	}
	return c.known, c.keys, nil
}

func (c *Client) fetch(ctx context.Context) (*Metadata, error) {
	address := strings.TrimSuffix(c.o.Issuer, "/") + "/.well-known/openid-configuration"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	status, body, err := send(c.http, req)
	if err != nil {
		return nil, err
	}
	m := &Metadata{}
	switch {
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s returned HTTP status %d: the issuer has no OpenID Connect metadata there", address, status)
	case json.Unmarshal(body, m) != nil:
		return nil, fmt.Errorf("%s is not JSON of the right form", address)
	case m.Issuer != c.o.Issuer:
		return nil, fmt.Errorf("%s names the issuer %.200q, which must be exactly %q", address, m.Issuer, c.o.Issuer)
	}
	for name, endpoint := range map[string]string{
		"authorization_endpoint": m.Authorization, "token_endpoint": m.Token, "jwks_uri": m.JWKS,
	} {
		u, err := url.Parse(endpoint)
		wrong := err != nil || u.User != nil || u.Fragment != "" || !safe(u)
		// A remote issuer must not make this process send requests to this machine.
		if wrong || strings.HasPrefix(c.o.Issuer, "https:") && u.Scheme != "https" {
			return nil, fmt.Errorf("%s: %s is %.200q, and must be an https URL", address, name, endpoint)
		}
	}
	if c.o.Secret == "" && !slices.Contains(m.Challenges, "S256") {
		return nil, fmt.Errorf("%s does not list S256 among code_challenge_methods_supported: "+
			"such an issuer needs a client with a secret", address)
	}
	return m, nil
}

// Start returns the address where a person signs in. The browser returns state, and the token contains nonce;
// verifier is that of PKCE.
func (c *Client) Start(ctx context.Context, state, nonce, verifier string) (address string, err error) {
	m, err := c.Metadata(ctx)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(m.Authorization)
	if err != nil {
		return "", err
	}
	scopes := []string{"openid"}
	for _, s := range c.o.Scopes {
		if slices.Contains(m.Scopes, s) && !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	challenge := sha256.Sum256([]byte(verifier))
	q := u.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": c.o.ID, "redirect_uri": c.o.Redirect, "scope": strings.Join(scopes, " "),
		"state": state, "nonce": nonce,
		"code_challenge": base64.RawURLEncoding.EncodeToString(challenge[:]), "code_challenge_method": "S256",
	} {
		q.Set(name, value)
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// Finish exchanges the code that the browser returned, and returns the claims of the ID token. iss is the parameter
// of that name. The error is a [*RefusedError] if the sign-in is not valid.
func (c *Client) Finish(ctx context.Context, code, iss, nonce, verifier string) (claims map[string]any, err error) {
	m, keys, err := c.metadata(ctx)
	if err != nil {
		return nil, err
	}
	if iss != "" && iss != m.Issuer || iss == "" && m.NamesIssuer { // RFC 9207
		return nil, refuse("the answer is from another issuer")
	}
	select {
	case c.exchanges <- struct{}{}:
		defer func() { <-c.exchanges }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	token, err := c.exchange(ctx, m, code, verifier)
	if err != nil {
		return nil, err
	}
	claims, err = NewVerifier(m.Issuer, c.o.ID, keys, "", c.o.Now).Verify(ctx, token)
	if err != nil {
		return nil, err
	}
	party, given := claims["azp"]
	several, _ := claims["aud"].([]any)
	issued, ok := claims["iat"].(json.Number)
	at, err := issued.Float64()
	switch {
	case (given || len(several) > 1) && party != c.o.ID:
		return nil, refuse("the token was issued to another client")
	case !ok || err != nil:
		return nil, refuse("the token lacks iat")
	case at > float64(c.o.Now().Add(Skew).Unix()):
		return nil, refuse("the token is not valid yet")
	case claims["nonce"] != nonce:
		return nil, refuse("the token's nonce is not that of this sign-in")
	}
	return claims, nil
}

// errorCode matches the OAuth 2.0 error codes that may be quoted.
var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`)

// exchange returns the ID token for a code.
func (c *Client) exchange(ctx context.Context, m *Metadata, code, verifier string) (token string, err error) {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {c.o.Redirect},
		"code_verifier": {verifier}}
	basic := len(m.AuthMethods) == 0 || slices.Contains(m.AuthMethods, "client_secret_basic")
	switch {
	case c.o.Secret == "":
		form.Set("client_id", c.o.ID)
	case basic: // in a header, below
	case slices.Contains(m.AuthMethods, "client_secret_post"):
		form.Set("client_id", c.o.ID)
		form.Set("client_secret", c.o.Secret.Reveal())
	default:
		return "", errors.New("the issuer accepts neither client_secret_basic nor client_secret_post at its token endpoint")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.o.Secret != "" && basic { // RFC 6749 encodes both first
		req.SetBasicAuth(url.QueryEscape(c.o.ID), url.QueryEscape(c.o.Secret.Reveal()))
	}
	status, body, err := send(c.http, req)
	if err != nil {
		return "", err
	}
	var answer struct {
		IDToken string `json:"id_token"`
		Error   string `json:"error"`
	}
	readable := json.Unmarshal(body, &answer) == nil
	switch {
	case status != http.StatusOK && answer.Error == "invalid_grant":
		return "", refuse("the issuer did not accept the code, which may have been used or have expired")
	case status != http.StatusOK && errorCode.MatchString(answer.Error):
		return "", fmt.Errorf("%s returned HTTP status %d, %s", m.Token, status, answer.Error)
	case status != http.StatusOK:
		return "", fmt.Errorf("%s returned HTTP status %d", m.Token, status)
	case !readable || answer.IDToken == "":
		return "", fmt.Errorf("%s returned no ID token", m.Token)
	}
	return answer.IDToken, nil
}
