package openai_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/sashabaranov/go-openai"
)

// These tests hold what go-openai loses, which is why so much stands around it (docs/decisions/0034). One that fails after an update says
// that something can go.

func bare(t *testing.T, s *server, limit uint) (*sdk.ChatCompletionStream, error) {
	t.Helper()
	config := sdk.DefaultConfig(key)
	config.BaseURL, config.HTTPClient, config.EmptyMessagesLimit = anywhere, s.client(), limit
	return sdk.NewClientWithConfig(config).CreateChatCompletionStream(t.Context(), sdk.ChatCompletionRequest{Model: "m"})
}

// lines returns what the library gives for a body: each line, and the last error.
func lines(t *testing.T, body string, limit uint) ([]string, error) {
	t.Helper()
	stream, err := bare(t, streaming(strings.NewReader(body)), limit)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var got []string
	for range 1000 {
		line, err := stream.RecvRaw()
		if err != nil {
			return got, err
		}
		got = append(got, string(line))
	}
	t.Fatal("no end")
	return nil, nil
}

func TestTheLibraryGivesUpAfterManyKeepAlives(t *testing.T) {
	t.Parallel()
	if _, err := lines(t, strings.Repeat(": OPENROUTER PROCESSING\n\n", 200)+"data: "+finished+"\n\n", 300); !errors.Is(err, sdk.ErrTooManyEmptyStreamMessages) {
		t.Errorf("got %v", err)
	}
}

func TestTheLibraryLosesAnErrorAfterAKeepAlive(t *testing.T) {
	t.Parallel()
	got, err := lines(t, ": OPENROUTER PROCESSING\n\ndata: {\"error\":{\"code\":429,\"message\":\"slow down\"}}\n\n", 1<<30)
	if len(got) != 1 || got[0] != "" || !errors.Is(err, io.EOF) || strings.Contains(err.Error(), "slow down") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheLibraryLosesAFieldNamedError(t *testing.T) {
	t.Parallel()
	if got, err := lines(t, "data: {}\n\nerror: {\"code\":500,\"message\":\"broke\"}\n\n", 1<<30); len(got) != 1 || err != io.EOF { //nolint:errorlint // it is this very error
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheLibraryLosesALastLineWithoutItsEnd(t *testing.T) {
	t.Parallel()
	if got, err := lines(t, "data: {}\n\ndata: "+finished, 1<<30); len(got) != 1 || err != io.EOF { //nolint:errorlint // it is this very error
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheLibraryTakesACutForAnEnd(t *testing.T) {
	t.Parallel()
	if got, err := lines(t, "data: "+says("one")+"\n\n", 1<<30); len(got) != 1 || err != io.EOF { //nolint:errorlint // it is this very error
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheLibraryTakesARedirectForAStream(t *testing.T) {
	t.Parallel()
	stream, err := bare(t, &server{status: http.StatusTemporaryRedirect, body: strings.NewReader("")}, 300)
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
}

func TestTheLibraryLosesRetryAfter(t *testing.T) {
	t.Parallel()
	_, err := bare(t, &server{status: 429, header: http.Header{"Retry-After": {"7"}}, body: strings.NewReader(`{"error":{"message":"slow down"}}`)}, 300)
	e, ok := errors.AsType[*sdk.APIError](err)
	if !ok || e.HTTPStatusCode != 429 || strings.Contains(e.Error(), "7") {
		t.Errorf("got %#v", err)
	}
}

func TestTheLibrarysChunkLosesThoughtsAndPrices(t *testing.T) {
	t.Parallel()
	stream, err := bare(t, streaming(chunks(
		`{"choices":[{"index":0,"delta":{"reasoning":"hmm"}}],"usage":{"prompt_tokens":1,"cost":0.5}}`,
		`{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"one"}]}}]}`)), 300)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	first, err := stream.Recv()
	if err != nil || first.Choices[0].Delta.ReasoningContent != "" {
		t.Errorf("got %+v, %v", first, err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("a content that is a list can be read")
	}
}

func TestTheLibrarysRequestLosesAZeroAndAnEmptyResult(t *testing.T) {
	t.Parallel()
	s := streaming(chunks(finished))
	config := sdk.DefaultConfig(key)
	config.BaseURL, config.HTTPClient = anywhere, s.client()
	stream, err := sdk.NewClientWithConfig(config).CreateChatCompletionStream(t.Context(), sdk.ChatCompletionRequest{
		Model: "m", Temperature: 0, Messages: []sdk.ChatCompletionMessage{{Role: "tool", ToolCallID: "a", Content: ""}},
	})
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
	if strings.Contains(string(s.sent), "temperature") || strings.Contains(string(s.sent), "content") {
		t.Errorf("sent %s", s.sent)
	}
	s.asked = nil
	_, err = sdk.NewClientWithConfig(config).CreateChatCompletionStream(t.Context(), sdk.ChatCompletionRequest{Model: "gpt-5-of-a-gateway", Temperature: 0.5})
	if !errors.Is(err, sdk.ErrReasoningModelLimitationsOther) || s.asked != nil {
		t.Errorf("a model with the name of another: got %v", err)
	}
}
