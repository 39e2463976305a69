package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/issuer"
)

// Dashboard is the configuration of gem dashboard, in addition to [Config]: DATABASE_URL is the connection that reads.
type Dashboard struct {
	Listen         string          `envconfig:"GEM_DASHBOARD_LISTEN" default:"127.0.0.1:8470" may:"an address such as 127.0.0.1:8470" desc:"serve at this address"`
	Prefix         string          `envconfig:"GEM_DASHBOARD_PREFIX" default:"/" may:"a path such as /gem, of letters, digits and - . _ ~" desc:"the path under which all pages are"`
	URL            string          `envconfig:"GEM_DASHBOARD_URL" may:"a URL such as https://ops.example.com/gem" desc:"the URL that people use, where it is not the address above: it is that of links, and its host is served too"`
	Auth           string          `envconfig:"GEM_DASHBOARD_AUTH" may:"link, password, header, oidc or none" desc:"how people prove who they are: link, password, header, oidc or none; by default link on a loopback address"`
	PasswordHash   handlers.Secret `envconfig:"GEM_DASHBOARD_PASSWORD_HASH" may:"what gem dashboard hash prints" desc:"with password: the hash that gem dashboard hash prints"`
	UserHeader     string          `envconfig:"GEM_DASHBOARD_USER_HEADER" may:"the name of a header such as X-Forwarded-User" desc:"with header: the header in which a proxy names the user"`
	GroupsHeader   string          `envconfig:"GEM_DASHBOARD_GROUPS_HEADER" may:"the name of a header such as X-Forwarded-Groups" desc:"with header: the header in which it names the user's groups, with commas between them"`
	TrustedProxies []string        `envconfig:"GEM_DASHBOARD_TRUSTED_PROXIES" may:"a list of addresses and networks such as 127.0.0.1,10.0.0.0/8" desc:"the addresses of proxies, whose headers are believed: those above, and X-Forwarded-Prefix, -For and -Proto"`
	Roles          string          `envconfig:"GEM_DASHBOARD_ROLES" may:"roles with members such as operator=ada,@ops" desc:"with header and oidc: who is an operator, and who a viewer, such as operator=ada,@ops viewer=*; by default, all are viewers with header; required with oidc"`
	OIDCIssuer     string          `envconfig:"GEM_DASHBOARD_OIDC_ISSUER" may:"an https URL, as the iss of tokens has it" desc:"with oidc: the OpenID Connect issuer at which people sign in, exactly as in its metadata"`
	OIDCClientID   string          `envconfig:"GEM_DASHBOARD_OIDC_CLIENT_ID" desc:"with oidc: the client id of this dashboard at the issuer; its redirect URI is GEM_DASHBOARD_URL followed by /login/callback"`
	OIDCSecret     handlers.Secret `envconfig:"GEM_DASHBOARD_OIDC_CLIENT_SECRET" desc:"with oidc: the secret of that client; none for a public client with PKCE"`
	OIDCGroups     string          `envconfig:"GEM_DASHBOARD_OIDC_GROUPS_CLAIM" desc:"with oidc: the claim of ID tokens with the user's groups, a text or a list of texts"`
	OIDCSubject    string          `envconfig:"GEM_DASHBOARD_OIDC_SUBJECT_CLAIM" default:"sub" desc:"with oidc: the claim of ID tokens that is the user's name; email counts only with email_verified"`
	Frontends      string          `envconfig:"GEM_DASHBOARD_FRONTENDS_ISSUER" may:"an https URL, as the iss of tokens has it" desc:"with oidc: the issuer of the tokens with which calls are made, by default GEM_MCP_ISSUER; unless it is GEM_DASHBOARD_OIDC_ISSUER, approvals that need someone other than the asker are refused"`
	ActURL         handlers.Secret `envconfig:"GEM_DASHBOARD_ACT_URL" may:"a connection string such as postgres://user:password@host:5432/database, with special characters of the password as %XX" desc:"the connection of a member of gem_operator, for operators; without it the dashboard only reads, and shows no inputs and results"`
	ReadOnly       bool            `envconfig:"GEM_DASHBOARD_READ_ONLY" default:"false" may:"true or false" desc:"serve as if GEM_DASHBOARD_ACT_URL were not set"`
	TraceURL       string          `envconfig:"GEM_DASHBOARD_TRACE_URL" may:"a URL with {trace_id} in it" desc:"a link to your tracing, such as https://traces.example.com/{trace_id}"`
}

// Wrong returns the rule of each tag named may, for [envvar.Read].
func (c *Dashboard) Wrong() map[string]string {
	wrong := map[string]string{}
	if reason := database(c.ActURL.Reveal()); reason != "" {
		wrong["GEM_DASHBOARD_ACT_URL"] = reason
	}
	for name, right := range map[string]bool{
		"GEM_DASHBOARD_LISTEN": hasPort(c.Listen),
		"GEM_DASHBOARD_PREFIX": isPrefix(c.Prefix),
		"GEM_DASHBOARD_URL":    c.URL == "" || isServer(c.URL),
		"GEM_DASHBOARD_AUTH": c.Auth == "" ||
			slices.Contains([]string{"link", "password", "header", "oidc", "none"}, c.Auth),
		"GEM_DASHBOARD_USER_HEADER":   c.UserHeader == "" || isHeader(c.UserHeader),
		"GEM_DASHBOARD_GROUPS_HEADER": c.GroupsHeader == "" || isHeader(c.GroupsHeader),
		"GEM_DASHBOARD_TRUSTED_PROXIES": !slices.ContainsFunc(c.TrustedProxies,
			func(text string) bool { return !isNetwork(strings.TrimSpace(text)) }),
		"GEM_DASHBOARD_OIDC_ISSUER":      c.OIDCIssuer == "" || issuer.IsSafe(c.OIDCIssuer),
		"GEM_DASHBOARD_FRONTENDS_ISSUER": c.Frontends == "" || isServer(c.Frontends),
		"GEM_DASHBOARD_TRACE_URL": c.TraceURL == "" || isWeb(strings.ReplaceAll(c.TraceURL, "{trace_id}", "0")) &&
			strings.Contains(c.TraceURL, "{trace_id}"),
	} {
		if !right {
			wrong[name] = ""
		}
	}
	return wrong
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func hasPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != ""
}

// isPrefix reports whether a text is a path that needs no escapes.
func isPrefix(text string) bool {
	return strings.HasPrefix(text, "/") && !strings.Contains(text, "//") && !strings.Contains(text, "/.") &&
		onlyOf(text, alphanumeric+"/-._~")
}

// isServer reports whether a text is a URL of a server, without user, query and fragment.
func isServer(text string) bool {
	u, err := url.Parse(text)
	return err == nil && isWeb(text) && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

func isWeb(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != ""
}

func isHeader(text string) bool {
	return onlyOf(text, alphanumeric+"!#$%&'*+-.^_`|~")
}

func isNetwork(text string) bool {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Zone() == ""
	}
	_, err := netip.ParsePrefix(text)
	return err == nil
}

func onlyOf(text, characters string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(characters, r) }) < 0
}
