package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// Request is a request of a client, and its result.
type Request struct {
	// N is the number of the request, beginning with 1.
	N       int
	Dialect Dialect // empty for a path that belongs to no dialect
	Method  string
	Path    string // without the query
	Query   string
	Proto   string
	Header  http.Header
	Body    []byte
	// Key is the key in the dialect's header.
	Key string
	// Asked is the body in the form common to all dialects. A body has no Thinks, Target and RawArguments.
	Asked provider.Request
	// CacheAt lists where the request asks to cache its beginning: after as many pieces (see pieces). Only the dialect
	// Anthropic has it.
	CacheAt []int
	// Err is why the body is not valid in the dialect. Such a request is answered with 400.
	Err error

	Status   int            // of the response; 0 until there is one
	Deltas   int            // number sent
	Usage    provider.Usage // charged by a provider: for each answer that began, even if it broke off
	Finished bool           // the terminal event was sent
	Gone     bool           // the client left before the end of the script
}

// read parses a request.
func read(hr *http.Request, body []byte) *Request {
	r := &Request{Method: hr.Method, Path: hr.URL.Path, Query: hr.URL.RawQuery, Proto: hr.Proto, Header: hr.Header,
		Body: body}
	switch path := hr.URL.Path; {
	case strings.HasSuffix(path, "/v1/messages"):
		r.Dialect, r.Key = Anthropic, hr.Header.Get("X-Api-Key")
		r.Err = r.readAnthropic()
	case strings.HasSuffix(path, "/chat/completions"):
		r.Dialect, r.Key = OpenAI, strings.TrimPrefix(hr.Header.Get("Authorization"), "Bearer ")
		r.Err = r.readOpenAI()
	case strings.HasSuffix(path, ":streamGenerateContent"):
		r.Dialect, r.Key = Gemini, hr.Header.Get("X-Goog-Api-Key")
		r.Err = r.readGemini(hr)
	default:
		return r
	}
	switch {
	case r.Method != http.MethodPost:
		r.Err = fmt.Errorf("the method is %s", r.Method)
	case !strings.HasPrefix(hr.Header.Get("Content-Type"), "application/json"):
		r.Err = fmt.Errorf("the body is %q", hr.Header.Get("Content-Type"))
	case r.Err == nil && r.Asked.Model == "":
		r.Err = errors.New("no model is named")
	case r.Err == nil && len(r.Asked.Messages) == 0:
		r.Err = errors.New("there are no messages")
	}
	return r
}

// text is a string, or a list of parts with texts.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = text(one)
		return nil
	}
	var list []struct{ Text string }
	err := json.Unmarshal(data, &list)
	for _, piece := range list {
		*t += text(piece.Text)
	}
	return err
}

// words is a string, or a list of strings.
type words []string

func (w *words) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*w = words{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(w))
}

// lines returns the lines of an event with data as JSON.
func lines(data any) string {
	encoded, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("llmtest: %v", err))
	}
	return "data: " + string(encoded) + "\n\n"
}

// object is a JSON object.
type object = map[string]any
