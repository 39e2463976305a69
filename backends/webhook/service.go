package webhook

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/scrub"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/net/http/httpguts"
)

// service is one domain of domains.json.
type service struct {
	domain, url string
	shown       string // the URL, or its variable if it is a secret
	sql         bool   // durable methods get tokens
	plain       bool   // each tool posts its input to the URL, unsigned
	transport   http.RoundTripper
	signer      *standardwebhooks.Webhook
	header      http.Header // of header_env
	secrets     []string    // must not appear on receipts or in logs
	// missing explains why no request can be made; nil if requests can be made.
	missing *handlers.NotConfigured
}

// leastSecret is the minimum length of a secret in bytes, by the specification.
const leastSecret = 24

func newService(domain string, from backends.Service, lookup func(string) string,
	transport http.RoundTripper) *service {
	s := &service{domain: domain, url: from.URL, shown: from.URL, sql: from.SQL, plain: from.URLEnv != "",
		transport: transport, header: http.Header{}}
	var variables, reasons []string
	lacks := func(variable, reason string) {
		variables, reasons = append(variables, variable), append(reasons, variable+" "+reason)
	}
	value := func(variable string) string {
		v := strings.TrimSpace(lookup(variable))
		_, credentials, _ := strings.Cut(v, " ") // after Bearer, or another scheme
		for _, form := range []string{v, strings.TrimPrefix(v, "whsec_"), credentials} {
			if len(form) >= 8 { // a shorter one may be an ordinary word of a text
				s.secrets = append(s.secrets, form)
			}
		}
		return v
	}
	if s.plain {
		s.url, s.shown = value(from.URLEnv), "the URL in "+from.URLEnv
		switch u, err := url.Parse(s.url); {
		case s.url == "":
			lacks(from.URLEnv, "is not set")
		case err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
			lacks(from.URLEnv, "is not a URL with https, a host and no user")
		}
	} else {
		secret := value(from.SecretEnv)
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		switch {
		case secret == "":
			lacks(from.SecretEnv, "is not set")
		case err != nil || len(key) < leastSecret:
			lacks(from.SecretEnv, fmt.Sprintf("is not whsec_ followed by at least %d bytes in base64", leastSecret))
		default:
			s.signer, _ = standardwebhooks.NewWebhookRaw(key) // it returns no error
		}
	}
	for _, name := range slices.Sorted(maps.Keys(from.HeaderEnv)) {
		variable := from.HeaderEnv[name]
		switch v := value(variable); {
		case v == "":
			lacks(variable, "is not set")
		case !httpguts.ValidHeaderFieldValue(v):
			lacks(variable, "has characters that no header may have")
		default:
			s.header.Set(name, v)
		}
	}
	if len(reasons) > 0 {
		set := fmt.Sprintf("Set %s in the worker's environment", strings.Join(variables, " and "))
		if !s.plain {
			set += ": `echo whsec_$(openssl rand -base64 32)` makes a secret, which the service needs too"
		}
		s.missing = &handlers.NotConfigured{
			Reason: fmt.Sprintf("Requests to %s, where the tools of %s live, cannot be made: %s.", s.shown, domain,
				strings.Join(reasons, "; ")),
			RequiredEnv: variables,
			NextSteps: []string{
				set + ".",
				"Restart the worker and make the call again.",
			},
		}
	}
	return s
}

// withoutSecrets removes the service's secrets from an answer that repeats them. It keeps secrets of fewer than 16
// bytes, which may be ordinary words in a result.
func (s *service) withoutSecrets(answer []byte) []byte {
	text := string(answer)
	for _, secret := range s.secrets {
		if len(secret) >= 16 {
			text = scrub.Replace(text, secret, "[secret]")
		}
	}
	return []byte(text)
}
