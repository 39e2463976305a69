package supabase

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Answer is the answer to one request.
type Answer struct {
	Status  int             // of the HTTP response
	Code    string          // of the error: an SQLSTATE or one of PostgREST's own; empty without an error
	Message string          // of the error
	Hint    string          // of the error
	Data    json.RawMessage // null when there was none
	Count   *int64          // if a count was requested
	Header  http.Header     // only from [Project.Send]
}

// Outcome returns the status and the error code, such as "403 42501".
func (a Answer) Outcome() string { return strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, a.Code)) }

// Client is a node process with supabase-js or a page.
type Client struct {
	t  testing.TB
	mu sync.Mutex
	in io.Writer
	to *bufio.Reader
}

// Client returns the project's supabase-js client.
func (p *Project) Client() *Client {
	p.t.Helper()
	return p.client()
}

// Page opens an HTML page without a browser: its scripts run, but nothing is rendered. The bodies passed to
// [Client.Run] can use its `window` and `document`.
func Page(t testing.TB, file string) *Client {
	t.Helper()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return startNode(t, "page", path)
}

// Browser opens an empty page of a real Chromium. The bodies passed to [Client.Run] can use it as `page` of puppeteer.
// `seen` has the errors and requests of its content.
func Browser(t testing.TB) *Client {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if program, err := exec.LookPath(name); err == nil {
			return startNode(t, "browser", program)
		}
	}
	npmrig.Missing(t, "Chromium is missing: install the package chromium")
	return nil
}

func startNode(t testing.TB, args ...string) *Client {
	t.Helper()
	node, dir := npmrig.Node(t, rig, "@supabase/supabase-js", Install)
	in, out := npmrig.Start(t, node, dir, os.Stderr, append([]string{"node.mjs"}, args...)...)
	return &Client{t: t, in: in, to: out}
}

// Query runs a query in the form that a frontend uses, without the leading `supabase.`. An empty token is that of a
// visitor.
func (c *Client) Query(token, query string) Answer {
	c.t.Helper()
	var a struct {
		Status int
		Error  *struct{ Code, Message, Hint string }
		Data   json.RawMessage
		Count  *int64
	}
	text := c.Run(token, "return supabase."+query)
	if err := json.Unmarshal(text, &a); err != nil {
		c.t.Fatalf("%s returned %s: %v", query, text, err)
	}
	answer := Answer{Status: a.Status, Data: a.Data, Count: a.Count}
	if a.Error != nil {
		answer.Code, answer.Message, answer.Hint = a.Error.Code, a.Error.Message, a.Error.Hint
	}
	return answer
}

// Run runs the body of an async function and returns its result as JSON. The client of the token is `supabase`.
func (c *Client) Run(token, body string) json.RawMessage {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	step, err := json.Marshal(map[string]string{"token": token, "body": body})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(step, '\n')); err != nil {
		c.t.Fatalf("ask node: %v", err)
	}
	line, err := c.to.ReadBytes('\n')
	if err != nil {
		c.t.Fatalf("node did not answer: %v", err)
	}
	var result struct {
		Returned json.RawMessage
		Threw    string
	}
	if err := json.Unmarshal(line, &result); err != nil {
		c.t.Fatalf("node answered %s: %v", line, err)
	}
	if result.Threw != "" {
		c.t.Fatalf("%s threw %s", body, result.Threw)
	}
	return result.Returned
}

// Request is a request to PostgREST that supabase-js cannot or would not send.
type Request struct {
	Method string // the default is GET
	Path   string // such as /core_tool_calls?select=id
	Token  string // the default is none
	Body   string
	Header map[string]string // in addition to Content-Type, which is JSON if there is a body
}

// Send sends a request to PostgREST and returns the answer.
func (p *Project) Send(r Request) Answer {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), r.Method, p.PostgREST+r.Path, strings.NewReader(r.Body))
	if err != nil {
		p.t.Fatal(err)
	}
	if r.Body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.Token != "" {
		request.Header.Set("Authorization", "Bearer "+r.Token)
	}
	for name, value := range r.Header {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	answer := Answer{Status: response.StatusCode, Header: response.Header, Data: body}
	if response.StatusCode >= 400 {
		var e struct{ Code, Message, Hint string }
		_ = json.Unmarshal(body, &e) // an answer that is not JSON has no code
		answer.Code, answer.Message, answer.Hint = e.Code, e.Message, e.Hint
	}
	return answer
}
