// Package aimock starts a third-party mock provider: aimock, from npm. It speaks the dialects of several providers, and
// its authors compare it with them. The tests of our dialects use it to show what package llmtest cannot, since both
// sides of llmtest are ours.
//
//	s := aimock.Start(t, aimock.Options{Fixtures: []aimock.Fixture{{
//		Match: aimock.Match{Model: "m"}, Response: aimock.Response{Content: "hello"}}}})
//	provider := openai.New(llm.Endpoint{BaseURL: s.URL + "/v1", HTTP: client})
//
// It accepts nearly any request, and its usage is 0 unless a fixture has one. It comes from npm: see [Install]. If it
// is missing, tests that need it are skipped, or fail if GEM_TEST_REQUIRE is set.
package aimock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Install is the command that installs aimock. Run it at the top of the repository.
const Install = "npm ci --prefix internal/testing/aimock"

// Options of a server.
type Options struct {
	Fixtures []Fixture `json:"fixtures"`
	// Key is the key that a request must have. The answer to a request without it is 401. By default any request is
	// accepted.
	Key string `json:"key,omitempty"`
}

// Fixture is the answer to the requests that match it. The first match is used.
type Fixture struct {
	Match    Match    `json:"match"`
	Response Response `json:"response"`
	// ChunkSize is the number of characters per event. The default is that of aimock, 20.
	ChunkSize int `json:"chunkSize,omitempty"`
	// Latency is the pause before each event, in milliseconds.
	Latency int `json:"latency,omitempty"`
	// TruncateAfterChunks breaks the connection after that many events. The default is never.
	TruncateAfterChunks int `json:"truncateAfterChunks,omitempty"`
}

// Match selects requests. Each field that is set must match. A SequenceIndex that points to 0 selects the first request
// that matches.
type Match struct {
	Model         string `json:"model,omitempty"`
	UserMessage   string `json:"userMessage,omitempty"` // a part of the user's last message
	HasToolResult *bool  `json:"hasToolResult,omitempty"`
	SequenceIndex *int   `json:"sequenceIndex,omitempty"`
}

// Response is an answer or a failure.
type Response struct {
	Content            string     `json:"content,omitempty"`
	Reasoning          string     `json:"reasoning,omitempty"`
	ReasoningSignature string     `json:"reasoningSignature,omitempty"`
	RedactedThinking   []string   `json:"redactedThinking,omitempty"`
	ToolCalls          []ToolCall `json:"toolCalls,omitempty"`
	// a word of the OpenAI dialect, whatever the dialect
	FinishReason string         `json:"finishReason,omitempty"`
	Usage        map[string]int `json:"usage,omitempty"` // with the names of the dialect

	Error      *Failure `json:"error,omitempty"`
	Status     int      `json:"status,omitempty"`
	RetryAfter int      `json:"retryAfter,omitempty"` // seconds
}

// ToolCall is a call to a tool. Arguments is JSON.
type ToolCall struct {
	ID        string `json:"id,omitempty"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Failure is the error of a provider.
type Failure struct {
	Message string `json:"message"`
	Type    string `json:"type,omitempty"`
	Code    string `json:"code,omitempty"`
}

// Server is an aimock process on 127.0.0.1.
type Server struct {
	// URL has no path. The paths of Anthropic and Gemini are below it, and those of OpenAI below /v1.
	URL string
}

// Start starts a server that stops at the end of the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	node, folder := npmrig.Node(t, "internal/testing/aimock", "@copilotkit/aimock", Install)
	in, out := npmrig.Start(t, node, folder, os.Stderr, "aimock.mjs")
	if o.Fixtures == nil {
		o.Fixtures = []Fixture{}
	}
	if err := json.NewEncoder(in).Encode(o); err != nil {
		t.Fatal(err)
	}
	address, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("aimock gave no address: %v", err)
	}
	return &Server{URL: strings.TrimSpace(address)}
}
