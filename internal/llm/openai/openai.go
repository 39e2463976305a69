// Package openai speaks the Chat Completions dialect: that of OpenAI itself, and of Mistral, DeepSeek, OpenRouter, Ollama, GPUStack, Azure,
// Gemini's compatible endpoint and many others.
//
// github.com/sashabaranov/go-openai carries the wire. What it would lose is mended around it: see wire.go and docs/decisions/0034.
package openai

import (
	"context"
	"net/url"
	"strings"

	sdk "github.com/sashabaranov/go-openai"

	"github.com/gemworker/gem/internal/llm"
)

// New returns the provider at e.
func New(e llm.Endpoint) llm.Provider {
	p := &provider{endpoint: e}
	if at, err := url.Parse(e.BaseURL); err == nil {
		p.ways = waysOf(at.Hostname())
	}
	return p
}

type provider struct {
	endpoint llm.Endpoint
	ways     ways
}

// ways are how a server differs from the others of the dialect. The zero value is for a server that nobody knows.
type ways struct {
	// completionTokens: the bound is called max_completion_tokens. OpenAI's models that reason refuse max_tokens; other servers know only
	// that.
	completionTokens bool
	// noStreamOptions: stream_options is refused, and usage comes without it.
	noStreamOptions bool
	// shortIDs: ids of calls have nine letters and digits, or are refused.
	shortIDs bool
	// thoughts is how the model's own thoughts are given back along with its calls of tools. Others than the named get none: some servers
	// refuse a message with an unknown field.
	thoughts string
}

const (
	thoughtsNot     = ""
	thoughtsContent = "content"           // a list with a part of the type thinking
	thoughtsLong    = "reasoning_content" // a field of the message
	thoughtsShort   = "reasoning"
)

func waysOf(host string) ways {
	is := func(domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }
	switch {
	case is("openai.com"), is("openai.azure.com"):
		return ways{completionTokens: true}
	case is("mistral.ai"):
		return ways{noStreamOptions: true, shortIDs: true, thoughts: thoughtsContent}
	case is("deepseek.com"):
		return ways{thoughts: thoughtsLong}
	case is("openrouter.ai"):
		return ways{thoughts: thoughtsShort}
	}
	return ways{}
}

// Stream implements [llm.Provider].
func (p *provider) Stream(ctx context.Context, r *llm.Request) (llm.Stream, error) {
	body, err := p.ways.body(r)
	if err != nil {
		return nil, &llm.Error{Kind: llm.BadRequest, Message: llm.Clean(err.Error(), p.endpoint.Key)}
	}
	inner, cancel := context.WithCancel(ctx)
	door := &door{endpoint: p.endpoint, body: body}
	config := sdk.DefaultConfig(p.endpoint.Key)
	config.BaseURL = p.endpoint.BaseURL
	config.HTTPClient = door
	// The library's own request is empty: the door puts ours in its place.
	lines, err := sdk.NewClientWithConfig(config).CreateChatCompletionStream(inner, sdk.ChatCompletionRequest{})
	if err != nil {
		cancel()
		return nil, llm.Broke(ctx, err, false, p.endpoint.Key)
	}
	return &stream{
		ctx: ctx, cancel: cancel, raw: lines, lines: door.lines,
		key: p.endpoint.Key, requestID: llm.RequestID(lines.Header(), p.endpoint.Key),
	}, nil
}
