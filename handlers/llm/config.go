package llm

import (
	"errors"
	"net/url"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider/router"
)

// config has the settings of models.
type config struct {
	Routes     string          `envconfig:"LLM_ROUTES" may:"the path of a file, or the JSON itself" desc:"The models that llm.* may ask, and what they cost. By default llm.routes.json in the working directory, otherwise none."`
	Proxy      string          `envconfig:"LLM_PROXY" may:"a URL such as http://proxy.example.com:3128" desc:"A proxy for requests to models. HTTPS_PROXY is not read."`
	Anthropic  handlers.Secret `envconfig:"ANTHROPIC_API_KEY" may:"a key of Anthropic's" desc:"The key of providers whose key_env names it, as are the next three. A routes file may name others."`
	OpenAI     handlers.Secret `envconfig:"OPENAI_API_KEY" may:"a key of OpenAI's" desc:"The same."`
	Mistral    handlers.Secret `envconfig:"MISTRAL_API_KEY" may:"a key of Mistral's" desc:"The same."`
	Gemini     handlers.Secret `envconfig:"GEMINI_API_KEY" may:"a key of Google's Gemini API" desc:"The same."`
	IntervalMS int             `envconfig:"LLM_PROGRESS_INTERVAL_MS" default:"250" may:"a whole number from 50 to 60000" desc:"How often, in ms, the progress of answers is written."`

	lookup func(variable string) string
	models router.Source
}

// Models returns the domain's models: see [router.From].
func (c *config) Models() (*router.Models, error) { return c.models() }

// Lookup keeps the function that finds the keys of other providers.
func (c *config) Lookup(lookup func(variable string) string) { c.lookup = lookup }

// key returns the key of a variable that the routes file names.
func (c *config) key(variable string) handlers.Secret { return handlers.Secret(c.lookup(variable)) }

// Wrong returns the variables with unusable values.
func (c *config) Wrong() map[string]string {
	wrong := map[string]string{}
	if _, err := c.proxy(); err != nil {
		wrong["LLM_PROXY"] = ""
	}
	if c.IntervalMS < 50 || c.IntervalMS > 60_000 {
		wrong["LLM_PROGRESS_INTERVAL_MS"] = ""
	}
	return wrong
}

// proxy returns nil for none.
func (c *config) proxy() (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	u, err := url.Parse(c.Proxy)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5" || u.Hostname() == "" {
		return nil, errors.New("LLM_PROXY is not the URL of a proxy")
	}
	return u, nil
}
