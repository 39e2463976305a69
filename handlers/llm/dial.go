package llm

import (
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/anthropic"
	"github.com/gemworker/gem/internal/llm/gemini"
	"github.com/gemworker/gem/internal/llm/openai"
	"github.com/gemworker/gem/internal/llm/routes"
)

// dial returns the client for what a provider speaks.
func dial(p *routes.Provider, e llm.Endpoint) llm.Provider {
	switch p.Dialect {
	case routes.Anthropic:
		return anthropic.New(e)
	case routes.Gemini:
		return gemini.New(e)
	case routes.OpenAI:
	}
	return openai.New(e)
}
