package objectstore

import (
	"net/url"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/outbound"
)

// Config is the configuration of an object store. It reads the variables that AWS's own programs read.
type Config struct {
	AccessKeyID     string          `envconfig:"AWS_ACCESS_KEY_ID" may:"the name of an access key" desc:"The access key for objects at s3://."`
	SecretAccessKey handlers.Secret `envconfig:"AWS_SECRET_ACCESS_KEY" may:"the secret of the access key" desc:"Its secret."`
	SessionToken    handlers.Secret `envconfig:"AWS_SESSION_TOKEN" may:"the token of a temporary access key" desc:"Its token, if the access key is temporary."`
	Region          string          `envconfig:"AWS_REGION" default:"us-east-1" may:"the name of a region, such as eu-central-1" desc:"The region of the bucket. Stores other than AWS have names of their own, such as auto."`
	Endpoint        handlers.Secret `envconfig:"AWS_ENDPOINT_URL_S3" may:"the URL of a store, such as https://store.example.com" desc:"The store, unless it is AWS's. http:// is only for this machine."`
}

// Wrong returns the variables with unusable values, each with the reason. envvar.Read calls it.
func (c *Config) Wrong() map[string]string {
	wrong := map[string]string{}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": c.AccessKeyID, "AWS_REGION": c.Region,
		"AWS_SECRET_ACCESS_KEY": c.SecretAccessKey.Reveal(), "AWS_SESSION_TOKEN": c.SessionToken.Reveal()} {
		if !isName(value) {
			wrong[name] = "it contains characters that an HTTP header cannot contain"
		}
	}
	if c.Endpoint == "" {
		return wrong
	}
	at, err := url.Parse(c.Endpoint.Reveal())
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.User != nil ||
		at.RawQuery != "" ||
		at.Fragment != "":
		wrong["AWS_ENDPOINT_URL_S3"] = "it is not the URL of a server"
	case at.Scheme == "http" && !outbound.IsLoopback(at.Hostname()):
		wrong["AWS_ENDPOINT_URL_S3"] = "without https, anyone on the network path could read the calls"
	}
	return wrong
}

// isName reports whether a text has only printable ASCII characters and no space, or is empty.
func isName(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}
