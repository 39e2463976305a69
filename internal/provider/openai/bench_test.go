package openai_test

import (
	"io"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
)

// BenchmarkEvent costs one event of a long answer: read, decoded and added to the answer.
func BenchmarkEvent(b *testing.B) {
	for name, delta := range map[string]string{
		"text":      `{"content":" token"}`,
		"thought":   `{"role":"assistant","content":"","reasoning":" token"}`,
		"arguments": `{"tool_calls":[{"index":0,"function":{"arguments":"\"a\":1,"}}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			event := `data: {"id":"chatcmpl-245","object":"chat.completion.chunk","created":1780944351,"model":"some-model","system_fingerprint":"fp","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}` + "\n\n"
			const events = 2000
			first := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}]}` + "\n\n"
			last := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
			body := first + strings.Repeat(event, events) + last
			b.ReportAllocs()
			for n := 0; n < b.N; n += events {
				a, _, err := collect(b, strings.NewReader(body))
				if err != nil || len(a.Parts) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}

func collect(b *testing.B, body io.Reader) (*provider.Answer, int, error) {
	s, err := streaming(body).provider(anywhere).Stream(b.Context(), question())
	if err != nil {
		return nil, 0, err
	}
	n := 0
	a, err := provider.Collect(s, func(*provider.Event) { n++ })
	return a, n, err
}
