package openai_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/openai"
)

// server answers every request with the same, without a network.
type server struct {
	status int
	header http.Header
	body   io.Reader
	asked  *http.Request
	sent   []byte
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = r
	s.sent, _ = io.ReadAll(r.Body)
	if s.header == nil {
		s.header = http.Header{"Content-Type": {"text/event-stream"}}
	}
	return &http.Response{StatusCode: s.status, Header: s.header, Body: io.NopCloser(s.body), Request: r}, nil
}

func streaming(body io.Reader) *server { return &server{status: http.StatusOK, body: body} }

func (s *server) client() *http.Client {
	c := provider.NewHTTP(nil)
	c.Transport = provider.Bound(s, provider.BytesIdle, provider.MaxLine)
	return c
}

const key = "sk-test-0123456789"

func (s *server) provider(base string) provider.Provider {
	return newWith(base, key, s.client())
}

const anywhere = "https://provider.invalid/v1"

func question() *provider.Request {
	return &provider.Request{Model: "m", MaxOutputTokens: 100, Messages: []provider.Message{
		{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Count from 1 to 3"}}},
	}}
}

// ask collects the answer that a server gives.
func ask(t testing.TB, s *server) (*provider.Answer, []provider.Event, error) {
	t.Helper()
	return askFor(t, s, anywhere, question())
}

func askFor(t testing.TB, s *server, base string, r *provider.Request) (*provider.Answer, []provider.Event, error) {
	t.Helper()
	stream, err := s.provider(base).Stream(t.Context(), r)
	if err != nil {
		return nil, nil, err
	}
	var events []provider.Event
	answer, err := provider.Collect(stream, func(e *provider.Event) { events = append(events, *e) })
	return answer, events, err
}

// chunks writes a stream of the given data.
func chunks(data ...string) io.Reader {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return strings.NewReader(b.String())
}

// torn gives a body in two reads.
type torn struct {
	body []byte
	at   int
	done int
}

func (b *torn) Read(p []byte) (int, error) {
	end := len(b.body)
	if b.done < b.at {
		end = b.at
	}
	if b.done == len(b.body) {
		return 0, io.EOF
	}
	n := copy(p, b.body[b.done:end])
	b.done += n
	return n, nil
}

func kind(err error) provider.ErrorKind {
	if e, ok := errors.AsType[*provider.Error](err); ok {
		return e.Kind
	}
	return ""
}

func newAt(base string, client *http.Client) provider.Provider { return newWith(base, key, client) }

func newWith(base, key string, client *http.Client) provider.Provider {
	return openai.New(provider.Endpoint{BaseURL: base, Key: key, HTTP: client})
}
