package aimock_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/aimock"
)

func TestItAnswersAndFailsAsItsFixturesSay(t *testing.T) {
	t.Parallel()
	s := aimock.Start(t, aimock.Options{Key: "secret", Fixtures: []aimock.Fixture{
		{Match: aimock.Match{Model: "m"}, Response: aimock.Response{Content: "hello"}, ChunkSize: 3},
		{Match: aimock.Match{Model: "busy"}, Response: aimock.Response{Error: &aimock.Failure{Message: "too many"},
			Status: 429, RetryAfter: 7}},
	}})
	ask := func(model, key string) (status int, pause, body string) {
		request, err := http.NewRequest(http.MethodPost, s.URL+"/v1/chat/completions",
			strings.NewReader(`{"model":"`+model+`","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + key}}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, response.Header.Get("Retry-After"), string(text)
	}
	if status, _, body := ask("m", "secret"); status != http.StatusOK || !strings.Contains(body, `"content":"hel"`) ||
		!strings.Contains(body, "[DONE]") {
		t.Error(status, body)
	}
	if status, pause, body := ask("busy", "secret"); status != http.StatusTooManyRequests || pause != "7" ||
		!strings.Contains(body, "too many") {
		t.Error(status, pause, body)
	}
	if status, _, body := ask("m", "wrong"); status != http.StatusUnauthorized {
		t.Error(status, body)
	}
	if status, _, body := ask("unknown", "secret"); status != http.StatusServiceUnavailable {
		t.Error(status, body)
	}
}
