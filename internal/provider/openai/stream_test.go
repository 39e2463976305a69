package openai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

const (
	finished = `{"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	done     = "[DONE]"
)

func says(text string) string {
	return fmt.Sprintf(`{"model":"m","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
}

func calls(fragments ...string) string {
	return `{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[` + strings.Join(fragments, ",") + `]}}]}`
}

// The three defects of an adapter that was read: a chunk with usage was only that, a first fragment with a name had no
// further arguments, and a stream without its end was a success.

func TestTextUsageAndEndMayShareAChunk(t *testing.T) {
	t.Parallel()
	a, _, err := ask(t, streaming(chunks(
		says("one, "),
		`{"model":"m","choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":3}}`,
		done)))
	if err != nil || a.Text() != "one, two" || a.Stop != provider.MaxTokens ||
		a.Usage != (provider.Usage{Input: 5, Output: 3, Known: true}) {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestArgumentsComeAlsoAfterAFragmentWithTheName(t *testing.T) {
	t.Parallel()
	const arguments = `{"text":"a \"quoted\" lätter \u00e4 \\ and {braces}","n":[1,2]}`
	whole, _ := json.Marshal(arguments)
	want := []string{"id7 f " + arguments}
	for at := range len(arguments) + 1 {
		if at > 0 && at < len(arguments) && arguments[at]&0xC0 == 0x80 {
			continue // inside a letter: no JSON text can be cut there
		}
		a, _, err := ask(t, streaming(chunks(
			calls(fmt.Sprintf(`{"index":0,"id":"id7","type":"function","function":{"name":"f","arguments":%s}}`,
				quoted(arguments[:at]))),
			calls(fmt.Sprintf(`{"index":0,"function":{"arguments":%s}}`, quoted(arguments[at:]))),
			`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`)))
		if err != nil || a.Stop != provider.ToolUse || !reflect.DeepEqual(readingOf(a).Calls, want) {
			t.Fatalf("cut at %d: got %+v, %v", at, a, err)
		}
	}
	a, _, err := ask(t, streaming(chunks(
		calls(fmt.Sprintf(`{"index":0,"id":"id7","function":{"name":"f","arguments":%s}}`, whole)),
		`{"choices":[{"index":0,"delta":{},"finish_reason":"STOP"}]}`)))
	if err != nil || a.Stop != provider.ToolUse || !reflect.DeepEqual(readingOf(a).Calls, want) {
		t.Errorf("whole: got %+v, %v", a, err)
	}
}

func quoted(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

func TestAChunkIsOneDocument(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]string{
		"another chunk": says("hidden"), "a brace": "}", "the end": finished, "half a chunk": `{"choices":`, "a word": " x",
	} {
		a, _, err := ask(t, streaming(chunks(says("one, "), says("two")+rest, says(", three"), finished, done)))
		if kind(err) != provider.Garbled || a.Text() != "one, " {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
}

func TestADocumentMayEndWithSpace(t *testing.T) {
	t.Parallel()
	const document = `{"model":"m","choices":[{"index":0,"message":{"content":"one"},"finish_reason":"stop"}]}`
	for _, body := range []string{document, document + "\n", "\r\n " + document + " \r\n\r\n"} {
		s := streaming(strings.NewReader(body))
		s.header = http.Header{"Content-Type": {"application/json"}}
		if a, _, err := ask(t, s); err != nil || a.Text() != "one" {
			t.Errorf("%q: got %+v, %v", body, a, err)
		}
	}
}

func TestAStreamWithoutFinishReasonIsCut(t *testing.T) {
	t.Parallel()
	usage := `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}`
	for name, body := range map[string]io.Reader{
		"nothing":                strings.NewReader(""),
		"only comments":          strings.NewReader(": wait\n\n: wait\n\n"),
		"only [DONE]":            chunks(done),
		"text":                   chunks(says("one")),
		"text and [DONE]":        chunks(says("one"), done),
		"text, usage and [DONE]": chunks(says("one"), usage, done),
		"an empty finish_reason": chunks(`{"choices":[{"index":0,"delta":{"content":"one"},"finish_reason":""}]}`,
			done),
		"another choice's finish_reason": chunks(`{"choices":[{"index":1,"delta":{"content":"one"},"finish_reason":"stop"}]}`,
			done),
		"half a line": strings.NewReader("data: " + says("one")[:20]),
		"a call without its end": chunks(calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}`),
			done),
	} {
		if _, _, err := ask(t, streaming(body)); kind(err) != provider.Cut {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDoneIsNotNeeded(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"as it should be":    "data: " + says("one") + "\n\ndata: " + finished + "\n\n",
		"no last line's end": "data: " + says("one") + "\n\ndata: " + finished,
		"CRLF":               "data: " + says("one") + "\r\n\r\ndata: " + finished + "\r\n\r\n",
		"no space":           "data:" + says("one") + "\n\ndata:" + finished + "\n\n",
		"unknown fields": "id: 1\nretry: 5\nevent: chunk\nsomething: else\nno colon\ndata: " + says("one") +
			"\n\ndata: " + finished + "\n\n",
		"what breaks after": "data: " + says("one") + "\n\ndata: " + finished + "\n\ndata: {\"cho",
		"garbage after":     "data: " + says("one") + "\n\ndata: " + finished + "\n\ndata: ?\n\n",
	} {
		if a, _, err := ask(t, streaming(strings.NewReader(body))); err != nil || a.Text() != "one" ||
			a.Stop != provider.EndTurn {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
}

func TestAnErrorInsideASuccessIsAnError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		kind provider.ErrorKind
	}{
		"a chunk with a status": {`data: {"error":{"code":429,"message":"slow down"}}`, provider.RateLimited},
		"after keep-alives": {": wait\n\n: wait\n\n" + `data: {"error":{"code":429,"message":"slow down"}}`,
			provider.RateLimited},
		"beside choices": {`data: {"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":"502","message":"slow down"}}`, provider.Unavailable},
		"of the choice":  {`data: {"choices":[{"index":0,"delta":{},"finish_reason":"error","error":{"code":503,"message":"slow down"}}]}`, provider.Overloaded},
		"only a finish_reason": {`data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`,
			provider.Unavailable},
		"a word for it": {`data: {"error":{"type":"rate_limit_error","message":"slow down"}}`,
			provider.RateLimited},
		"a prompt too long": {`data: {"error":{"code":"context_length_exceeded","message":"slow down"}}`,
			provider.ContextLength},
		"a wrong key": {`data: {"error":{"code":"invalid_api_key","message":"slow down"}}`,
			provider.Unauthorized},
		"a text":                            {`data: {"error":"slow down"}`, provider.Unavailable},
		"an error of the type error":        {`data: {"object":"error","message":"slow down","type":"BadRequestError","code":400}`, provider.BadRequest},
		"a field of this name":              {`error: {"code":500,"message":"slow down"}`, provider.Unavailable},
		"a field of this name, with a text": {`error: slow down`, provider.Unavailable},
		"an event of this name": {"event: error\n" + `data: {"code":529,"message":"slow down"}`,
			provider.Overloaded},
		"an event that wraps it": {"event: error\n" +
			`data: {"error":{"status":"UNAVAILABLE","message":"slow down"}}`, provider.Overloaded},
	} {
		for _, before := range []string{"", "data: " + says("one") + "\n\n"} {
			for _, after := range []string{"", "\n\n", "\n\ndata: [DONE]\n\n", "\n\ndata: " + finished + "\n\n"} {
				_, _, err := ask(t, streaming(strings.NewReader(before+test.body+after)))
				e, ok := errors.AsType[*provider.Error](err)
				if !ok || e.Kind != test.kind || e.Status != http.StatusOK {
					t.Errorf("%s, between %q and %q: got %#v", name, before, after, err)
					continue
				}
				if test.kind != provider.Unauthorized && name != "only a finish_reason" &&
					!strings.Contains(e.Message, "slow down") {
					t.Errorf("%s: got %q", name, e.Message)
				}
			}
		}
	}
}

func TestAnErrorInADocumentWithTheStatusOfASuccessIsAnError(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]provider.ErrorKind{
		"{\n \"error\": {\n  \"code\": 429, \"message\": \"slow down\"\n }\n}": provider.RateLimited,
		`{"error":{"message":"slow down"}}`:                                    provider.Unavailable,
		`{"error":{"message":`:                                                 provider.Cut,
		`{}`:                                                                   provider.Cut,
		`<html>`:                                                               provider.Cut,
	} {
		_, _, err := ask(t, &server{status: 200, header: http.Header{"Content-Type": {"application/json; charset=utf-8"}},
			body: strings.NewReader(body)})
		if kind(err) != want {
			t.Errorf("%q: got %v", body, err)
		}
	}
}

func TestThePlaceOfAnErrorsMessageDiffers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"error":{"message":"no","type":"x","code":"a_code"}}`: "no (a_code)",
		`{"error":"no"}`:   "no",
		`{"message":"no"}`: "no",
		`{"detail":"no"}`:  "no",
		`{"detail":[{"loc":["body"],"msg":"no","type":"missing"}]}`:  "no (missing)",
		`[{"error":{"code":400,"message":"no","status":"INVALID"}}]`: "no (INVALID)",
		`{"object":"error","message":"no","code":40001}`:             "no",
		`{"error":{"message":["no","yes"]}}`:                         "no",
		"no":                                                         "no",
		"<html>no</html>":                                            "",
		"":                                                           "",
		`{"error":{"code":"why"}}`:                                   "why",
	} {
		_, _, err := ask(t, &server{status: 400, body: strings.NewReader(body)})
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.BadRequest || e.Message != want {
			t.Errorf("%s: got %#v, want %q", body, err, want)
		}
	}
}

func TestAFailureKeepsWhatTheHeadersSay(t *testing.T) {
	t.Parallel()
	h := http.Header{"Retry-After": {"7"}, "X-Request-Id": {"req_1"}, "X-Should-Retry": {"false"}}
	_, _, err := ask(t, &server{status: 429, header: h, body: strings.NewReader(`{"error":{"message":"slow down"}}`)})
	want := &provider.Error{Kind: provider.RateLimited, Status: 429, Message: "slow down", RetryAfter: 7 * time.Second,
		RequestID: "req_1", Final: true}
	if !reflect.DeepEqual(err, want) {
		t.Errorf("got %#v", err)
	}
	_, _, err = ask(t, &server{status: 429, body: strings.NewReader(
		`{"error":{"message":"pay","code":"insufficient_quota"}}`)})
	if e, ok := errors.AsType[*provider.Error](err); !ok || !e.Final || e.Kind != provider.RateLimited {
		t.Errorf("an empty account: got %#v", err)
	}
	_, _, err = ask(t, &server{status: 400, body: strings.NewReader(
		`[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]`)})
	if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Unauthorized || e.Message != "" {
		t.Errorf("a wrong key with the status 400: got %#v", err)
	}
	for status, want := range map[int]provider.ErrorKind{204: provider.Garbled, 301: provider.NotFound,
		307: provider.NotFound} {
		if _, _, err := ask(t, &server{status: status, body: chunks(says("one"), finished)}); kind(err) != want {
			t.Errorf("HTTP %d: got %v", status, err)
		}
	}
}

// A caller whose words are rejected does not make the model cool down for all others.
func TestWordsThatAreNotWantedAreABadRequest(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]provider.ErrorKind{
		`{"error":{"code":403,"message":"m requires moderation on A. Your input was flagged for \"violence\".","metadata":{"reasons":["violence"],"flagged_input":"…"}}}`: provider.BadRequest,
		`{"error":{"code":403,"message":"Request blocked: prompt injection patterns detected"}}`:                                                                          provider.BadRequest,
		`{"error":{"code":"content_policy_violation","message":"no"}}`:                                                                                                    provider.BadRequest,
		`{"error":{"code":403,"message":"Key limit exceeded"}}`:                                                                                                           provider.Unauthorized,
		`{"error":{"code":"permission_denied","message":"Country, region, or territory not supported"}}`:                                                                  provider.Unauthorized,
	} {
		_, _, err := ask(t, &server{status: 403, body: strings.NewReader(body)})
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != want || e.Status != 403 ||
			(e.Message == "") != (want == provider.Unauthorized) {
			t.Errorf("%s: got %#v", body, err)
		}
	}
	_, _, err := ask(t, streaming(chunks(`{"error":{"code":403,"message":"Your input was flagged"}}`)))
	if kind(err) != provider.BadRequest {
		t.Errorf("in a stream: got %v", err)
	}
}

func TestTheProviderNamesTheRequest(t *testing.T) {
	t.Parallel()
	const body = `data: {"id":"f8bfe790d883421b8e3baee516ec5a37","model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	for header, want := range map[string]string{"": "f8bfe790d883421b8e3baee516ec5a37", "req_1": "req_1"} {
		s := streaming(strings.NewReader(body))
		s.header = http.Header{"X-Request-Id": {header}}
		a, _, err := ask(t, s)
		if err != nil || a.RequestID != want || a.Model != "m-1" {
			t.Errorf("got %+v, %v", a, err)
		}
		s = streaming(strings.NewReader(strings.Replace(body, "stop", "error", 1)))
		s.header = http.Header{"X-Request-Id": {header}}
		_, _, err = ask(t, s)
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.RequestID != want {
			t.Errorf("got %#v", err)
		}
	}
}

func TestCallsAreToldApart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data []string
		want []string
	}{
		"by index, mixed": {
			[]string{
				calls(`{"index":0,"id":"a","function":{"name":"f","arguments":""}}`,
					`{"index":1,"id":"b","function":{"name":"g","arguments":"{\"x\""}}`),
				calls(`{"index":0,"function":{"arguments":"{\"y\":"}}`), calls(`{"index":1,"function":{"arguments":":1}"}}`),
				calls(`{"index":0,"function":{"arguments":"2}"}}`),
			},
			[]string{`a f {"y":2}`, `b g {"x":1}`},
		},
		"indices that begin at 1": {
			[]string{calls(`{"index":1,"id":"a","function":{"name":"f","arguments":"{}"}}`),
				calls(`{"index":2,"id":"b","function":{"name":"g","arguments":"{}"}}`)},
			[]string{"a f {}", "b g {}"},
		},
		"no index": {
			[]string{calls(`{"id":"a","function":{"name":"f","arguments":"{}"}}`),
				calls(`{"id":"b","function":{"name":"g","arguments":"{}"}}`)},
			[]string{"a f {}", "b g {}"},
		},
		"no index, in pieces": {
			[]string{calls(`{"id":"a","function":{"name":"f","arguments":"{\"x\""}}`), calls(`{"function":{"arguments":":"}}`),
				calls(`{"id":"a","function":{"arguments":"1}"}}`)},
			[]string{`a f {"x":1}`},
		},
		"no id": {
			[]string{calls(`{"index":0,"function":{"name":"f","arguments":"{}"}}`),
				calls(`{"index":1,"id":null,"function":{"name":"g","arguments":"{}"}}`)},
			[]string{"call_0 f {}", "call_1 g {}"},
		},
		"neither": {
			[]string{calls(`{"function":{"name":"f","arguments":"{"}}`, `{"function":{"arguments":"}"}}`),
				calls(`{"function":{"name":"f","arguments":"{\"x\":1}"}}`)},
			[]string{"call_0 f {}", `call_1 f {"x":1}`},
		},
		"one index for all": {
			[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}`),
				calls(`{"index":0,"id":"b","function":{"name":"f","arguments":"{"}}`),
				calls(`{"index":0,"function":{"arguments":"}"}}`)},
			[]string{"a f {}", "b f {}"},
		},
		"one index for all, mixed": {
			[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}`),
				calls(`{"index":0,"id":"b","function":{"name":"g","arguments":"{}"}}`),
				calls(`{"index":0,"id":"a","function":{"arguments":"1}"}}`)},
			[]string{`a f {"x":1}`, "b g {}"},
		},
		"another id for each piece": {
			[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}`),
				calls(`{"index":0,"id":"b","function":{"arguments":"1}"}}`)},
			[]string{`a f {"x":1}`},
		},
		"one index for all, and no id": {
			[]string{calls(`{"index":0,"id":"","function":{"name":"f","arguments":"{}"}}`),
				calls(`{"index":0,"id":"","function":{"name":"f","arguments":"{\"x\":1}"}}`)},
			[]string{"call_0 f {}", `call_1 f {"x":1}`},
		},
		"a name that is repeated": {
			[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}`),
				calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"\"x\":1"}}`),
				calls(`{"index":0,"function":{"name":"f","arguments":"}"}}`)},
			[]string{`a f {"x":1}`},
		},
		"a name that comes late": {
			[]string{calls(`{"index":0,"id":"a"}`), calls(`{"index":0,"function":{"arguments":"{"}}`),
				calls(`{"index":0,"function":{"name":"f","arguments":"}"}}`)},
			[]string{"a f {}"},
		},
		"arguments that are an object": {[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":{"x":1}}}`)},
			[]string{`a f {"x":1}`}},
		"no arguments": {[]string{calls(`{"index":0,"id":"a","function":{"name":"f"}}`)}, []string{"a f {}"}},
		"arguments that are no JSON": {[]string{calls(
			`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}`)}, []string{`a f {}{"x":`}},
	} {
		a, events, err := ask(t, streaming(chunks(append(slices.Clone(test.data),
			`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`, done)...)))
		if err != nil || a.Stop != provider.ToolUse || !reflect.DeepEqual(readingOf(a).Calls, test.want) {
			t.Errorf("%s: got %q, %v, %v", name, readingOf(a).Calls, a.Stop, err)
		}
		next := 0
		for _, e := range events {
			if e.Kind == provider.CallBegan {
				if e.Index != next {
					t.Errorf("%s: call %d began as number %d", name, next, e.Index)
				}
				next++
			}
		}
	}
	_, _, err := ask(t, streaming(chunks(calls(`{"index":0,"id":"a","function":{"arguments":"{}"}}`), finished)))
	if kind(err) != provider.Garbled {
		t.Errorf("a call without a name: got %v", err)
	}
}

func TestThoughtsAreReadFromWhereverTheyStand(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]string{
		"reasoning_content": `{"content":null,"reasoning_content":"hmm"}`,
		"reasoning":         `{"content":"","reasoning":"hmm"}`,
		"both":              `{"reasoning":"hmm","reasoning_content":"hmm"}`,
		"a list":            `{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"},{"type":"text","text":"mm"}],"closed":true}]}`,
		"a list of texts":   `{"content":[{"type":"thinking","thinking":"hmm"}]}`,
	} {
		a, _, err := ask(t, streaming(chunks(
			`{"model":"m","choices":[{"index":0,"delta":`+delta+`}]}`,
			`{"model":"m","choices":[{"index":0,"delta":{"content":[{"type":"text","text":"on"},{"type":"reference","reference_ids":[1]},{"type":"text","text":"e"}]}}]}`,
			finished)))
		if r := readingOf(a); err != nil || r.Thinking != "hmm" || r.Text != "one" {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

func TestAnAnswerEndsOnce(t *testing.T) {
	t.Parallel()
	// OpenRouter ends twice, the second time with the usage.
	a, events, err := ask(t, streaming(chunks(says("one"), finished,
		`{"model":"m","choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`, done)))
	if err != nil || a.Text() != "one" || a.Stop != provider.EndTurn || a.Usage.Output != 2 {
		t.Errorf("got %+v, %v", a, err)
	}
	ends := slices.DeleteFunc(events, func(e provider.Event) bool { return e.Kind != provider.Ended })
	if len(ends) != 1 {
		t.Errorf("ended %d times", len(ends))
	}
}

func TestAMessageThatGrowsBesideItsDeltasIsNotReadTwice(t *testing.T) {
	t.Parallel()
	// Perplexity repeats in each chunk all that has come.
	a, _, err := ask(t, streaming(chunks(
		`{"choices":[{"index":0,"delta":{"content":"one"},"message":{"content":"one"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":", two"},"message":{"content":"one, two"},"finish_reason":"stop"}]}`)))
	if err != nil || a.Text() != "one, two" {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestARefusalIsOne(t *testing.T) {
	t.Parallel()
	a, _, err := ask(t, streaming(chunks(`{"choices":[{"index":0,"delta":{"refusal":"I will not"}}]}`, finished)))
	if err != nil || a.Stop != provider.Refusal || a.Text() != "I will not" {
		t.Errorf("got %+v, %v", a, err)
	}
	a, _, err = ask(t, streaming(chunks(says("one"),
		`{"choices":[{"index":0,"delta":{},"finish_reason":"content_filter"}]}`)))
	if err != nil || a.Stop != provider.Refusal || a.ProviderStop != "content_filter" {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestUsageIsTheLastSeen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		usage []string
		want  provider.Usage
	}{
		"none":          {nil, provider.Usage{}},
		"null":          {[]string{`null`}, provider.Usage{}},
		"empty":         {[]string{`{}`}, provider.Usage{}},
		"an explicit 0": {[]string{`{"prompt_tokens":0,"completion_tokens":0}`}, provider.Usage{Known: true}},
		"one that grows": {[]string{`{"prompt_tokens":5,"completion_tokens":1}`,
			`{"prompt_tokens":5,"completion_tokens":2}`}, provider.Usage{Input: 5, Output: 2, Known: true}},
		"null at the end": {[]string{`{"prompt_tokens":5,"completion_tokens":2}`, `null`},
			provider.Usage{Input: 5, Output: 2, Known: true}},
		"what is cached is part of the input": {
			[]string{`{"prompt_tokens":50,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":40,"cache_write_tokens":5}}`},
			provider.Usage{Input: 50, Output: 2, CacheRead: 40, CacheWrite: 5, Known: true},
		},
		"DeepSeek's word for it": {[]string{`{"prompt_tokens":50,"completion_tokens":2,"prompt_cache_hit_tokens":40}`},
			provider.Usage{Input: 50, Output: 2, CacheRead: 40, Known: true}},
		"thoughts are part of the output": {
			[]string{`{"prompt_tokens":5,"completion_tokens":20,"total_tokens":25,"completion_tokens_details":{"reasoning_tokens":15}}`},
			provider.Usage{Input: 5, Output: 20, Reasoning: 15, Known: true},
		},
		"thoughts that were counted beside it": {
			[]string{`{"prompt_tokens":5,"completion_tokens":5,"total_tokens":25,"completion_tokens_details":{"reasoning_tokens":15}}`},
			provider.Usage{Input: 5, Output: 20, Reasoning: 15, Known: true},
		},
		"negative": {[]string{`{"prompt_tokens":-5,"completion_tokens":2}`},
			provider.Usage{Output: 2, Known: true}},
		"a fraction": {[]string{`{"prompt_tokens":1.5,"completion_tokens":2}`},
			provider.Usage{Input: 2, Output: 2, Known: true}},
		"large": {[]string{`{"prompt_tokens":1e30,"completion_tokens":2}`},
			provider.Usage{Input: 1e18, Output: 2, Known: true}},
		"a number in quotes": {[]string{`{"prompt_tokens":"12","completion_tokens":2}`},
			provider.Usage{Input: 12, Output: 2, Known: true}},
		"a figure that is none": {[]string{`{"prompt_tokens":"many","completion_tokens":2}`}, provider.Usage{}},
		"an odd one within it":  {[]string{`{"prompt_tokens":"many","completion_tokens":{}}`, `null`}, provider.Usage{}},
		"a text":                {[]string{`"many"`}, provider.Usage{}},
		"details that are false": {[]string{`{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":false}`},
			provider.Usage{}},
		"a price": {[]string{`{"prompt_tokens":5,"completion_tokens":2,"cost":6e-05}`},
			provider.Usage{Input: 5, Output: 2, CostUSD: "0.00006", Known: true}},
		"a price that is no number": {[]string{`{"prompt_tokens":5,"completion_tokens":2,"cost":{"total_cost":1}}`},
			provider.Usage{Input: 5, Output: 2, Known: true}},
	} {
		data := []string{says("one")}
		for _, u := range test.usage[:max(len(test.usage)-1, 0)] {
			data = append(data, `{"choices":[{"index":0,"delta":{"content":""}}],"usage":`+u+`}`)
		}
		data = append(data, finished)
		for _, u := range test.usage[max(len(test.usage)-1, 0):] {
			data = append(data, `{"choices":[],"usage":`+u+`}`)
		}
		a, _, err := ask(t, streaming(chunks(append(data, done)...)))
		if err != nil || a.Usage != test.want {
			t.Errorf("%s: got %+v, %v", name, a.Usage, err)
		}
	}
}

func TestManyKeepAlivesAreNoContent(t *testing.T) {
	t.Parallel()
	body := strings.Repeat(": OPENROUTER PROCESSING\n\n", 5000) +
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	a, events, err := ask(t, streaming(strings.NewReader(body+"data: "+says("one")+"\n\ndata: "+finished+"\n\n")))
	if err != nil || a.Text() != "one" {
		t.Fatalf("got %+v, %v", a, err)
	}
	alive := 0
	for _, e := range events {
		if e.IsContent() {
			break
		}
		if e.Kind == provider.KeepAlive {
			alive++
		}
	}
	if alive < 5000 {
		t.Errorf("%d signs of life", alive)
	}
}

func TestBoundsOfAnAnswer(t *testing.T) {
	t.Parallel()
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf(`{"index":%d,"id":"i%d","function":{"name":"f","arguments":"{}"}}`, i, i)
	}
	big := strings.Repeat("x", 600_000)
	for name, body := range map[string]io.Reader{
		"an endless line": io.LimitReader(endless{}, 64<<20),
		"a long line":     strings.NewReader("data: " + says(strings.Repeat("x", provider.MaxLine)) + "\n\n"),
		"a long text":     chunks(says(big), says(big), finished),
		"long arguments": chunks(calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"`+big+`"}}`),
			calls(`{"index":0,"function":{"arguments":"`+big+`"}}`), finished),
		"names without number": chunks(calls(many...), finished),
	} {
		if _, _, err := ask(t, streaming(body)); kind(err) != provider.AnswerTooBig {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestATextThatIsANumberIsGarbage(t *testing.T) {
	t.Parallel()
	odd := `{"choices":[{"index":0,"delta":{"content":7}}]}`
	if _, _, err := ask(t, streaming(chunks(says("one"), odd, finished))); kind(err) != provider.Garbled {
		t.Errorf("got %v", err)
	}
}

func TestAServerThatKeepsTheConnectionOpenAfterTheEndIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: %s\n\ndata: %s\n\n", says("one"), finished)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	s, err := newAt(server.URL, provider.NewHTTP(nil)).Stream(t.Context(), question())
	if err != nil {
		t.Fatal(err)
	}
	if a, err := provider.Collect(s, nil); err != nil || a.Text() != "one" {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestAConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	from := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from[r.RemoteAddr] = true
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.Copy(w, chunks(says("one"), finished, done))
		w.(http.Flusher).Flush() // the end of the body comes by itself
	}))
	defer server.Close()
	p := newAt(server.URL, provider.NewHTTP(nil))
	for range 5 {
		s, err := p.Stream(t.Context(), question())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := provider.Collect(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(from) != 1 {
		t.Errorf("%d connections", len(from))
	}
}

func TestAKeyIsInNoError(t *testing.T) {
	t.Parallel()
	bodies := []string{
		`{"error":{"message":"the key KEY is wrong","code":"KEY","type":"KEY"}}`, "KEY", `{"detail":"KEY"}`,
		`[{"error":"KEY"}]`, `<KEY>`,
		"data: {\"error\":{\"message\":\"KEY\"}}\n\n", "error: KEY\n\n", "event: error\ndata: KEY\n\n", "data: KEY\n\n",
		"data: \"KEY\"\n\n",
		"data: {\"model\":\"KEY\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error KEY\"}]}\n\n",
		"data: {\"KEY\":1,\"choices\":\"KEY\"}\n\n",
	}
	for _, planted := range []string{key, "an-unusual/key+of=ours"} {
		for _, body := range bodies {
			for _, status := range []int{200, 302, 400, 401, 403, 404, 429, 500} {
				for _, content := range []string{"text/event-stream", "application/json"} {
					s := &server{status: status, body: strings.NewReader(strings.ReplaceAll(body, "KEY", planted)),
						header: http.Header{
							"Content-Type": {content}, "X-Request-Id": {"id-" + planted},
							"Location": {"https://elsewhere.invalid/?" + planted},
						}}
					stream, err := newWith(anywhere, planted, s.client()).Stream(t.Context(), question())
					if err == nil {
						var a *provider.Answer
						if a, err = provider.Collect(stream, nil); err == nil {
							err = fmt.Errorf("%s %s %s", a.Model, a.RequestID, a.ProviderStop)
						}
					}
					for ; err != nil; err = errors.Unwrap(err) {
						if said := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(said, planted) {
							t.Errorf("HTTP %d, %s: got %s", status, body, said)
						}
					}
				}
			}
		}
	}
}

// FuzzStream: whatever comes, nothing panics, an answer stays within its bound, and a success has one end.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: "+says("one")+"\n\ndata: "+finished+"\n\ndata: [DONE]\n\n"), false)
	f.Add([]byte(": x\n\nerror: {\"code\":500}\n\n"), false)
	f.Add([]byte("event: error\r\ndata: {\"error\":[]}\r\n\r\n"), false)
	f.Add([]byte("data: "+calls(`{"index":0,"function":{"arguments":{"x":1}}}`, `{"id":"a","function":{"name":"f"}}`)+
		"\n\n"), false)
	f.Add([]byte(`{"choices":[{"message":{"content":[{"type":"thinking","thinking":[]}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":-1,"cost":1e400}}`), true)
	f.Fuzz(func(t *testing.T, body []byte, document bool) {
		s := streaming(strings.NewReader(string(body)))
		if document {
			s.header = http.Header{"Content-Type": {"application/json"}}
		}
		stream, err := s.provider(anywhere).Stream(t.Context(), question())
		if err != nil {
			t.Fatal(err)
		}
		ends := 0
		a, err := provider.Collect(stream, func(e *provider.Event) {
			if e.Kind == provider.Ended {
				ends++
			} else if ends > 0 && e.IsContent() {
				t.Errorf("content came after the end")
			}
		})
		if (err == nil) != (ends == 1) && kind(err) == "" || ends > 1 {
			t.Errorf("ended %d times, with %v", ends, err)
		}
		u := a.Usage
		if u.Input < 0 || u.Output < 0 || u.CacheRead+u.CacheWrite > u.Input || u.Reasoning > u.Output {
			t.Errorf("usage is %+v", u)
		}
	})
}

func TestAConnectionThatBreaksInMidStreamIsCut(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset by peer")
	body := func(data ...string) io.Reader {
		return io.MultiReader(chunks(data...), strings.NewReader("data: {"), failing{broken})
	}
	if a, _, err := ask(t, streaming(body(says("one")))); kind(err) != provider.Cut || a.Text() != "one" {
		t.Errorf("got %+v, %v", a, err)
	}
	if a, _, err := ask(t, streaming(body(says("one"), finished))); err != nil || a.Text() != "one" {
		t.Errorf("after the end: got %+v, %v", a, err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A tool must not run with the arguments of another one, or without its own.
func TestArgumentsStayWithTheirCall(t *testing.T) {
	t.Parallel()
	const ends = `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`
	for name, c := range map[string]struct {
		chunks []string
		want   string // the calls, or garbled
	}{
		"no ids, and the first has no arguments": {[]string{calls(`{"index":0,"function":{"name":"f","arguments":""}}`),
			calls(`{"index":0,"function":{"name":"g","arguments":"{\"a\":1}"}}`), ends}, `call_0 f {}; call_1 g {"a":1}`},
		"one chunk without ids": {[]string{calls(`{"function":{"name":"f","arguments":null}}`,
			`{"function":{"name":"g","arguments":"{\"a\":1}"}}`), ends}, `call_0 f {}; call_1 g {"a":1}`},
		"the same id": {[]string{calls(`{"id":"c","function":{"name":"f","arguments":""}}`,
			`{"id":"c","function":{"name":"g","arguments":"{}"}}`), ends}, "garbled"},
		"arguments after the end": {[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":""}}`), ends,
			calls(`{"index":0,"function":{"arguments":"{\"a\":1}"}}`)}, "garbled"},
		"an id that begins a call later": {[]string{calls(`{"index":0,"id":"a","function":{"name":"x","arguments":""}}`),
			calls(`{"index":0,"id":"b","function":{"arguments":"{}"}}`),
			calls(`{"index":0,"id":"b","function":{"name":"y","arguments":""}}`), ends}, "garbled"},
		"an index of no call": {[]string{calls(`{"id":"a","function":{"name":"x","arguments":""}}`),
			calls(`{"index":7,"function":{"arguments":"{}"}}`), ends}, "garbled"},
		"several calls that arguments may belong to": {[]string{calls(`{"index":0,"id":"a","function":{"name":"x"}}`,
			`{"index":1,"id":"b","function":{"name":"y"}}`), calls(`{"function":{"arguments":"{}"}}`), ends}, "garbled"},
		"one call that arguments may belong to": {[]string{
			calls(`{"index":0,"id":"a","function":{"name":"x","arguments":"{"}}`,
				`{"index":1,"id":"b","function":{"name":"y","arguments":"{}"}}`), calls(`{"function":{"arguments":"}"}}`), ends},
			"a x {}; b y {}"},
		"arguments after complete ones": {[]string{calls(`{"id":"a","function":{"name":"x","arguments":"{}"}}`),
			calls(`{"function":{"arguments":"{}"}}`), ends}, "garbled"},
		"one id for two calls, and no index": {[]string{calls(`{"index":0,"id":"a","function":{"name":"x"}}`,
			`{"index":1,"id":"a","function":{"name":"y"}}`), calls(`{"id":"a","function":{"arguments":"{}"}}`), ends},
			"garbled"},
		"empty pieces": {[]string{calls(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`),
			calls(`{"index":1,"function":{"arguments":""}}`, `{}`), ends}, "a x {}"},
		"a piece after the end that cannot be read": {[]string{calls(`{"index":0,"id":"a","function":{"name":"x"}}`), ends,
			`{"choices":[{"delta":{"tool_calls":[`}, "garbled"},
		"the end twice": {[]string{calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}`), ends, ends},
			`a f {}`},
	} {
		a, _, err := ask(t, streaming(chunks(append(c.chunks, done)...)))
		got := "garbled"
		if kind(err) != provider.Garbled {
			got = strings.Join(readingOf(a).Calls, "; ")
		}
		if got != c.want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
