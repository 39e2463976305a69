// Package aimock starts a provider that other people wrote: aimock, from npm, which speaks the dialects of several and
// is compared with them by its makers. The tests of our dialects hold against it what package llmtest cannot show,
// since both sides of that are ours.
//
//	s := aimock.Start(t, aimock.Options{Fixtures: []aimock.Fixture{{
//		Match: aimock.Match{Model: "m"}, Response: aimock.Response{Content: "hello"}}}})
//	provider := openai.New(llm.Endpoint{BaseURL: s.URL + "/v1", HTTP: client})
//
// It accepts nearly any request, and its usage is 0 unless a fixture has one. It comes from npm: see [Install]. Where
// it is missing a test that needs it is skipped, or fails when GEM_TEST_REQUIRE is set.
package aimock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Install is the command that fetches aimock. Run it at the top of the repository.
const Install = "npm ci --prefix internal/testing/aimock"

// Options of a server.
type Options struct {
	Fixtures []Fixture `json:"fixtures"`
	// Key is what a request must bring; a request without it is answered with 401. Empty: any is welcome.
	Key string `json:"key,omitempty"`
}

// Fixture says how requests are answered that match it: the first that matches serves.
type Fixture struct {
	Match    Match    `json:"match"`
	Response Response `json:"response"`
	// ChunkSize is how many letters come in one event. 0: its own default, 20.
	ChunkSize int `json:"chunkSize,omitempty"`
	// Latency is waited before each event, in milliseconds.
	Latency int `json:"latency,omitempty"`
	// TruncateAfterChunks breaks the connection after so many events. 0: never.
	TruncateAfterChunks int `json:"truncateAfterChunks,omitempty"`
}

// Match says which requests: each field that is set must fit. A pointer to 0 is the first of the requests that match.
type Match struct {
	Model         string `json:"model,omitempty"`
	UserMessage   string `json:"userMessage,omitempty"` // a part of the last message of the user
	HasToolResult *bool  `json:"hasToolResult,omitempty"`
	SequenceIndex *int   `json:"sequenceIndex,omitempty"`
}

// Response is an answer, or a failure.
type Response struct {
	Content            string     `json:"content,omitempty"`
	Reasoning          string     `json:"reasoning,omitempty"`
	ReasoningSignature string     `json:"reasoningSignature,omitempty"`
	RedactedThinking   []string   `json:"redactedThinking,omitempty"`
	ToolCalls          []ToolCall `json:"toolCalls,omitempty"`
	// in the words of the OpenAI dialect, whatever is spoken
	FinishReason string         `json:"finishReason,omitempty"`
	Usage        map[string]int `json:"usage,omitempty"` // in the words of the dialect

	Error      *Failure `json:"error,omitempty"`
	Status     int      `json:"status,omitempty"`
	RetryAfter int      `json:"retryAfter,omitempty"` // seconds
}

// ToolCall is the call of a tool. Arguments is JSON.
type ToolCall struct {
	ID        string `json:"id,omitempty"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Failure is what a provider says when it fails.
type Failure struct {
	Message string `json:"message"`
	Type    string `json:"type,omitempty"`
	Code    string `json:"code,omitempty"`
}

// Server is a process of aimock, on 127.0.0.1.
type Server struct {
	// URL has no path: Anthropic's and Gemini's lie below it, the OpenAI dialect's below /v1.
	URL string
}

// Start starts a server that ends with the test.
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
