// Package openai implements the Chat Completions dialect of OpenAI, Mistral, DeepSeek, OpenRouter, Ollama, GPUStack,
// Azure, Gemini's compatible endpoint and many others.
package openai

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// New returns the provider at e.
func New(e provider.Endpoint) provider.Provider {
	p := &dialect{endpoint: e}
	if at, err := url.Parse(e.BaseURL); err == nil {
		p.quirks = quirksOf(at.Hostname())
	}
	return p
}

type dialect struct {
	endpoint provider.Endpoint
	quirks   quirks
}

// quirks are the differences of a server from the others of the dialect. The zero value is for an unknown server.
type quirks struct {
	// completionTokens: the limit is called max_completion_tokens. OpenAI's reasoning models reject max_tokens; other
	// servers know only that.
	completionTokens bool
	// noStreamOptions: the server rejects stream_options, and sends usage anyway.
	noStreamOptions bool
	// shortIDs: the server rejects ids of calls that are not nine letters and digits.
	shortIDs bool
	// cacheKey: the server takes a prompt_cache_key, by which it finds a cached beginning more often.
	cacheKey bool
	// thoughts is the form in which the model's own thoughts are sent back with its tool calls. Other servers get none,
	// because some reject a message with an unknown field.
	thoughts string
}

const (
	thoughtsNot     = ""
	thoughtsContent = "content"           // a list with a part of the type thinking
	thoughtsLong    = "reasoning_content" // a field of the message
	thoughtsShort   = "reasoning"
)

func quirksOf(host string) quirks {
	is := func(domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }
	switch {
	case is("openai.com"):
		return quirks{completionTokens: true, cacheKey: true}
	case is("openai.azure.com"):
		return quirks{completionTokens: true}
	case is("mistral.ai"):
		return quirks{noStreamOptions: true, shortIDs: true, thoughts: thoughtsContent}
	case is("deepseek.com"):
		return quirks{thoughts: thoughtsLong}
	case is("openrouter.ai"):
		return quirks{thoughts: thoughtsShort}
	}
	return quirks{}
}

// Stream implements [provider.Provider].
func (p *dialect) Stream(ctx context.Context, r *provider.Request) (provider.Stream, error) {
	body := p.quirks.body(r)
	header := http.Header{}
	if p.endpoint.Key != "" {
		header.Set("Authorization", "Bearer "+p.endpoint.Key)
	}
	inner, cancel := context.WithCancel(ctx)
	events, err := provider.Post{
		HTTP: p.endpoint.HTTP, URL: strings.TrimRight(p.endpoint.BaseURL, "/") + "/chat/completions", Header: header,
		Body: body, Key: p.endpoint.Key,
		Failed: p.failed, Lines: true,
	}.Send(inner)
	if err != nil {
		cancel()
		return nil, provider.Broke(ctx, err, false, p.endpoint.Key)
	}
	return &stream{
		ctx: ctx, cancel: cancel, events: events,
		key: p.endpoint.Key, requestID: provider.RequestID(events.Header, p.endpoint.Key),
	}, nil
}

// failed reads the provider's description of its failure.
func (p *dialect) failed(status int, h http.Header, body []byte) *provider.Error {
	said := complaintOf(body)
	e := provider.Failed(said.statusOf(status), h, said.String(), p.endpoint.Key, time.Now())
	e.Status = status
	if status < http.StatusMultipleChoices {
		e.Kind = provider.Garbled
	}
	if said.isUnauthorized() {
		e.Kind, e.Message = provider.Unauthorized, ""
	}
	e.Final = e.Final || said.isFinal()
	return e
}
