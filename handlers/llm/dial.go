package llm

import (
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/provider/gemini"
	"github.com/gemworker/gem/internal/provider/openai"
	"github.com/gemworker/gem/internal/provider/routes"
)

// dial returns the client for a provider's dialect.
func dial(p *routes.Provider, e provider.Endpoint) provider.Provider {
	switch p.Dialect {
	case routes.Anthropic:
		return anthropic.New(e)
	case routes.Gemini:
		return gemini.New(e)
	case routes.OpenAI:
	}
	return openai.New(e)
}
