// Package recorded gives tests the recorded answers of real providers, and serves them in pieces of any size.
package recorded

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Recording is a request to a provider and its response.
type Recording struct {
	ID, Kind, Host, Path string
	Status               int
	Headers              map[string]string
	Request, Body        string
}

// Load returns the recordings in GEM_TEST_DATA with the given kind and hosts. Without that variable it skips the test.
func Load(t testing.TB, kind string, hosts ...string) []Recording {
	t.Helper()
	dir := os.Getenv("GEM_TEST_DATA")
	if dir == "" {
		t.Skip("GEM_TEST_DATA names no folder with recorded answers")
	}
	file, err := os.Open(filepath.Join(dir, "llm", "recorded.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []Recording
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var r Recording
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			for _, host := range hosts {
				if r.Kind == kind && r.Host == host {
					found = append(found, r)
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) == 0 {
		t.Fatalf("there are no recordings of kind %s from %v", kind, hosts)
	}
	return found
}

// Response is a transport that gives the same response to every request.
type Response struct {
	Status int
	Header http.Header
	Body   string
	// Cuts are the positions in Body at which a read ends.
	Cuts []int
	// Err, if set, is returned at the end of the body.
	Err error
	// Seen, if set, is called with each request and its body.
	Seen func(r *http.Request, body []byte)
}

// Events returns a response that streams body.
func Events(body string, cuts ...int) *Response {
	return &Response{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
		Body: body, Cuts: cuts}
}

// Response returns the recorded response.
func (r *Recording) Response() *Response {
	h := http.Header{}
	for name, value := range r.Headers {
		h.Set(name, value)
	}
	return &Response{Status: r.Status, Header: h, Body: r.Body}
}

// RoundTrip returns the response.
func (s *Response) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	if s.Seen != nil {
		s.Seen(r, body)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: s.Status, Status: http.StatusText(s.Status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: s.Header.Clone(), Body: &pieces{response: s}, ContentLength: -1, Request: r,
	}, nil
}

type pieces struct {
	response *Response
	at       int
}

func (p *pieces) Read(into []byte) (int, error) {
	rest := p.response.Body[p.at:]
	if rest == "" {
		if p.response.Err != nil {
			return 0, p.response.Err
		}
		return 0, io.EOF
	}
	for _, c := range p.response.Cuts {
		if c > p.at && c-p.at < len(rest) {
			rest = rest[:c-p.at]
			break
		}
	}
	n := copy(into, rest)
	p.at += n
	return n, nil
}

func (p *pieces) Close() error { return nil }

// Ends returns the positions after each event of a stream.
func Ends(body string) []int {
	var ends []int
	for i := range body {
		if rest := body[:i+1]; strings.HasSuffix(rest, "\n\n") || strings.HasSuffix(rest, "\r\n\r\n") {
			ends = append(ends, i+1)
		}
	}
	return ends
}

// Places returns the positions at which to cut a stream. These are all positions, or, if it has more than 4 KB and
// GEM_TEST_LONG is not set, those around the ends of up to 60 events, including the first and the last, and 200 others.
func Places(body string) []int {
	var places []int
	if len(body) <= 4<<10 || os.Getenv("GEM_TEST_LONG") == "1" {
		for i := 1; i < len(body); i++ {
			places = append(places, i)
		}
		return places
	}
	ends := Ends(body)
	for i, end := range ends {
		if i == len(ends)-1 || i%(1+len(ends)/60) == 0 {
			places = append(places, end-1, end, min(end+1, len(body)))
		}
	}
	random := rand.New(rand.NewSource(1)) //nolint:gosec // the same positions each time
	for range 200 {
		places = append(places, 1+random.Intn(len(body)-1))
	}
	return places
}
