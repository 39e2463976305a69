// Package login identifies the user of a request to gem dashboard: by a link that the process printed, a password, a
// proxy's header, or an OpenID Connect issuer.
package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/dashboard"
	"go.uber.org/zap"
)

// Options configure a [Authenticator].
type Options struct {
	// Auth is how people sign in: link, password, header, oidc or none. It is required.
	Auth string
	// Name is the name of the one user of link and password.
	Name string
	// PasswordHash is a result of [HashPassword]. It is required with password.
	PasswordHash string
	// UserHeader names the header with the user's name. It and Proxies are required with header.
	UserHeader string
	// GroupsHeader names the header with the user's groups, separated by commas. Empty means no groups.
	GroupsHeader string
	Proxies      Proxies
	Roles        Roles // of the users of header and oidc
	// OIDC is required with oidc.
	OIDC OIDC
	// IsRole reports whether a role of the database has a name, ignoring case. It is required with header and oidc.
	IsRole func(ctx context.Context, name string) (bool, error)
	// Log gets a line for each sign-in at an issuer and each rejected one. Nil means no log.
	Log *zap.Logger
	// Cookie is the name of the cookie for link and password. The default is gem.
	Cookie string
	// Secure means that the cookie may only be sent over TLS, even if neither the connection nor a proxy reports TLS.
	Secure bool
	// Used is called after a link is used, with the token of the next one. It is required with link.
	Used func(next string)
}

// The errors for users whom a proxy names.
var (
	errNotProxy = &dashboard.Refusal{Status: http.StatusForbidden,
		Text: "This dashboard can only be reached through its proxy."}
	errGroups = fmt.Errorf("%w: the proxy sent more than one header of groups", dashboard.ErrNoUser)
	errNoName = fmt.Errorf("%w: the name is missing, not unique or not printable", dashboard.ErrNoUser)
)

// Authenticator authenticates the users of the dashboard.
type Authenticator struct {
	o        Options
	sessions *sessions
	tries    *tries
	subjects *subjects
	issuer   *byIssuer     // of oidc
	hashing  chan struct{} // one at a time: hashing is slow by design
}

// New returns a Door, or an error for invalid options.
func New(o Options) (*Authenticator, error) {
	o.Cookie = cmp.Or(o.Cookie, "gem")
	switch o.Auth {
	case "link", "none":
	case "password":
		if o.PasswordHash == "" {
			return nil, errors.New("GEM_DASHBOARD_PASSWORD_HASH is not set: with --auth password it is the output of gem " +
				"dashboard " +
				"hash")
		}
		if err := checkHash(o.PasswordHash); err != nil {
			return nil, fmt.Errorf("GEM_DASHBOARD_PASSWORD_HASH: %w", err)
		}
	case "header":
		if o.UserHeader == "" || len(o.Proxies) == 0 {
			return nil, errors.New("--auth header needs GEM_DASHBOARD_USER_HEADER, in which the proxy names the user, and " +
				"GEM_DASHBOARD_TRUSTED_PROXIES, its addresses")
		}
	case "oidc":
		o.OIDC.SubjectClaim = cmp.Or(o.OIDC.SubjectClaim, "sub")
		if err := o.OIDC.check(); err != nil {
			return nil, err
		}
		if o.Roles["viewer"] == nil {
			return nil, errors.New("GEM_DASHBOARD_ROLES names no viewer: with --auth oidc set it, for example to " +
				"'operator=@ops viewer=@staff'. viewer=* means everybody whom the issuer signs in, which may be anyone")
		}
	default:
		return nil, fmt.Errorf("--auth is %q; it may be link, password, header, oidc or none", o.Auth)
	}
	people := o.Auth == "header" || o.Auth == "oidc"
	switch {
	case !people && len(o.Roles) > 0:
		return nil, errors.New("GEM_DASHBOARD_ROLES applies only with --auth header or oidc: with link and password all " +
			"are " +
			"operators, and with none all are viewers")
	case people && o.IsRole == nil:
		return nil, errors.New("IsRole is required with header and oidc")
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return newAuthenticator(o, time.Now)
}

func newAuthenticator(o Options, now func() time.Time) (d *Authenticator, err error) {
	d = &Authenticator{o: o, sessions: newSessions(now), tries: &tries{now: now}, hashing: make(chan struct{}, 1)}
	d.subjects = &subjects{isRole: o.IsRole, now: now}
	if o.Auth == "oidc" {
		d.issuer, err = newByIssuer(d, now)
	}
	return d, err
}

// NewLink returns the token of a new link, which signs in once. It invalidates the previous link.
func (d *Authenticator) NewLink() string { return d.sessions.newLink() }

// Login returns the handler of /login, or nil if nobody signs in.
func (d *Authenticator) Login() dashboard.Login {
	switch d.o.Auth {
	case "link", "password":
		return d
	case "oidc":
		return d.issuer
	}
	return nil
}

// Announce logs the limits that the issuer imposes on people. It returns at once unless people sign in at an issuer.
func (d *Authenticator) Announce(ctx context.Context) {
	if d.issuer != nil {
		d.issuer.announce(ctx)
	}
}

// User returns the sender of a request, for [dashboard.Options].
func (d *Authenticator) User(r *http.Request) (dashboard.User, error) {
	switch d.o.Auth {
	case "none":
		return dashboard.User{Name: "anyone"}, nil
	case "header":
		return d.proxied(r)
	}
	// Another port of the host, or a related domain, may have set a cookie of the same name.
	for _, c := range r.CookiesNamed(d.o.Cookie) {
		user, found := d.sessions.user(c.Value)
		switch {
		case found && d.issuer == nil:
			return dashboard.User{Name: d.o.Name, Operator: true}, nil
		case found: // a new role may have the name
			if err := d.subjects.check(r.Context(), user.Subject); err != nil {
				return dashboard.User{}, err
			}
			return user, nil
		}
	}
	return dashboard.User{}, dashboard.ErrNoUser
}

// proxied returns the user whom a proxy names.
func (d *Authenticator) proxied(r *http.Request) (dashboard.User, error) {
	if !d.o.Proxies.sent(r) {
		return dashboard.User{}, errNotProxy
	}
	names := r.Header.Values(d.o.UserHeader)
	if len(names) != 1 { // with two, one is not from the proxy
		return dashboard.User{}, errNoName
	}
	var groups []string
	if d.o.GroupsHeader != "" {
		if len(r.Header.Values(d.o.GroupsHeader)) > 1 {
			return dashboard.User{}, errGroups
		}
		for g := range strings.SplitSeq(r.Header.Get(d.o.GroupsHeader), ",") {
			groups = append(groups, strings.TrimSpace(g))
		}
	}
	return d.person(r.Context(), names[0], groups)
}

// isName reports whether a text can be the name of a person in the journal.
func isName(text string) bool {
	n := utf8.RuneCountInString(text)
	return 1 <= n && n <= 255 && utf8.ValidString(text) && strings.TrimSpace(text) == text &&
		strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Password reports whether people sign in with a password.
func (d *Authenticator) Password() bool { return d.o.Auth == "password" }

// SignIn opens a session for the token of the link, or for the password.
func (d *Authenticator) SignIn(r *http.Request) (*http.Cookie, error) {
	if d.issuer != nil {
		return nil, &dashboard.Refusal{Status: http.StatusUnauthorized, Text: "Sign in at the issuer."}
	}
	if !d.Password() {
		value, ok := d.sessions.exchange(r.URL.Query().Get("token"))
		if !ok {
			return nil, &dashboard.Refusal{Status: http.StatusUnauthorized,
				Text: "This link has been used, or is not from this process: use the last link that it printed."}
		}
		d.o.Used(d.NewLink())
		return d.cookie(r, value), nil
	}
	from := d.o.Proxies.client(r)
	if wait := d.tries.begin(from); wait > 0 {
		return nil, &dashboard.Refusal{Status: http.StatusTooManyRequests,
			Text: "Too many wrong passwords from your address: wait a minute.", After: wait}
	}
	select {
	case d.hashing <- struct{}{}:
		defer func() { <-d.hashing }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if !isPassword(r.PostFormValue("password"), d.o.PasswordHash) {
		return nil, &dashboard.Refusal{Status: http.StatusUnauthorized, Text: "The password is wrong."}
	}
	d.tries.right(from)
	return d.cookie(r, d.sessions.open()), nil
}

// SignOut ends the session of a request.
func (d *Authenticator) SignOut(r *http.Request) *http.Cookie {
	for _, c := range r.CookiesNamed(d.o.Cookie) {
		d.sessions.end(c.Value)
	}
	gone := d.cookie(r, "")
	gone.MaxAge = -1
	return gone
}

// cookie returns a cookie for these pages only. Browsers do not send it with requests that another site started, and
// scripts cannot read it.
func (d *Authenticator) cookie(r *http.Request, value string) *http.Cookie {
	secure := d.o.Secure || r.TLS != nil || d.o.Proxies.sent(r) && r.Header.Get("X-Forwarded-Proto") == "https"
	return &http.Cookie{Name: d.o.Cookie, Value: value, MaxAge: int(sessionTime.Seconds()), HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: secure}
}
