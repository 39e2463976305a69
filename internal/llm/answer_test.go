package llm_test

import (
	"testing"

	"github.com/gemworker/gem/internal/llm"
)

// told is a stream of events.
type told struct {
	events []llm.Event
	llm.Event
}

func (s *told) Next() bool {
	if len(s.events) == 0 {
		return false
	}
	s.Event, s.events = s.events[0], s.events[1:]
	return true
}
func (s *told) Current() llm.Event { return s.Event }
func (s *told) Err() error         { return nil }
func (s *told) Close() error       { return nil }

// What Postgres cannot have in JSON must not make an answer worthless that was paid for.
func TestAnAnswerHasOnlyWhatPostgresCanKeep(t *testing.T) {
	t.Parallel()
	for written, kept := range map[string]string{
		`{"a": "b"}`:             `{"a":"b"}`,
		`{"a": "\u00e9\n"}`:      `{"a":"\u00e9\n"}`,
		`{"a": "\\u0000"}`:       `{"a":"\\u0000"}`,
		`{"a": "\ud83d\ude00"}`:  `{"a":"\ud83d\ude00"}`,
		`{"a": "\u0000"}`:        "",
		`{"a": "\\\u0000"}`:      "",
		`{"a": "\ud83d"}`:        "",
		`{"a": "\ud83d\\ude00"}`: "",
		`{"a": "\ude00"}`:        "",
	} {
		a, err := llm.Collect(&told{events: []llm.Event{{Kind: llm.TextDelta, Delta: "nul\x00"}, {Kind: llm.CallBegan, ID: "1", Name: "f"}, {Kind: llm.ArgumentsDelta, Delta: written},
			{Kind: llm.Ended, Stop: llm.ToolUse}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		call := a.Parts[1]
		if a.Text() != "nul\uFFFD" || kept != "" && string(call.Arguments) != kept || kept == "" && (string(call.Arguments) != "{}" || call.RawArguments != written) {
			t.Errorf("%s: got %q, %s and %q", written, a.Text(), call.Arguments, call.RawArguments)
		}
	}
}
