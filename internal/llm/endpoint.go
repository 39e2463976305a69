package llm

import "net/http"

// Endpoint is where a provider is reached. A dialect's New takes one; nothing of the environment changes it.
type Endpoint struct {
	// BaseURL is the address below which the dialect's paths lie, such as https://api.openai.com/v1.
	BaseURL string
	// Key goes into the dialect's header, and nowhere else. Empty: none is sent.
	Key string
	// HTTP sends the requests: see [NewHTTP].
	HTTP *http.Client
}
