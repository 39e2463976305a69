package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/issuer"
	"github.com/gemworker/gem/internal/testing/issuertest"
	"github.com/gemworker/gem/registry"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// httpEndpoint is a server on its own HTTP port.
type httpEndpoint struct {
	*Server
	address string // host:port
	stop    context.CancelFunc
	ended   chan error
}

// serveHTTP starts a server, without a database unless o.Pool is set.
func serveHTTP(t *testing.T, o Options, c HTTPConfig) *httpEndpoint {
	t.Helper()
	if o.Registry == nil {
		o.Registry = parsed(t)
	}
	if o.Pool == nil {
		o.Pool = func(context.Context) (*pgxpool.Pool, error) { return nil, errors.New("Postgres is away") }
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	d.grace = time.Minute // on a machine that is slow
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &httpEndpoint{Server: d, address: l.Addr().String(), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	h.stop = stop
	go func() { h.ended <- d.ServeHTTP(ctx, l, c) }()
	t.Cleanup(func() { stop(); d.Close() })
	return h
}

// tokensFor writes a file with a token for each line of "subject scope…", and returns its path and the tokens.
func tokensFor(t *testing.T, lines ...string) (path string, tokens []string) {
	t.Helper()
	var text strings.Builder
	for _, line := range lines {
		fields := strings.Fields(line)
		token, entry, err := NewToken(fields[0], fields[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
		text.WriteString(entry + "\n")
	}
	path = filepath.Join(t.TempDir(), "tokens")
	write(t, path, text.String())
	return path, tokens
}

const (
	modern = "2026-07-28"
	legacy = "2025-11-25"
)

// rpc posts one message of a version of the protocol. Headers are pairs of a name and a value; a value of "" omits
// the header.
func (h *httpEndpoint) rpc(t *testing.T, version, method, params string, headers ...string) *answer {
	t.Helper()
	p := map[string]json.RawMessage{}
	if params != "" {
		if err := json.Unmarshal([]byte(params), &p); err != nil {
			t.Fatal(err)
		}
	}
	if version == modern {
		meta := map[string]json.RawMessage{}
		_ = json.Unmarshal(p["_meta"], &meta)
		meta["io.modelcontextprotocol/protocolVersion"] = json.RawMessage(`"` + modern + `"`)
		meta["io.modelcontextprotocol/clientInfo"] = json.RawMessage(`{"name":"test","version":"1"}`)
		if meta["io.modelcontextprotocol/clientCapabilities"] == nil {
			meta["io.modelcontextprotocol/clientCapabilities"] = json.RawMessage(`{}`)
		}
		p["_meta"], _ = json.Marshal(meta)
		var name string
		for _, field := range []string{"name", "uri", "taskId"} {
			if p[field] != nil {
				_ = json.Unmarshal(p[field], &name)
			}
		}
		headers = append([]string{"Mcp-Method", method, "Mcp-Name", name}, headers...)
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": p})
	if err != nil {
		t.Fatal(err)
	}
	return h.post(t, string(body), append([]string{"Mcp-Protocol-Version", version}, headers...)...)
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	text   string
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
	events []json.RawMessage // of a stream, all but the answer
}

// post sends a body to /mcp.
func (h *httpEndpoint) post(t *testing.T, body string, headers ...string) *answer {
	t.Helper()
	a, err := h.try(t.Context(), body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (h *httpEndpoint) try(ctx context.Context, body string, headers ...string) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.address+"/mcp", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; {
		case value == "":
			req.Header.Del(name)
		case name == "Host":
			req.Host = value
		case name == "token":
			req.Header.Set("Authorization", "Bearer "+value)
		default:
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	a := &answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	last := text
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		for line := range strings.Lines(string(text)) {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				a.events = append(a.events, json.RawMessage(data))
			}
		}
		if len(a.events) > 0 {
			last = a.events[len(a.events)-1]
			a.events = a.events[:len(a.events)-1]
		}
	}
	_ = json.Unmarshal(last, a)
	return a, nil
}

// listed returns the names of a tools/list.
func (a *answer) listed() (names []string) {
	var list struct{ Tools []struct{ Name string } }
	_ = json.Unmarshal(a.Result, &list)
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

func TestOnlyPOSTReachesTheServer(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	for _, c := range []struct {
		method, path string
		status       int
		want         string
	}{
		{http.MethodGet, "/mcp", 405, ""},
		{http.MethodDelete, "/mcp", 405, ""},
		{http.MethodPut, "/mcp", 405, ""},
		{http.MethodGet, "/", 404, ""},
		{http.MethodPost, "/", 404, ""},
		{http.MethodGet, "/healthz", 200, "ok"},
		{http.MethodGet, wellKnown, 200, `"resource":"http://` + h.address + `/mcp"`},
		{http.MethodGet, wellKnown + "/mcp", 200, `"resource":"http://` + h.address + `/mcp"`},
		{http.MethodGet, wellKnown + "/other", 404, ""},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), c.method, "http://"+h.address+c.path, nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(text), c.want) {
			t.Errorf("%s %s: %s %s", c.method, c.path, resp.Status, text)
		}
	}
}

func TestBothErasListTheSameTools(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	now, before := h.rpc(t, modern, "tools/list", ""), h.rpc(t, legacy, "tools/list", "")
	if len(now.listed()) < 5 || fmt.Sprint(now.listed()) != fmt.Sprint(before.listed()) {
		t.Errorf("modern: %d %s\nlegacy: %d %s", now.status, now.text, before.status, before.text)
	}
	for _, a := range []*answer{now, before} {
		if kind := a.header.Get("Content-Type"); kind != "application/json" {
			t.Errorf("an answer is of type %s", kind)
		}
	}
	first := h.rpc(t, legacy, "initialize",
		`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	if first.status != 200 || first.header.Get("Mcp-Session-Id") != "" ||
		!strings.Contains(first.text, `"protocolVersion":"2025-06-18"`) {
		t.Errorf("initialize: %d %v %s", first.status, first.header, first.text)
	}
	if a := h.rpc(t, modern, "server/discover", ""); a.status != 200 || !strings.Contains(a.text, modern) {
		t.Errorf("server/discover: %d %s", a.status, a.text)
	}
	if a := h.post(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Protocol-Version",
		legacy); a.status != 202 {
		t.Errorf("a notification: %d %s", a.status, a.text)
	}
}

func TestHeadersMustSayWhatTheMessageSays(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	for name, a := range map[string]*answer{
		"another method":  h.rpc(t, modern, "tools/list", "", "Mcp-Method", "ping"),
		"no method":       h.rpc(t, modern, "tools/list", "", "Mcp-Method", ""),
		"another tool":    h.rpc(t, modern, "tools/call", `{"name":"os_health_check"}`, "Mcp-Name", "os_list_tasks"),
		"another version": h.rpc(t, modern, "tools/list", `{"_meta":{}}`, "Mcp-Protocol-Version", legacy),
		"no version":      h.rpc(t, modern, "tools/list", "", "Mcp-Protocol-Version", ""),
		"another task": h.rpc(t, modern, "tasks/get", `{"taskId":"0197f6a2-0000-7000-8000-000000000000"}`, "Mcp-Name",
			"0197f6a2-0000-7000-8000-000000000001"),
		"no task": h.rpc(t, modern, "tasks/cancel", `{"taskId":"0197f6a2-0000-7000-8000-000000000000"}`,
			"Mcp-Name", ""),
		"a task that is none": h.rpc(t, modern, "tasks/update", `{"taskId":5}`, "Mcp-Name", "5"),
	} {
		if a.status != 400 || a.Error == nil || a.Error.Code != -32020 {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
}

func TestOtherOriginsAndHostsAreRefused(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{Resource: testResource})
	_, port, _ := net.SplitHostPort(h.address)
	for _, c := range []struct {
		headers []string
		status  int
	}{
		{nil, 200},
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "http://" + h.address}, 200},
		{[]string{"Origin", "http://localhost:9999"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403},
		{[]string{"Host", "evil.example"}, 403},
		{[]string{"Host", "evil.example:" + port, "Origin", "http://evil.example:" + port}, 403},
		{[]string{"Host", "127.0.0.1.evil.example"}, 403},
		{[]string{"Host", "localhost:" + port}, 200},
		{[]string{"Host", "[::1]:" + port}, 200},
		{[]string{"Host", "tools.example.com"}, 200}, // a proxy on this machine
		{[]string{"Host", "tools.example.com", "Origin", "https://tools.example.com"}, 200},
	} {
		if a := h.rpc(t, modern, "tools/list", "", c.headers...); a.status != c.status {
			t.Errorf("%q: %d %s", c.headers, a.status, a.text)
		}
	}
}

func TestWithoutATokenTheServerSaysWhereToGetOne(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada")
	h := serveHTTP(t, Options{}, HTTPConfig{Auth: "token", Tokens: path, Resource: "https://tools.example.com/gem/mcp"})
	where := `resource_metadata="https://tools.example.com/.well-known/oauth-protected-resource/gem/mcp"`
	for name, c := range map[string]struct {
		headers []string
		want    string
	}{
		"no token":       {nil, ""},
		"a wrong token":  {[]string{"token", "gem_wrong"}, `error="invalid_token"`},
		"another scheme": {[]string{"Authorization", "Basic " + tokens[0]}, ""},
		"two tokens":     {[]string{"Authorization", "Bearer " + tokens[0] + ", Bearer gem_wrong"}, ""},
	} {
		a := h.rpc(t, legacy, "tools/list", "", c.headers...)
		if got := a.header.Get("WWW-Authenticate"); a.status != 401 || !strings.Contains(got, where) ||
			!strings.Contains(got, c.want) || strings.Contains(a.text+got, "gem_wrong") {
			t.Errorf("%s: %d %q %s", name, a.status, got, a.text)
		}
	}
	if a := h.rpc(t, legacy, "tools/list", "", "token", tokens[0]); a.status != 200 {
		t.Errorf("with a token: %d %s", a.status, a.text)
	}
	for _, path := range []string{wellKnown, wellKnown + "/mcp", wellKnown + "/gem/mcp"} {
		resp, err := http.Get("http://" + h.address + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(text),
			`"resource":"https://tools.example.com/gem/mcp"`) {
			t.Errorf("%s: %s %s", path, resp.Status, text)
		}
	}
}

func TestTokensOfAnIssuerComeIn(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	h := serveHTTP(t, Options{}, HTTPConfig{Auth: "jwt", Issuer: i.URL, JWKS: i.URL, Resource: testResource, Scopes: "on"})
	ours := map[string]any{"iss": i.URL, "scope": "read:db"}
	for name, c := range map[string]struct {
		token  string
		status int
	}{
		"ours":           {sign(t, jwt.SigningMethodES256, i.EC, "ec", ours), 200},
		"another issuer": {sign(t, jwt.SigningMethodES256, i.EC, "ec", nil), 401},
		"another audience": {sign(t, jwt.SigningMethodES256, i.EC, "ec",
			map[string]any{"iss": i.URL, "aud": "https://other.example/mcp"}), 401},
		"alg none": {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "ec", ours), 401},
		"expired":  {sign(t, jwt.SigningMethodES256, i.EC, "ec", map[string]any{"iss": i.URL, "exp": 1}), 401},
	} {
		if a := h.rpc(t, modern, "tools/list", "", "token", c.token); a.status != c.status {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	resp, err := http.Get("http://" + h.address + wellKnown)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var m metadata
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || fmt.Sprint(m.AuthorizationServers) != "["+i.URL+"]" ||
		len(m.ScopesSupported) == 0 {
		t.Errorf("metadata %+v, error %v", m, err)
	}
	i.Answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) })
	fresh := serveHTTP(t, Options{}, HTTPConfig{Auth: "jwt", Issuer: i.URL, JWKS: i.URL, Resource: testResource})
	if a := fresh.rpc(t, modern, "tools/list", "", "token",
		sign(t, jwt.SigningMethodES256, i.EC, "ec", ours)); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("while the issuer is away: %d %s", a.status, a.text)
	}
}

func TestScopesArePermissions(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada read:db", "ada read:db write:db", "ada")
	h := serveHTTP(t, Options{}, HTTPConfig{Auth: "token", Tokens: path, Scopes: "on"})
	reads, writes, none := tokens[0], tokens[1], tokens[2]
	all := h.rpc(t, modern, "tools/list", "", "token", writes).listed()
	some := h.rpc(t, modern, "tools/list", "", "token", reads).listed()
	few := h.rpc(t, modern, "tools/list", "", "token", none).listed()
	if len(some) >= len(all) || len(few) >= len(some) || strings.Contains(strings.Join(some, " "), "leads_create") ||
		!strings.Contains(strings.Join(all, " "), "leads_create") {
		t.Errorf("all: %s\nsome: %s\nfew: %s", all, some, few)
	}
	for _, name := range []string{"leads_create", "leads.create"} {
		for _, version := range []string{modern, legacy} {
			a := h.rpc(t, version, "tools/call", `{"name":"`+name+`","arguments":{}}`, "token", reads)
			got := a.header.Get("WWW-Authenticate")
			if a.status != 403 || !strings.Contains(got, `error="insufficient_scope"`) ||
				!strings.Contains(got, `scope="write:db"`) || !strings.Contains(got, "resource_metadata=") {
				t.Errorf("%s: %d %q %s", name, a.status, got, a.text)
			}
		}
	}
	// Some JSON readers ignore the case of keys. The SDK does not, so the check must not either.
	for _, params := range []string{
		`{"name":"leads_create","NAME":"leads_list","arguments":{}}`,
		`{"NAME":"leads_list","name":"leads_create","arguments":{}}`,
		`{"name":"leads_list","name":"leads_create","arguments":{}}`,
	} {
		a := h.post(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`, "Mcp-Protocol-Version", legacy,
			"token", reads)
		if a.status != 403 {
			t.Errorf("%s: %d %s", params, a.status, a.text)
		}
	}
	batch := `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"leads_create","arguments":{}}}]`
	if a := h.post(t, batch, "Mcp-Protocol-Version", "2025-03-26", "token", reads); a.status != 403 {
		t.Errorf("a batch: %d %s", a.status, a.text)
	}
}

func TestMessagesThatAreTooMuchAreRefused(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	call := func(arguments string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"os_health_check","arguments":` + arguments +
			`}}`
	}
	for name, c := range map[string]struct {
		body   string
		header []string
		status int
	}{
		"2 MiB and more": {call(`{"a":"` + strings.Repeat("a", maxBody) + `"}`), nil, 413},
		"of unknown length": {call(`{"a":"` + strings.Repeat("a", maxBody) + `"}`),
			[]string{"Transfer-Encoding", "chunked"}, 413},
		"2 million arrays":  {call(strings.Repeat("[", 2_000_000)), nil, 200},
		"2 million, closed": {call(strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000)), nil, 200},
		"objects in depth":  {call(strings.Repeat(`{"a":`, 200_000) + "1" + strings.Repeat("}", 200_000)), nil, 200},
		"brackets in a text": {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"a":"` +
			strings.Repeat(`[\"`, 20_000) + `"}}}`, nil, 200},
		"headers of 64 KB and more":  {call("{}"), []string{"X-Long", strings.Repeat("a", maxHeader+10_000)}, 431},
		"not JSON":                   {"{", nil, 400},
		"nothing":                    {"", nil, 400},
		"another type":               {call("{}"), []string{"Content-Type", "text/plain"}, 415},
		"a type that pages can send": {call("{}"), []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
	} {
		a := h.post(t, c.body, append([]string{"Mcp-Protocol-Version", legacy}, c.header...)...)
		if a.status != c.status {
			t.Errorf("%s: %d %.200s", name, a.status, a.text)
		}
	}
	if n := h.rpc(t, modern, "ping", ""); n.status == 0 {
		t.Error("the process is gone")
	}
}

// held is a POST whose body never ends.
func (h *httpEndpoint) held(t *testing.T, headers string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", h.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
		"application/json\r\nContent-Length: 100\r\n%s\r\n{", headers)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Subjects must not fill the process with requests whose bodies do not arrive.
func TestTwentySubjectsLeaveRequestsForOthers(t *testing.T) {
	t.Parallel()
	requests := room{most: maxRequests, each: maxEach}
	for n := range 20 {
		subject, taken := fmt.Sprint("s", n), 0
		for requests.take(subject, 1) {
			taken++
		}
		if taken == 0 || taken > maxEach {
			t.Errorf("subject %d got %d", n, taken)
		}
		for range taken / 2 {
			requests.giveBack(subject, 1)
		}
		for range taken / 2 {
			if !requests.take(subject, 1) {
				t.Fatal("requests that ended still count")
			}
		}
	}
	if !requests.take("another", 1) {
		t.Error("nothing is left")
	}
	if !requests.take("s0", 0) {
		t.Error("a request that needs nothing more is refused")
	}
	unnamed := room{most: 2, each: 1}
	if !unnamed.take("", 2) || unnamed.take("", 1) {
		t.Error("without tokens, only the limit of the process counts")
	}
}

// unserved returns a server without tokens that has no listener.
func unserved(t *testing.T) *httpServer {
	t.Helper()
	d, err := New(Options{Registry: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.newHTTPServer(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, HTTPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestARequestTooManyIsAskedToComeAgain(t *testing.T) {
	t.Parallel()
	s := unserved(t)
	s.requests.most = 2
	handler := s.routes()
	body, end := io.Pipe() // which does not come
	var all sync.WaitGroup
	for n := range s.requests.most {
		all.Go(func() {
			r := newRequest(t)
			r.Host, r.Body = "localhost", body
			handler.ServeHTTP(discard{}, r)
		})
		for counted := 0; counted <= n; {
			s.requests.mu.Lock()
			counted = s.requests.all
			s.requests.mu.Unlock()
		}
	}
	w := &recorder{header: http.Header{}}
	r := newRequest(t)
	r.Host = "localhost"
	handler.ServeHTTP(w, r)
	if w.status != 429 || w.header.Get("Retry-After") == "" {
		t.Errorf("the third request: %d %v", w.status, w.header)
	}
	_ = end.Close()
	all.Wait()
	if !s.requests.take("", 2) || s.requests.take("", 1) {
		t.Error("requests that ended still count")
	}
}

// A token that cannot be checked yet takes none of the room for requests.
func TestTokensThatWaitForTheIssuerLeaveRoom(t *testing.T) {
	t.Parallel()
	s := unserved(t)
	s.verifier = away{}
	if !s.requests.take("", maxRequests) {
		t.Fatal("the server is not idle")
	}
	w := &recorder{header: http.Header{}}
	r := newRequest(t)
	r.Host = "localhost"
	r.Header.Set("Authorization", "Bearer a")
	s.routes().ServeHTTP(w, r)
	if w.status != 503 || w.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", w.status, w.header)
	}
}

// away is an issuer whose keys are unavailable.
type away struct{}

func (away) verify(context.Context, string) (caller, error) { return caller{}, issuer.ErrKeysAway }

func TestABatchCountsAsTheRequestsInIt(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada")
	h := serveHTTP(t, Options{}, HTTPConfig{Auth: "token", Tokens: path})
	batch := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, n), ",") + "]"
	}
	if a := h.post(t, batch(maxBatch+1), "Mcp-Protocol-Version", "2025-03-26", "token", tokens[0]); a.status != 413 {
		t.Errorf("65 at once: %d %s", a.status, a.text)
	}
	if a := h.post(t, "["+strings.Repeat("{},", 600_000)+"{}]", "Mcp-Protocol-Version", "2025-03-26", "token",
		tokens[0]); a.status != 413 {
		t.Errorf("2 MiB of messages: %d %.200s", a.status, a.text)
	}
	if a := h.post(t, batch(2), "Mcp-Protocol-Version", "2025-03-26", "token", tokens[0]); a.status != 200 {
		t.Errorf("two: %d %s", a.status, a.text)
	}
}

func TestAListThatDependsOnTheTokenIsNoOthers(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada read:db")
	for scopes, want := range map[string]string{"on": "private", "off": "public"} {
		h := serveHTTP(t, Options{}, HTTPConfig{Auth: "token", Tokens: path, Scopes: scopes})
		var list struct{ CacheScope string }
		if err := json.Unmarshal(h.rpc(t, modern, "tools/list", "", "token", tokens[0]).Result, &list); err != nil ||
			list.CacheScope != want {
			t.Errorf("with scopes %s it may be kept as %q, %v", scopes, list.CacheScope, err)
		}
	}
}

func TestASlowClientHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	for range 20 {
		h.held(t, "")
	}
	if a := h.rpc(t, modern, "tools/list", ""); a.status != 200 {
		t.Errorf("beside slow ones: %d %s", a.status, a.text)
	}
	h.grace = time.Millisecond
	h.stop()
	if err := <-h.ended; err != nil { // sooner than a body may take
		t.Error(err)
	}
}

func TestASlowBodyIsGivenUp(t *testing.T) {
	t.Parallel()
	d, err := New(Options{Registry: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	s, err := d.newHTTPServer(server.Listener.Addr(), HTTPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s.bodyTimeout = 50 * time.Millisecond
	server.Config.Handler = s.routes()
	server.Start()
	defer server.Close()
	conn := (&httpEndpoint{address: server.Listener.Addr().String()}).held(t, "")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("the answer is %s", resp.Status)
	}
}

func TestAServerThatOthersReachNeedsTokens(t *testing.T) {
	t.Parallel()
	d, err := New(Options{Registry: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	everyone, loopback := &net.TCPAddr{IP: net.IPv4zero, Port: 8848}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8848}
	for _, c := range []struct {
		at     net.Addr
		config HTTPConfig
		want   string
	}{
		{everyone, HTTPConfig{}, "--auth"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 8848}, HTTPConfig{}, "--auth"},
		{&net.TCPAddr{IP: net.IPv4(192, 168, 0, 7), Port: 8848}, HTTPConfig{}, "--auth"},
		{loopback, HTTPConfig{}, ""},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 8848}, HTTPConfig{}, ""},
		{loopback, HTTPConfig{Scopes: "on"}, "GEM_MCP_SCOPES"},
		{everyone, HTTPConfig{Auth: "token"}, "GEM_MCP_TOKENS is not set"},
		{everyone, HTTPConfig{Auth: "token", Tokens: "/nowhere"}, "GEM_MCP_TOKENS cannot be read"},
		{everyone, HTTPConfig{Auth: "jwt"}, "GEM_MCP_ISSUER"},
		{everyone, HTTPConfig{Auth: "jwt", Issuer: testIssuer}, "GEM_MCP_RESOURCE"},
		{everyone, HTTPConfig{Auth: "jwt", Issuer: testIssuer, Resource: testResource}, ""},
		{everyone, HTTPConfig{Auth: "jwt", Issuer: testIssuer, Resource: testResource, Secret: testSecret}, ""},
		{everyone, HTTPConfig{Auth: "jwt", Issuer: testIssuer, Resource: testResource, Secret: testSecret, JWKS: testIssuer},
			"unset one"},
	} {
		_, err := d.newHTTPServer(c.at, c.config)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %+v: error %v", c.at, c.config, err)
		}
	}
	for value, want := range map[*HTTPConfig]string{
		{Auth: "none"}:                        "GEM_MCP_AUTH",
		{Secret: "short"}:                     "GEM_MCP_JWT_SECRET",
		{JWKS: "http://issuer.example"}:       "GEM_MCP_JWKS",
		{JWKS: "http://127.0.0.1:9999/keys"}:  "",
		{Issuer: "issuer.example"}:            "GEM_MCP_ISSUER",
		{Resource: "https://u:p@example/mcp"}: "GEM_MCP_RESOURCE",
		{Resource: "https://example/mcp#a"}:   "GEM_MCP_RESOURCE",
		{Scopes: "yes"}:                       "GEM_MCP_SCOPES",
		{Connections: 101}:                    "GEM_MCP_CONNECTIONS",
	} {
		wrong := value.Wrong()
		if _, ok := wrong[want]; len(wrong) > 1 || ok != (want != "") {
			t.Errorf("%+v: wrong are %v", value, wrong)
		}
	}
}

func parsed(t *testing.T) *registry.Registry {
	t.Helper()
	r, err := registry.ReadFile("../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newRequest(t *testing.T) *http.Request {
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
	return r
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

type recorder struct {
	discard
	header http.Header
	status int
}

func (r *recorder) Header() http.Header    { return r.header }
func (r *recorder) WriteHeader(status int) { r.status = status }

// A request about a call is rejected while the server cannot check whether its token covers the call, for example
// when its client disconnects just then.
func TestAScopeThatCannotBeCheckedIsNotThere(t *testing.T) {
	t.Parallel()
	h := serveHTTP(t, Options{}, HTTPConfig{})
	passed := false
	ask := h.hideUncovered(func(context.Context, string, sdk.Request) (sdk.Result, error) {
		passed = true
		return nil, nil
	})
	_, err := ask(withCaller(t.Context(), caller{subject: "ada", limited: true}), "tasks/cancel",
		&sdk.ServerRequest[*taskParams]{Params: &taskParams{TaskID: "0197f6a2-0000-7000-8000-000000000000"}})
	if passed || err == nil || !strings.Contains(err.Error(), "Postgres is away") {
		t.Errorf("passed: %v, error %v", passed, err)
	}
}

func TestARequestThatIsRefusedUnreadIsGivenUp(t *testing.T) {
	t.Parallel()
	path, _ := tokensFor(t, "ada")
	d, err := New(Options{Registry: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	s, err := d.newHTTPServer(server.Listener.Addr(), HTTPConfig{Auth: "token", Tokens: path})
	if err != nil {
		t.Fatal(err)
	}
	s.bodyTimeout = 50 * time.Millisecond
	server.Config.Handler = s.routes()
	server.Start()
	defer server.Close()
	conn := (&httpEndpoint{address: server.Listener.Addr().String()}).held(t, "")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	text, err := io.ReadAll(conn) // to the end, which the server makes
	if err != nil || !strings.Contains(string(text), "401 Unauthorized") {
		t.Errorf("%v: %s", err, text)
	}
}

func TestASubjectLeavesRoomForTheBodiesOfOthers(t *testing.T) {
	t.Parallel()
	bodies := room{most: maxBodies}
	for _, subject := range []string{"ada", "bob", "cid", "dan", "eve"} {
		n := 0
		for bodies.take(subject, firstRoom) {
			n++
		}
		if n < 100 {
			t.Errorf("%s got room for %d small requests", subject, n)
		}
	}
	for bodies.all > 0 {
		for subject := range bodies.of {
			bodies.giveBack(subject, firstRoom)
		}
	}
	if !bodies.take("ada", maxBody) || !bodies.take("", maxBodies-maxBody) || bodies.take("", 1) {
		t.Error("what was released still counts, or too much is reserved")
	}
}

// Bytes that a client only announces take no room from others.
func TestABodyTakesRoomAsItArrives(t *testing.T) {
	t.Parallel()
	s := &httpServer{bodies: room{most: maxBodies}, bodyTimeout: time.Minute}
	read := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		text, done := s.body(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), "ada")
		if done == nil {
			return w
		}
		if string(text) != body {
			t.Errorf("%d bytes of %d arrived", len(text), len(body))
		}
		if n := s.bodies.all; n < len(body) || n > 2*max(len(body), firstRoom) {
			t.Errorf("%d bytes take the room of %d", len(body), n)
		}
		done()
		if s.bodies.all != 0 {
			t.Errorf("%d bytes are still reserved", s.bodies.all)
		}
		return w
	}
	for _, n := range []int{0, 1, firstRoom, firstRoom + 1, maxBody - 1, maxBody} {
		read(strings.Repeat("x", n))
	}
	if w := read(strings.Repeat("x", maxBody+1)); w.Code != http.StatusRequestEntityTooLarge || s.bodies.all != 0 {
		t.Errorf("too large: %d, and %d bytes are reserved", w.Code, s.bodies.all)
	}
	s.bodies.take("", maxBodies-s.bodies.all-firstRoom)
	if w := read(strings.Repeat("x", maxBody)); w.Code != http.StatusTooManyRequests {
		t.Errorf("without room: %d", w.Code)
	}
}
