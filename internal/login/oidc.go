package login

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/issuer"
	"go.uber.org/zap"
)

// OIDC are the options for signing in at an OpenID Connect issuer.
type OIDC struct {
	Issuer       string
	ClientID     string
	ClientSecret handlers.Secret // empty for a public client
	GroupsClaim  string          // names the claim with the user's groups; empty means no groups
	SubjectClaim string          // names the claim with the subject. The default is sub
	URL          string          // of the overview, for people
	// Frontends are the known issuers of the tokens that frontends use.
	Frontends []string
}

const (
	signInTime  = 10 * time.Minute // from the first page to the return from the issuer
	mostStates  = 10_000           // remembered used states; the oldest is dropped first
	mostGroups  = 1000
	mostIssuers = 300 // characters of an issuer's text on a page
)

func (o *OIDC) check() error {
	switch {
	case o.Issuer == "" || o.ClientID == "":
		return errors.New("--auth oidc needs GEM_DASHBOARD_OIDC_ISSUER, the issuer that people sign in at, and " +
			"GEM_DASHBOARD_OIDC_CLIENT_ID, the client id of this dashboard there")
	case o.URL == "":
		return errors.New("--auth oidc needs GEM_DASHBOARD_URL, since the issuer sends people back to it and this address " +
			"can " +
			"be reached under several names")
	}
	return nil
}

// byIssuer signs people in at an issuer. The state of an unfinished sign-in is in the browser's cookie, encrypted, so
// that unfinished sign-ins use no memory.
type byIssuer struct {
	*Authenticator
	client *issuer.Client
	seal   cipher.AEAD
	used   once
}

func newByIssuer(d *Authenticator, now func() time.Time) (*byIssuer, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	b := &byIssuer{Authenticator: d, used: once{now: now}}
	if b.seal, err = cipher.NewGCM(block); err != nil {
		return nil, err
	}
	o := d.o.OIDC
	scopes := []string{o.GroupsClaim}
	if o.SubjectClaim != "sub" {
		scopes = append(scopes, "email", "profile")
	}
	b.client = issuer.NewClient(issuer.ClientOptions{
		Issuer: o.Issuer, ID: o.ClientID, Secret: o.ClientSecret, Redirect: o.URL + "login/callback", Scopes: scopes,
		Now: now,
	})
	return b, nil
}

// signIn is an unfinished sign-in.
type signIn struct {
	State, Nonce, Verifier string
	To                     string // the page to go to
	Until                  time.Time
}

// Issuer is the host of the issuer.
func (b *byIssuer) Issuer() string {
	u, err := url.Parse(b.o.OIDC.Issuer)
	if err != nil {
		return b.o.OIDC.Issuer
	}
	return u.Host
}

// StartAt returns the address where a sign-in starts. It has the host to which the issuer sends people back, so that
// the browser sends the cookie.
func (b *byIssuer) StartAt(to string) string {
	return b.o.OIDC.URL + "login/start?to=" + url.QueryEscape(to)
}

// Start returns the issuer's address, and the cookie of the sign-in. It must be SameSite=Lax, since the issuer's site
// redirects back.
func (b *byIssuer) Start(r *http.Request, to string) (address string, cookie *http.Cookie, err error) {
	s := signIn{State: rand.Text(), Nonce: rand.Text(), Verifier: rand.Text() + rand.Text(), To: to,
		Until: b.sessions.now().Add(signInTime)}
	if address, err = b.client.Start(r.Context(), s.State, s.Nonce, s.Verifier); err != nil {
		return "", nil, b.away(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", nil, err
	}
	nonce := make([]byte, b.seal.NonceSize())
	_, _ = rand.Read(nonce)
	cookie = b.cookie(r, base64.RawURLEncoding.EncodeToString(b.seal.Seal(nonce, nonce, text, nil)))
	cookie.Name, cookie.MaxAge, cookie.SameSite = b.signInCookie(), int(signInTime.Seconds()), http.SameSiteLaxMode
	return address, cookie, nil
}

func (b *byIssuer) signInCookie() string { return b.o.Cookie + "_signin" }

// signInOf returns the sign-in that a browser started.
func (b *byIssuer) signInOf(r *http.Request) (signIn, bool) {
	state := r.URL.Query().Get("state")
	for _, c := range r.CookiesNamed(b.signInCookie()) {
		var s signIn
		sealed, err := base64.RawURLEncoding.DecodeString(c.Value)
		if n := b.seal.NonceSize(); err == nil && len(sealed) > n {
			var text []byte
			if text, err = b.seal.Open(nil, sealed[:n], sealed[n:], nil); err == nil {
				err = json.Unmarshal(text, &s)
			}
		}
		if err == nil && s.State != "" && s.State == state && b.sessions.now().Before(s.Until) {
			return s, true
		}
	}
	return signIn{}, false
}

var errNotStarted = &dashboard.Refusal{Status: http.StatusUnauthorized,
	Text: "This sign-in was not started in this browser, was started more than ten minutes ago, or has ended. Sign in " +
		"again."}

// Finish opens a session for the person whom the issuer names.
func (b *byIssuer) Finish(r *http.Request) (cookie *http.Cookie, to string, err error) {
	s, found := b.signInOf(r)
	if !found || !b.used.first(s.State) {
		return nil, "/", errNotStarted
	}
	q := r.URL.Query()
	if code := q.Get("error"); code != "" { // the issuer's words are shown only to the browser that it sent back
		text := "The issuer did not sign you in: " + shorten(code)
		if more := q.Get("error_description"); more != "" {
			text += ", " + shorten(more)
		}
		return nil, s.To, &dashboard.Refusal{Status: http.StatusUnauthorized, Text: text + "."}
	}
	claims, err := b.client.Finish(r.Context(), q.Get("code"), q.Get("iss"), s.Nonce, s.Verifier)
	var refused *issuer.RefusedError
	switch {
	case errors.As(err, &refused):
		return nil, s.To, b.refused(refused.Reason)
	case err != nil:
		return nil, s.To, b.away(err)
	}
	user, err := b.userOf(r.Context(), claims)
	if err != nil {
		if known := (*dashboard.Refusal)(nil); errors.As(err, &known) {
			b.o.Log.Warn("a sign-in was rejected", zap.String("reason", known.Text))
		}
		return nil, s.To, err
	}
	b.o.Log.Info("a person signed in", zap.String("user", user.Name), zap.Bool("operator", user.Operator))
	return b.cookie(r, b.sessions.openFor(user)), s.To, nil
}

func (b *byIssuer) refused(reason string) error {
	b.o.Log.Warn("a sign-in was rejected", zap.String("reason", reason))
	return &dashboard.Refusal{Status: http.StatusUnauthorized,
		Text: "You were not signed in: " + reason + ". Sign in again."}
}

// away returns the error for an issuer that is unavailable, or whose answer shows that one side is misconfigured.
func (b *byIssuer) away(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	b.o.Log.Error("people cannot sign in, see GEM_DASHBOARD_OIDC_ISSUER, _CLIENT_ID and _CLIENT_SECRET: " + err.Error())
	return &dashboard.Refusal{Status: http.StatusBadGateway,
		Text: "The issuer cannot be asked who you are. The log of the dashboard has the reason. Try again in a moment."}
}

// userOf returns the user whom the claims of an ID token name.
func (b *byIssuer) userOf(ctx context.Context, claims map[string]any) (dashboard.User, error) {
	o := b.o.OIDC
	if verified, _ := claims["email_verified"].(bool); !verified {
		delete(claims, "email")
	}
	subject, _ := claims[o.SubjectClaim].(string)
	if subject == "" {
		reason := "your token has no text in the claim " + o.SubjectClaim
		if o.SubjectClaim == "email" {
			reason = "your token has no email address that the issuer has verified"
		}
		return dashboard.User{}, b.refused(reason)
	}
	if !isName(subject) {
		return dashboard.User{}, b.refused("the claim " + o.SubjectClaim +
			" of your token has more than 255 characters, or unprintable ones")
	}
	groups, ok := groupsOf(claims[o.GroupsClaim])
	if !ok {
		return dashboard.User{}, b.refused(fmt.Sprintf(
			"the claim %s of your token is neither a text nor a list of at most %d texts",
			o.GroupsClaim, mostGroups))
	}
	user, err := b.person(ctx, subject, groups)
	if err != nil {
		return dashboard.User{}, err
	}
	metadata, err := b.client.Metadata(ctx)
	if err != nil {
		return dashboard.User{}, b.away(err)
	}
	user.OtherName = o.otherName(metadata)
	return user, nil
}

// groupsOf reads the claim with the groups. A text is one group, even with a comma in it.
func groupsOf(claim any) (groups []string, ok bool) {
	switch claim := claim.(type) {
	case nil:
		return nil, true
	case string:
		return []string{claim}, true
	case []any:
		for _, one := range claim {
			group, isText := one.(string)
			if !isText || len(groups) == mostGroups {
				return nil, false
			}
			groups = append(groups, group)
		}
		return groups, true
	}
	return nil, false
}

// otherName explains why a person's calls may have a name other than the one here. It returns "" if the name is the
// same.
func (o *OIDC) otherName(m *issuer.Metadata) string {
	other := slices.IndexFunc(o.Frontends, func(of string) bool { return of != o.Issuer })
	switch {
	case len(o.Frontends) == 0:
		return "the dashboard does not know which issuer's tokens make calls, which GEM_DASHBOARD_FRONTENDS_ISSUER names"
	case other >= 0:
		return "you signed in at " + o.Issuer + ", and calls are made with tokens of " + o.Frontends[other]
	case o.SubjectClaim != "sub":
		return "your name here is the claim " + o.SubjectClaim + " of your token, and calls have its claim sub"
	case m.Pairwise():
		return o.Issuer + " gives each application another sub for the same person"
	}
	return ""
}

// announce logs whether people will be able to sign in, and to approve others' requests.
func (b *byIssuer) announce(ctx context.Context) {
	m, err := b.client.Metadata(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		_ = b.away(err)
		return
	}
	if reason := b.o.OIDC.otherName(m); reason != "" {
		b.o.Log.Warn("approvals that need someone other than the asker are refused on these pages: "+reason,
			zap.String("issuer", m.Issuer))
	}
}

// shorten cuts an issuer's text.
func shorten(s string) string {
	r := []rune(strings.ToValidUTF8(s, "?"))
	return strings.TrimRight(string(r[:min(len(r), mostIssuers)]), ". ")
}

// once remembers used states for as long as they would be valid.
type once struct {
	now func() time.Time

	mu    sync.Mutex
	until map[string]time.Time
}

// first reports whether a state is used for the first time.
func (o *once) first(state string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, used := o.until[state]; used {
		return false
	}
	now, oldest := o.now(), ""
	if o.until == nil || len(o.until) >= mostStates {
		kept := map[string]time.Time{}
		for s, until := range o.until {
			if now.Before(until) {
				kept[s] = until
				if oldest == "" || until.Before(kept[oldest]) {
					oldest = s
				}
			}
		}
		if o.until = kept; len(kept) >= mostStates {
			delete(kept, oldest)
		}
	}
	o.until[state] = now.Add(signInTime)
	return true
}
