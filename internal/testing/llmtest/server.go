// Package llmtest is a provider of models for tests: an HTTP server on 127.0.0.1 that speaks the three dialects. It
// answers and fails as scripted, and records the requests.
//
//	s := llmtest.Start(t, llmtest.Options{Key: "secret"})
//	s.Script("model-a", llmtest.Script{Fault: llmtest.Status(503)}, llmtest.Say("hello"))
//	provider := openai.New(llm.Endpoint{BaseURL: s.BaseURL(llmtest.OpenAI), Key: "secret", HTTP: client})
//
// It does not use the dialects' packages: it was written from recorded answers of the providers. It tests the behaviour
// of a client. It cannot show that the providers still use these formats.
package llmtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/gemworker/gem/internal/provider"
)

// Dialect is the protocol of a provider.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic" // Messages: /v1/messages
	OpenAI    Dialect = "openai"    // Chat Completions: /v1/chat/completions
	Gemini    Dialect = "gemini"    // generateContent: /v1beta/models/MODEL:streamGenerateContent?alt=sse
)

// Dialects has all dialects.
var Dialects = []Dialect{Anthropic, OpenAI, Gemini}

// Options of a server. The zero value requires no key, and answers "ok" to requests without a script.
type Options struct {
	// Key is the key that a request must have in its dialect's header. The answer to a request without it is 401. By
	// default no key is checked.
	Key string
	// TLS serves https with its own certificate, and HTTP/2: see Server.Client. Any other client gets a TLS error.
	TLS bool
	// Answer returns the script of a request for which no queue has one. The default is Say("ok"). It must be safe for
	// concurrent use.
	Answer func(*Request) Script
}

// Server is a provider. Its methods are safe for concurrent use.
type Server struct {
	// URL is the URL of the server, without a path.
	URL string

	options Options
	http    *httptest.Server
	closing chan struct{}
	close   sync.Once

	mu       sync.Mutex
	queues   map[string][]Script
	always   map[string]Script
	requests []*Request
	cached   map[[sha256.Size]byte]bool // the beginnings of requests that are cached
	counts   Counts
	changed  chan struct{} // closed and replaced at each change
}

// TB has the methods of a *testing.T that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
}

// Start returns a server that stops at the end of the test.
func Start(t TB, o Options) *Server {
	t.Helper()
	s := New(o)
	t.Cleanup(s.Close)
	return s
}

// New returns a server, which must be closed. It panics if 127.0.0.1 has no free port.
func New(o Options) *Server {
	if o.Answer == nil {
		o.Answer = func(*Request) Script { return Say("ok") }
	}
	s := &Server{options: o, closing: make(chan struct{}), queues: map[string][]Script{}, always: map[string]Script{},
		cached: map[[sha256.Size]byte]bool{}, changed: make(chan struct{})}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = quiet
	s.http.Config.ConnState = s.connection
	if o.TLS {
		s.http.EnableHTTP2 = true
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	s.URL = s.http.URL
	return s
}

// Close ends all streams and the server.
func (s *Server) Close() {
	s.close.Do(func() {
		close(s.closing)
		s.http.CloseClientConnections()
		s.http.Close()
	})
}

// Client returns an HTTP client that trusts the server's certificate.
func (s *Server) Client() *http.Client { return s.http.Client() }

// TLSConfig returns the TLS configuration that another client needs to trust the server's certificate.
func (s *Server) TLSConfig() *tls.Config {
	return s.http.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
}

// BaseURL returns the URL below which the dialect has its paths. The optional prefix comes first in the path, so that
// several targets of one model can each have a queue: s.BaseURL(OpenAI, "/east").
func (s *Server) BaseURL(d Dialect, prefix ...string) string {
	base := s.URL + strings.Join(prefix, "")
	if d == OpenAI {
		base += "/v1"
	}
	return base
}

// Script adds scripts to the queue for a model ("model-a"), for a path prefix ("/east"), or for any request (""). Each
// script serves one request. A model's queue comes first, then that of the longest path prefix, then that for any
// request.
func (s *Server) Script(queue string, scripts ...Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[queue] = append(s.queues[queue], scripts...)
}

// Always sets the script for requests of a queue that has no scripts left.
func (s *Server) Always(queue string, script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[queue] = script
}

// next takes the script for a request from the queues.
func (s *Server) next(r *Request) Script {
	s.mu.Lock()
	var names []string
	for _, queue := range []map[string]bool{keys(s.queues), keys(s.always)} {
		for name := range queue {
			if strings.HasPrefix(name, "/") && strings.HasPrefix(r.Path, name) {
				names = append(names, name)
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, name := range append(append([]string{r.Asked.Model}, names...), "") {
		if queue := s.queues[name]; len(queue) > 0 {
			s.queues[name] = queue[1:]
			s.mu.Unlock()
			return queue[0]
		}
		if script, ok := s.always[name]; ok {
			s.mu.Unlock()
			return script
		}
	}
	s.mu.Unlock()
	return s.options.Answer(r)
}

func keys[V any](m map[string]V) map[string]bool {
	set := map[string]bool{}
	for k := range m {
		set[k] = true
	}
	return set
}

// Left returns the number of scripts that no request has used yet.
func (s *Server) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, queue := range s.queues {
		n += len(queue)
	}
	return n
}

// Counts are the numbers of events so far, and of what is open now.
type Counts struct {
	Requests    int // received
	Answered    int // answered to the end of their script
	Gone        int // whose client left before the end of the script, including before any answer
	Open        int // being answered now
	Deltas      int // sent
	Connections int // open now
	Dialled     int // connections made
}

// Counts returns the current numbers.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Wait waits until wanted returns true for the numbers, for example
//
//	s.Wait(ctx, func(c llmtest.Counts) bool { return c.Gone == 1 })
//
// It returns the error of ctx, with the current numbers, if ctx ends first.
func (s *Server) Wait(ctx context.Context, wanted func(Counts) bool) error {
	for {
		s.mu.Lock()
		counts, changed := s.counts, s.changed
		s.mu.Unlock()
		if wanted(counts) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %+v", context.Cause(ctx), counts)
		}
	}
}

// change changes the numbers and the records, and wakes the waiters.
func (s *Server) change(f func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counts)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) connection(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.change(func(c *Counts) { c.Dialled++; c.Connections++ })
	case http.StateClosed, http.StateHijacked:
		s.change(func(c *Counts) { c.Connections-- })
	}
}

// Requests returns the requests so far, in the order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Request, len(s.requests))
	for i, r := range s.requests {
		list[i] = *r
	}
	return list
}

// Last returns the last request, or an empty one if there was none.
func (s *Server) Last() Request {
	if list := s.Requests(); len(list) > 0 {
		return list[len(list)-1]
	}
	return Request{}
}

// Usage returns the total usage of the requests: see Request.Usage.
func (s *Server) Usage() provider.Usage {
	var sum provider.Usage
	for _, r := range s.Requests() {
		sum.Input += r.Usage.Input
		sum.Output += r.Usage.Output
		sum.CacheRead += r.Usage.CacheRead
		sum.CacheWrite += r.Usage.CacheWrite
		sum.Reasoning += r.Usage.Reasoning
	}
	return sum
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, hr *http.Request) {
	body, err := io.ReadAll(io.LimitReader(hr.Body, 64<<20))
	if err != nil {
		return // the client left while it sent the request
	}
	r := read(hr, body)
	s.change(func(c *Counts) {
		c.Requests++
		c.Open++
		r.N = c.Requests
		s.requests = append(s.requests, r)
	})
	ctx, cancel := context.WithCancel(hr.Context())
	defer cancel()
	p := &player{server: s, request: r, w: w, ctx: ctx}
	defer func() {
		s.change(func(c *Counts) {
			c.Open--
			if p.gone {
				r.Gone = true
				c.Gone++
			} else {
				c.Answered++
			}
		})
	}()
	p.play()
}

// Refused returns an address that refuses connections until the end of the test. A connection keeps its port, so that
// no other process takes it.
func Refused(t TB) string {
	t.Helper()
	ctx := context.Background()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	holder, err := new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() {
		holder.Close()
		listener.Close()
	})
	return "http://" + holder.LocalAddr().String()
}
