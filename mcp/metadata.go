package mcp

import (
	"encoding/json"
	"net/http"
	"net/url"
)

const wellKnown = "/.well-known/oauth-protected-resource"

// metadata describes a protected resource, as RFC 9728 defines.
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers,omitempty"`
	ScopesSupported      []string `json:"scopes_supported,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	ResourceName         string   `json:"resource_name"`
}

// metadataURL returns the address of a resource's metadata: RFC 9728 puts the well-known path before the resource's
// own.
func metadataURL(resource *url.URL) string {
	u := *resource
	u.Path, u.RawPath, u.RawQuery = wellKnown+u.Path, "", ""
	return u.String()
}

// describe serves the metadata, to pages of any origin: it contains no secrets.
func (s *httpServer) describe() http.Handler {
	m := metadata{Resource: s.resource.String(), BearerMethods: []string{"header"}, ResourceName: "GEM"}
	if s.config.Auth == "jwt" {
		m.AuthorizationServers = []string{s.config.Issuer}
	}
	if s.config.Scopes == "on" {
		m.ScopesSupported = s.server.scopes()
	}
	text, _ := json.Marshal(m) // of strings
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	})
}
