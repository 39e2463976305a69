package mcp

import (
	"encoding/json"
	"net/http"
	"net/url"
)

const wellKnown = "/.well-known/oauth-protected-resource"

// metadata is what RFC 9728 tells of a protected resource.
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers,omitempty"`
	ScopesSupported      []string `json:"scopes_supported,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	ResourceName         string   `json:"resource_name"`
}

// metadataURL is where clients find the metadata of a resource: RFC 9728 puts the well-known path before its own.
func metadataURL(resource *url.URL) string {
	u := *resource
	u.Path, u.RawPath, u.RawQuery = wellKnown+u.Path, "", ""
	return u.String()
}

// describe serves the metadata, to pages of any origin: there is nothing secret in it.
func (s *httpServer) describe() http.Handler {
	m := metadata{Resource: s.resource.String(), BearerMethods: []string{"header"}, ResourceName: "GEM"}
	if s.config.Auth == "jwt" {
		m.AuthorizationServers = []string{s.config.Issuer}
	}
	if s.config.Scopes == "on" {
		m.ScopesSupported = s.door.scopes()
	}
	text, _ := json.Marshal(m) // of strings
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	})
}
