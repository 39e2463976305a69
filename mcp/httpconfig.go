package mcp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/issuer"
	"github.com/gemworker/gem/internal/outbound"
)

// HTTPConfig configures access over HTTP. Without Auth anyone is served, and only at a loopback address.
type HTTPConfig struct {
	Listen      string          `envconfig:"GEM_MCP_LISTEN" may:"an address such as 127.0.0.1:8848" desc:"serve Streamable HTTP at this address, under /mcp, such as 127.0.0.1:8848"`
	Auth        string          `envconfig:"GEM_MCP_AUTH" may:"token or jwt" desc:"how callers authenticate: token or jwt; without it anyone is served, but only at a loopback address"`
	Tokens      string          `envconfig:"GEM_MCP_TOKENS" may:"the path of a file" desc:"with token: the file of the tokens' hashes, whose lines gem mcp token prints; it is read again when it changes"`
	Issuer      string          `envconfig:"GEM_MCP_ISSUER" may:"an https URL, as the iss of tokens has it" desc:"with jwt: the issuer of accepted tokens, their iss"`
	JWKS        string          `envconfig:"GEM_MCP_JWKS" may:"an https URL" desc:"with jwt: where the issuer publishes its keys; by default the issuer followed by /.well-known/jwks.json"`
	Secret      handlers.Secret `envconfig:"GEM_MCP_JWT_SECRET" may:"a text of at least 32 bytes" desc:"with jwt: the secret of HS256, of an issuer that publishes no keys"`
	Resource    string          `envconfig:"GEM_MCP_RESOURCE" may:"a URL such as https://tools.example.com/mcp" desc:"the URL that clients use; the aud of tokens must be this"`
	Audience    string          `envconfig:"GEM_MCP_AUDIENCE" desc:"with jwt: the aud instead, if the issuer cannot name this server, such as authenticated with Supabase Auth"`
	Scopes      string          `envconfig:"GEM_MCP_SCOPES" default:"off" may:"on or off" desc:"on: a token covers only the tools whose permissions are among its scopes"`
	Connections int             `envconfig:"GEM_MCP_CONNECTIONS" default:"4" may:"a whole number from 1 to 100" desc:"the connections to Postgres that requests over HTTP share; one more listens for receipts"`
}

// Wrong returns the values that cannot be used, by variable. envvar.Read calls it.
func (c *HTTPConfig) Wrong() map[string]string {
	wrong := map[string]string{}
	for name, right := range map[string]bool{
		"GEM_MCP_LISTEN":      c.Listen == "" || hasPort(c.Listen),
		"GEM_MCP_AUTH":        c.Auth == "" || c.Auth == "token" || c.Auth == "jwt",
		"GEM_MCP_ISSUER":      c.Issuer == "" || issuer.IsSafe(c.Issuer),
		"GEM_MCP_JWKS":        c.JWKS == "" || issuer.IsSafe(c.JWKS),
		"GEM_MCP_JWT_SECRET":  c.Secret == "" || len(c.Secret) >= 32,
		"GEM_MCP_RESOURCE":    c.Resource == "" || plainURL(c.Resource),
		"GEM_MCP_SCOPES":      c.Scopes == "" || c.Scopes == "on" || c.Scopes == "off",
		"GEM_MCP_CONNECTIONS": 0 <= c.Connections && c.Connections <= 100,
	} {
		if !right {
			wrong[name] = ""
		}
	}
	return wrong
}

func hasPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != ""
}

// plainURL reports whether a text is a URL of a server, without user, query and fragment.
func plainURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == ""
}

// ConfigError reports settings that contradict each other, or that are missing.
type ConfigError struct{ problem error }

func (e *ConfigError) Error() string { return e.problem.Error() }
func (e *ConfigError) Unwrap() error { return e.problem }

// complete sets the defaults for a server at an address, and returns an error for missing settings.
func (c *HTTPConfig) complete(at net.Addr) error {
	switch {
	case c.Auth == "" && !isLoopback(at.String()):
		return fmt.Errorf("%s can be reached from other machines, so callers must authenticate: set --auth to token "+
			"or jwt, or serve 127.0.0.1", at)
	case c.Auth == "" && c.Scopes == "on":
		return errors.New("GEM_MCP_SCOPES is on, but without --auth there are no tokens with scopes: set --auth to token " +
			"or jwt")
	case c.Auth == "token" && c.Tokens == "":
		return errors.New("GEM_MCP_TOKENS is not set: with --auth token it names the file of the tokens' hashes; gem mcp " +
			"token makes its lines")
	case c.Auth == "jwt" && (c.Issuer == "" || c.Resource == ""):
		return errors.New("--auth jwt needs GEM_MCP_ISSUER, the issuer of accepted tokens, and GEM_MCP_RESOURCE, the URL " +
			"of " +
			"this server for its clients")
	case c.Auth == "jwt" && c.JWKS != "" && c.Secret != "":
		return errors.New("GEM_MCP_JWKS and GEM_MCP_JWT_SECRET are both set: tokens are checked with published keys or " +
			"with a secret, so unset one")
	}
	if c.Auth == "jwt" && c.Secret == "" && c.JWKS == "" {
		c.JWKS = strings.TrimSuffix(c.Issuer, "/") + "/.well-known/jwks.json"
	}
	if c.Resource == "" {
		host, port, _ := net.SplitHostPort(at.String())
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
			host = "localhost"
		}
		c.Resource = "http://" + net.JoinHostPort(host, port) + "/mcp"
	}
	c.Audience = cmp.Or(c.Audience, c.Resource)
	return nil
}

// isLoopback reports whether a host, with or without a port, is a loopback address of this machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return outbound.IsLoopback(strings.Trim(host, "[]"))
}
