package provider_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
)

// told is a stream of events.
type told struct {
	events []provider.Event
	provider.Event
}

func (s *told) Next() bool {
	if len(s.events) == 0 {
		return false
	}
	s.Event, s.events = s.events[0], s.events[1:]
	return true
}
func (s *told) Current() provider.Event { return s.Event }
func (s *told) Err() error              { return nil }
func (s *told) Close() error            { return nil }

// A part takes much more memory than its text.
func TestAnAnswerHasFewParts(t *testing.T) {
	t.Parallel()
	text, thought := provider.Event{Kind: provider.TextDelta, Delta: "a"},
		provider.Event{Kind: provider.ThinkingDelta, Delta: "b"}
	call := provider.Event{Kind: provider.CallBegan, ID: "1", Name: "f"}
	for name, parts := range map[string][]provider.Event{"texts and thoughts": {text, thought}, "calls": {call, call}} {
		all := slices.Repeat(parts, provider.MaxParts/2)
		whole, err := provider.Collect(&told{events: append(slices.Clip(all), provider.Event{Kind: provider.Ended})}, nil)
		if err != nil || len(whole.Parts) != provider.MaxParts {
			t.Errorf("%s: got %d parts, %v", name, len(whole.Parts), err)
		}
		_, err = provider.Collect(&told{events: append(all, parts[0])}, nil)
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.AnswerTooBig {
			t.Errorf("%s: one more part is %v", name, err)
		}
	}
}

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
		`{"a":1e-400}`:           `{"a":1e-400}`,
		`{"a":1e-401}`:           "",
		`{"a":1e309}`:            "",
		// An output has arguments twice, and must still be readable.
		`{"v":[` + strings.Repeat("1e308,", 20_000) + `1]}`:                             "",
		`{"` + strings.Repeat("k", 100_000) + `":[` + strings.Repeat("1,", 400) + `1]}`: "",
		`{"v":[` + strings.Repeat("1,", 10_000) + `1]}`:                                 `{"v":[` + strings.Repeat("1,", 10_000) + `1]}`,
		`{"v":` + strings.Repeat("[", 151) + strings.Repeat("]", 151) + `}`:             "",
	} {
		a, err := provider.Collect(&told{events: []provider.Event{{Kind: provider.TextDelta, Delta: "nul\x00"},
			{Kind: provider.CallBegan, ID: "1", Name: "f"}, {Kind: provider.ArgumentsDelta, Delta: written},
			{Kind: provider.Ended, Stop: provider.ToolUse}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		call := a.Parts[1]
		if a.Text() != "nul\uFFFD" || kept != "" && string(call.Arguments) != kept || kept == "" &&
			(string(call.Arguments) != "{}" || call.RawArguments != written) {
			t.Errorf("%.100s: got %q, %.100s and %.100q", written, a.Text(), call.Arguments, call.RawArguments)
		}
	}
}
