package config_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/envvar"
)

func TestTheVariablesOfTheDashboard(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, want string }{
		{"GEM_DASHBOARD_LISTEN", "8470", "such as 127.0.0.1:8470"},
		{"GEM_DASHBOARD_PREFIX", "gem", "a path such as /gem"},
		{"GEM_DASHBOARD_PREFIX", "/gem//x", "a path"},
		{"GEM_DASHBOARD_PREFIX", "/../x", "a path"},
		{"GEM_DASHBOARD_PREFIX", "/{x}", "a path"},
		{"GEM_DASHBOARD_PREFIX", "/ops/gem/", ""},
		{"GEM_DASHBOARD_URL", "ops.example.com", "a URL"},
		{"GEM_DASHBOARD_URL", "https://ops.example.com/gem?x=1", "a URL"},
		{"GEM_DASHBOARD_URL", "https://ada:hunter2@ops.example.com", "a URL"},
		{"GEM_DASHBOARD_URL", "https://ops.example.com/gem/", ""},
		{"GEM_DASHBOARD_AUTH", "saml", "link, password, header, oidc or none"},
		{"GEM_DASHBOARD_OIDC_ISSUER", "http://issuer.example", "an https URL"},
		{"GEM_DASHBOARD_OIDC_ISSUER", "https://issuer.example/?tenant=1", "an https URL"},
		{"GEM_DASHBOARD_OIDC_ISSUER", "https://ada:hunter2@issuer.example", "an https URL"},
		{"GEM_DASHBOARD_OIDC_ISSUER", "http://127.0.0.1:9/realms/gem", ""},
		{"GEM_DASHBOARD_OIDC_ISSUER", "https://login.example/tenant/v2.0", ""},
		{"GEM_DASHBOARD_FRONTENDS_ISSUER", "issuer", "an https URL"},
		{"GEM_DASHBOARD_USER_HEADER", "X User", "the name of a header"},
		{"GEM_DASHBOARD_GROUPS_HEADER", "X-Groups:", "the name of a header"},
		{"GEM_DASHBOARD_TRUSTED_PROXIES", "127.0.0.1,nginx", "a list of addresses"},
		{"GEM_DASHBOARD_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8,::1", ""},
		{"GEM_DASHBOARD_ACT_URL", "postgres://u:hunter2@h:port/d", "a connection string"},
		{"GEM_DASHBOARD_TRACE_URL", "https://traces.example.com/", "{trace_id}"},
		{"GEM_DASHBOARD_TRACE_URL", "javascript:{trace_id}", "{trace_id}"},
		{"GEM_DASHBOARD_TRACE_URL", "https://traces.example.com/#{trace_id}", ""},
	} {
		err := envvar.Read(func(name string) string {
			if name == c.name {
				return c.value
			}
			return ""
		}, &config.Dashboard{})
		var invalid *config.InvalidError
		switch {
		case c.want == "" && err != nil, c.want != "" &&
			(!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s=%s: %v, want %q", c.name, c.value, err, c.want)
		case err != nil && c.name == "GEM_DASHBOARD_ACT_URL" && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("a secret is shown: %v", err)
		}
	}
}

func TestTheVariablesOfTheDashboardAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/dashboard.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range envvar.Describe(&config.Dashboard{}) {
		if !strings.Contains(string(page), "| `"+v.Name+"` |") {
			t.Errorf("%s is not explained", v.Name)
		}
	}
}
