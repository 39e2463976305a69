package issuertest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// ClientID and ClientSecret are the credentials of the only client that the issuer knows. The secret has characters
// that must be encoded.
const (
	ClientID     = "gem: dashboard"
	ClientSecret = "hunter2 %+&/ü"
)

// signIn is the OpenID Connect part of the issuer. Its fields may be changed between two sign-ins.
type signIn struct {
	// Claims replace or extend the claims of the ID token. A nil value removes a claim.
	Claims map[string]any
	// Metadata replaces or extends the metadata of the issuer. A nil value removes a member.
	Metadata map[string]any
	// Discovery, Authorize and Token replace the answers of the three endpoints.
	Discovery, Authorize, Token http.HandlerFunc
	// IDToken replaces the function that signs the claims.
	IDToken func(claims map[string]any) string
	// Public means that the client has no secret.
	Public bool

	issuer *Issuer
	guard  sync.Mutex
	codes  map[string]url.Values // the authorization requests, by code
	// Asked is the last authorization request, and Exchanged the last token request.
	Asked, Exchanged url.Values
	Exchanges        int
}

func (s *signIn) begin(i *Issuer) {
	s.issuer, s.codes = i, map[string]url.Values{}
	s.IDToken = func(claims map[string]any) string {
		token, _ := sign(jwt.SigningMethodES256, i.EC, "ec", claims)
		return token
	}
}

func (s *signIn) serve(w http.ResponseWriter, r *http.Request) bool {
	routes := map[string][2]http.HandlerFunc{
		"/.well-known/openid-configuration": {s.Discovery, s.discovery},
		"/authorize":                        {s.Authorize, s.authorize},
		"/token":                            {s.Token, s.token},
	}
	route, found := routes[r.URL.Path]
	switch {
	case !found:
		return false
	case route[0] != nil:
		route[0](w, r)
	default:
		route[1](w, r)
	}
	return true
}

func (s *signIn) discovery(w http.ResponseWriter, _ *http.Request) {
	at := s.issuer.URL
	all := map[string]any{
		"issuer": at, "authorization_endpoint": at + "/authorize?theme=dark", "token_endpoint": at + "/token",
		"jwks_uri": at + "/keys", "scopes_supported": []string{"openid", "email", "profile"},
		"code_challenge_methods_supported": []string{"S256"}, "subject_types_supported": []string{"public"},
	}
	maps.Copy(all, s.Metadata)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	_ = json.NewEncoder(w).Encode(all)
}

// authorize signs in everyone.
func (s *signIn) authorize(w http.ResponseWriter, r *http.Request) {
	s.guard.Lock()
	defer s.guard.Unlock()
	s.Asked = r.URL.Query()
	code := rand.Text()
	s.codes[code] = s.Asked
	answer := url.Values{"code": {code}, "state": {s.Asked.Get("state")}}
	http.Redirect(w, r, s.Asked.Get("redirect_uri")+"?"+answer.Encode(), http.StatusFound)
}

func (s *signIn) token(w http.ResponseWriter, r *http.Request) {
	s.guard.Lock()
	defer s.guard.Unlock()
	_ = r.ParseForm()
	s.Exchanged, s.Exchanges = r.PostForm, s.Exchanges+1
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error": %q, "error_description": "you sent %s"}`, code, ClientSecret)
	}
	id, secret, basic := r.BasicAuth()
	if basic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	if want := map[bool]string{true: "", false: ClientSecret}[s.Public]; id != ClientID || secret != want {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	asked, found := s.codes[r.PostForm.Get("code")]
	delete(s.codes, r.PostForm.Get("code"))
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	if !found || asked.Get("code_challenge") != text64(sum[:]) ||
		asked.Get("redirect_uri") != r.PostForm.Get("redirect_uri") {
		refuse(http.StatusBadRequest, "invalid_grant")
		return
	}
	now := time.Now()
	claims := map[string]any{"iss": s.issuer.URL, "aud": ClientID, "sub": "ada", "iat": now.Unix(),
		"exp": now.Add(time.Hour).Unix(), "nonce": asked.Get("nonce")}
	maps.Copy(claims, s.Claims)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	_ = json.NewEncoder(w).Encode(map[string]any{
		"access_token": "unused", "token_type": "Bearer", "id_token": s.IDToken(claims)})
}
