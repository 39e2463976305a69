package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// Request is what a client asked, and what came of it.
type Request struct {
	// N is 1 for the first request that came, 2 for the second.
	N       int
	Dialect Dialect // empty for a path that no dialect has
	Method  string
	Path    string // without the query
	Query   string
	Proto   string
	Header  http.Header
	Body    []byte
	// Key is what came in the dialect's header.
	Key string
	// Asked is the body in the form that all dialects share. Thinks, Target and RawArguments are not in a body.
	Asked provider.Request
	// Err says why the body is none of the dialect. The answer to it is 400.
	Err error

	Status   int            // of the response, 0 while there is none
	Deltas   int            // that were sent
	Usage    provider.Usage // charged by a provider: for each answer that began, even if it broke off
	Finished bool           // the terminal event was sent
	Gone     bool           // the client left before the end of the script
}

// read reads a request.
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

// text is a string, or a list of pieces that have texts.
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

// event returns the lines of an event with data in JSON.
func lines(data any) string {
	encoded, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("llmtest: %v", err))
	}
	return "data: " + string(encoded) + "\n\n"
}

// object is a JSON object.
type object = map[string]any
