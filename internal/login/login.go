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

// Options of a [Door].
type Options struct {
	// Auth is how people prove who they are: link, password, header, oidc or none. It is required.
	Auth string
	// Name is that of the one user of link and password.
	Name string
	// PasswordHash is what [HashPassword] returned. It is required with password.
	PasswordHash string
	// UserHeader names the header with the user's name. It is required with header, as Proxies are.
	UserHeader string
	// GroupsHeader names the header with the user's groups, with commas between them. Empty: there are no groups.
	GroupsHeader string
	Proxies      Proxies
	Roles        Roles // of the users of header and oidc
	// OIDC is required with oidc.
	OIDC OIDC
	// IsRole reports whether a role of the database has a name, ignoring case. It is required with header and oidc.
	IsRole func(ctx context.Context, name string) (bool, error)
	// Log has a line for each person whom an issuer signs in, and for each who is refused; nil means none.
	Log *zap.Logger
	// Cookie is the name of the cookie of link and password. The default is gem.
	Cookie string
	// Secure says that the cookie may only be sent over TLS, also where neither the connection nor a proxy has said that there is TLS.
	Secure bool
	// Used is called when a link was used, with the token of the next. It is required with link.
	Used func(next string)
}

// The refusals of users whom a proxy names.
var (
	errNotProxy = &dashboard.Refusal{Status: http.StatusForbidden, Text: "This dashboard is reached through its proxy only."}
	errGroups   = fmt.Errorf("%w: the proxy sent more than one header of groups", dashboard.ErrNoUser)
	errNoName   = fmt.Errorf("%w: there is no name, more than one, or one that is not printable", dashboard.ErrNoUser)
)

// Door lets people in.
type Door struct {
	o        Options
	sessions *sessions
	tries    *tries
	subjects *subjects
	issuer   *byIssuer     // of oidc
	hashing  chan struct{} // one at a time: a hash is made to be slow
}

// New checks the options.
func New(o Options) (*Door, error) {
	o.Cookie = cmp.Or(o.Cookie, "gem")
	switch o.Auth {
	case "link", "none":
	case "password":
		if o.PasswordHash == "" {
			return nil, errors.New("GEM_DASHBOARD_PASSWORD_HASH is not set: with --auth password it is what gem dashboard hash prints")
		}
		if err := checkHash(o.PasswordHash); err != nil {
			return nil, fmt.Errorf("GEM_DASHBOARD_PASSWORD_HASH: %w", err)
		}
	case "header":
		if o.UserHeader == "" || len(o.Proxies) == 0 {
			return nil, errors.New("--auth header needs GEM_DASHBOARD_USER_HEADER, in which the proxy names the user, and GEM_DASHBOARD_TRUSTED_PROXIES, its addresses")
		}
	case "oidc":
		o.OIDC.SubjectClaim = cmp.Or(o.OIDC.SubjectClaim, "sub")
		if err := o.OIDC.check(); err != nil {
			return nil, err
		}
		if o.Roles["viewer"] == nil {
			return nil, errors.New("GEM_DASHBOARD_ROLES does not say who is a viewer: with --auth oidc set it, for example to " +
				"'operator=@ops viewer=@staff'. viewer=* means everybody whom the issuer signs in, which may be the whole world")
		}
	default:
		return nil, fmt.Errorf("--auth is %q; it may be link, password, header, oidc or none", o.Auth)
	}
	people := o.Auth == "header" || o.Auth == "oidc"
	switch {
	case !people && len(o.Roles) > 0:
		return nil, errors.New("GEM_DASHBOARD_ROLES counts only with --auth header or oidc: with link and password all are " +
			"operators, and with none all are viewers")
	case people && o.IsRole == nil:
		return nil, errors.New("IsRole is required with header and oidc")
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return newDoor(o, time.Now)
}

func newDoor(o Options, now func() time.Time) (d *Door, err error) {
	d = &Door{o: o, sessions: newSessions(now), tries: &tries{now: now}, hashing: make(chan struct{}, 1)}
	d.subjects = &subjects{isRole: o.IsRole, now: now}
	if o.Auth == "oidc" {
		d.issuer, err = newByIssuer(d, now)
	}
	return d, err
}

// NewLink returns the token of a new link, which signs in once. The link before is good for nothing then.
func (d *Door) NewLink() string { return d.sessions.newLink() }

// Login returns what serves /login; nil where nobody signs in.
func (d *Door) Login() dashboard.Login {
	switch d.o.Auth {
	case "link", "password":
		return d
	case "oidc":
		return d.issuer
	}
	return nil
}

// Announce logs what people cannot do because of the issuer. It returns at once unless people sign in at one.
func (d *Door) Announce(ctx context.Context) {
	if d.issuer != nil {
		d.issuer.announce(ctx)
	}
}

// User returns who sends a request. It is for [dashboard.Options].
func (d *Door) User(r *http.Request) (dashboard.User, error) {
	switch d.o.Auth {
	case "none":
		return dashboard.User{Name: "anyone"}, nil
	case "header":
		return d.proxied(r)
	}
	for _, c := range r.CookiesNamed(d.o.Cookie) { // another port of the host, or a neighbouring name, may have set one beside ours
		user, found := d.sessions.user(c.Value)
		switch {
		case found && d.issuer == nil:
			return dashboard.User{Name: d.o.Name, Operator: true}, nil
		case found: // a role may have been given the name since
			if err := d.subjects.check(r.Context(), user.Subject); err != nil {
				return dashboard.User{}, err
			}
			return user, nil
		}
	}
	return dashboard.User{}, dashboard.ErrNoUser
}

// proxied returns the user whom a proxy names.
func (d *Door) proxied(r *http.Request) (dashboard.User, error) {
	if !d.o.Proxies.sent(r) {
		return dashboard.User{}, errNotProxy
	}
	names := r.Header.Values(d.o.UserHeader)
	if len(names) != 1 { // if there are two, one is not from the proxy
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
	return 1 <= n && n <= 255 && utf8.ValidString(text) && strings.TrimSpace(text) == text && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Password reports whether a password is asked for.
func (d *Door) Password() bool { return d.o.Auth == "password" }

// SignIn opens a session for the token of the link, or for the password.
func (d *Door) SignIn(r *http.Request) (*http.Cookie, error) {
	if d.issuer != nil {
		return nil, &dashboard.Refusal{Status: http.StatusUnauthorized, Text: "Sign in at the issuer."}
	}
	if !d.Password() {
		value, ok := d.sessions.exchange(r.URL.Query().Get("token"))
		if !ok {
			return nil, &dashboard.Refusal{Status: http.StatusUnauthorized, Text: "This link has been used, or is not one of this process: the last one that it printed is good."}
		}
		d.o.Used(d.NewLink())
		return d.cookie(r, value), nil
	}
	from := d.o.Proxies.client(r)
	if wait := d.tries.begin(from); wait > 0 {
		return nil, &dashboard.Refusal{Status: http.StatusTooManyRequests, Text: "Too many wrong passwords came from your address: wait a minute.", After: wait}
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
func (d *Door) SignOut(r *http.Request) *http.Cookie {
	for _, c := range r.CookiesNamed(d.o.Cookie) {
		d.sessions.end(c.Value)
	}
	gone := d.cookie(r, "")
	gone.MaxAge = -1
	return gone
}

// cookie goes to these pages alone, never along with a request that another site began, and to no script.
func (d *Door) cookie(r *http.Request, value string) *http.Cookie {
	secure := d.o.Secure || r.TLS != nil || d.o.Proxies.sent(r) && r.Header.Get("X-Forwarded-Proto") == "https"
	return &http.Cookie{Name: d.o.Cookie, Value: value, MaxAge: int(sessionTime.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure}
}
