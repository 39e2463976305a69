package provider

import "net/http"

// Endpoint is the address of a provider, with the key. A dialect's New takes an Endpoint. The environment does not
// affect it.
type Endpoint struct {
	// BaseURL is the base of the dialect's paths, such as https://api.openai.com/v1.
	BaseURL string
	// Key is sent only in the dialect's header. Empty: no key is sent.
	Key string
	// HTTP sends the requests: see [NewHTTP].
	HTTP *http.Client
}
