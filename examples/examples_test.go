// Package examples_test runs the example frontends against a real PostgREST and a real worker.
package examples_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const (
	note = `{"domain": "business", "title": "Roof", "content": "Two tiles"}`
	sms  = `{"to": "+61400000001", "message": "On our way", "context_ref": {"type": "personal", "id": "me"}}`
)

// start creates a project with a worker that has the built-in tools and no configuration.
func start(t *testing.T) *supabase.Project {
	t.Helper()
	p := supabase.Start(t, supabase.Options{})
	opened := strings.Replace(string(gem.BuiltInRegistry), `"name": "comms.send_sms",`,
		`"name": "comms.send_sms", "frontends": true,`, 1)
	handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Domains: builtin.Domains(),
		Registry: []byte(opened)})
	return p
}

// python runs a script, and returns its output and exit code.
func python(t *testing.T, env []string, script string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	program, err := exec.LookPath("python3")
	if err != nil {
		npmrig.Missing(t, "python3 is missing: install Python 3.9 or newer")
	}
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, append([]string{"-B", script}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "PYTHONUTF8=1"}, env...)
	cmd.Stdout, cmd.Stderr = &out, &log
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func TestAPhoneCallsATool(t *testing.T) {
	t.Parallel()
	p := start(t)
	bare := []string{"GEM_URL=" + p.PostgREST, "GEM_TOKEN=" + p.User("ada")}
	onSupabase := []string{"GEM_URL=" + p.URL + "/", "GEM_API_KEY=" + supabase.APIKey, "GEM_TOKEN=" + p.User("ada")}
	for _, c := range []struct {
		what string
		env  []string
		args []string
		code int
		says string // on stdout or stderr
	}{
		{"a note", bare, []string{"os.create_note", note}, 0, `"status": "succeeded"`},
		{"a note, on Supabase", onSupabase, []string{"os.create_note", note}, 0, `"status": "succeeded"`},
		{"no input", bare, []string{"os.health_check"}, 0, `"status": "succeeded"`},
		{"a wrong input", bare, []string{"os.create_note", "{}"}, 1, `"error_code": "validation_error"`},
		{"what is not set up", bare, []string{"comms.send_sms", sms}, 3, `"TWILIO_ACCOUNT_SID"`},
		{"a closed tool", bare, []string{"comms.send_email", "{}"}, 2, "comms.send_email is closed to signed-in users"},
		{"an input that is none", bare, []string{"os.create_note", "[]"}, 2, "it must be a JSON object"},
		{"a name that is none", bare, []string{""}, 2, "HTTP 400: tool_name must be the name of a tool"},
		{"a wrong token", []string{"GEM_URL=" + p.PostgREST, "GEM_TOKEN=x"}, []string{"os.health_check"}, 2, "HTTP 401: "},
		{"no API key", append([]string{"GEM_URL=" + p.URL + "/rest/v1"}, bare[1]), []string{"os.health_check"}, 2,
			"HTTP 401: No API key found in request."},
		{"no token", bare[:1], []string{"os.health_check"}, 2, "GEM_URL and GEM_TOKEN must be set"},
		{"no scheme", []string{"GEM_URL=example.com", bare[1]}, []string{"os.health_check"}, 2, "must begin with https://"},
		{"nobody there", []string{"GEM_URL=http://127.0.0.1:1", bare[1]}, []string{"os.health_check", "--timeout", "0"}, 4,
			"the same command with --id"},
	} {
		stdout, stderr, code := python(t, c.env, "phone/call.py", c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%s: exit code %d, want %d, and %s\n%s\n%s", c.what, code, c.code, c.says, stdout, stderr)
		}
		if code != 2 && code != 4 && !json.Valid([]byte(stdout)) {
			t.Errorf("%s: printed %s", c.what, stdout)
		}
	}
	if n := p.Value("select count(*) from notes"); n != "2" {
		t.Errorf("there are %s notes, want 2", n)
	}
}

func TestAPhoneWithABadConnectionCallsOnce(t *testing.T) {
	testdb.Long(t, "TestAPhoneCallsATool")
	t.Parallel()
	p := start(t)
	api, err := url.Parse(p.PostgREST)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(api)
	var requests atomic.Int32
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1: // the request is lost
			panic(http.ErrAbortHandler)
		case 2, 6: // it arrives, and its answer is lost
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case 3: // half an answer
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`"0000`))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 4: // something in between is out of order
			http.Error(w, "<h1>Bad gateway</h1>", http.StatusBadGateway)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(bad.Close)
	env := []string{"GEM_URL=" + bad.URL, "GEM_TOKEN=" + p.User("ada")}
	stdout, stderr, code := python(t, env, "phone/call.py", "os.create_note", note)
	if code != 0 || !strings.Contains(stderr, "trying again:") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	if n := p.Value("select count(*) from core_tool_calls") + p.Value("select count(*) from notes"); n != "11" {
		t.Errorf("there are %s calls and notes, want one of each", n)
	}
	// Wait again for the same call.
	var receipt struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal([]byte(stdout), &receipt); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	again, _, code := python(t, env, "phone/call.py", "os.create_note", note, "--id", receipt.CallID)
	if code != 0 || again != stdout {
		t.Errorf("exit code %d, and %s in place of %s", code, again, stdout)
	}
	if _, stderr, code := python(t, env, "phone/call.py", "os.create_task", note, "--id", receipt.CallID); code != 2 ||
		!strings.Contains(stderr, "A new call needs a new id") {
		t.Errorf("another call under that id: exit code %d, %s", code, stderr)
	}
}

func TestAMintedTokenIsAUsers(t *testing.T) {
	testdb.Long(t, "TestAPhoneCallsATool")
	t.Parallel()
	p := start(t)
	mint := func(args ...string) (string, int) {
		t.Helper()
		out, _, code := python(t, []string{"JWT_SECRET=" + p.Secret()}, "mint_token.py", args...)
		return strings.TrimSpace(out), code
	}
	ada, _ := mint("ada")
	expired, _ := mint("ada", "--hours", "-1")
	server, _ := mint("billing", "--role", "service_role")
	for _, c := range []struct{ what, token, body, want string }{
		{"a user", ada, `{"tool_name": "os.health_check"}`, "201"},
		{"a user as another", ada, `{"tool_name": "os.health_check", "created_by": "grace"}`, "403 42501"},
		{"a server for a user", server, `{"tool_name": "os.health_check", "created_by": "ada"}`, "201"},
		{"an expired token", expired, `{"tool_name": "os.health_check"}`, "401 PGRST301"},
	} {
		if a := p.Send(supabase.Request{Method: "POST", Path: "/core_tool_calls", Token: c.token,
			Body: c.body}); a.Outcome() != c.want {
			t.Errorf("%s: got %s (%s), want %s", c.what, a.Outcome(), a.Message, c.want)
		}
	}
	if got := p.Value("select string_agg(distinct created_by, ' ') from core_tool_calls"); got != "ada" {
		t.Errorf("the calls are of %s", got)
	}
	if _, code := mint("ada", "--role", "postgres"); code != 2 {
		t.Errorf("a role that is not the API's: exit code %d", code)
	}
	if out, _, code := python(t, nil, "mint_token.py", "ada"); code != 1 || out != "" {
		t.Errorf("without a secret: exit code %d, %s", code, out)
	}
}

// page fills in a form of the page like a person.
type page struct {
	t *testing.T
	*supabase.Client
}

func (p page) run(body string) string {
	p.t.Helper()
	return string(p.Run("", body))
}

func (p page) connect(url, key, token string) {
	p.t.Helper()
	text, err := json.Marshal(map[string]string{"url": url, "key": key, "token": token})
	if err != nil {
		p.t.Fatal(err)
	}
	p.run(`for (const [id, value] of Object.entries(` + string(text) + `)) document.getElementById(id).value = value`)
}

// send sends a call and waits until the first card on the page has that status. It returns the card's texts.
func (p page) send(tool, input, status string) (card string) {
	p.t.Helper()
	text, err := json.Marshal([]string{tool, input, status})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.run(`
		const [tool, input, status] = ` + string(text) + `
		document.getElementById('tool').value = tool
		document.getElementById('input').value = input
		document.querySelector('#call button').click()
		for (const until = Date.now() + 60_000; Date.now() < until; await new Promise(wake => setTimeout(wake, 10))) {
			const card = document.querySelector('article')
			if (card?.querySelector('.status').textContent === status) return card.textContent
		}
		throw 'the page shows: ' + document.body.querySelector('#calls').textContent + document.getElementById('said').textContent`)
}

func TestThePageCallsToolsAndShowsTheirReceipts(t *testing.T) {
	t.Parallel()
	p := start(t)
	for name, where := range map[string][2]string{"PostgREST": {p.PostgREST, ""}, "Supabase": {p.URL, supabase.APIKey}} {
		t.Run(name, func(t *testing.T) {
			b := page{t, supabase.Page(t, "browser/index.html")}
			b.connect(where[0], where[1], p.User("ada "+name))
			shows := func(card, want string) {
				t.Helper()
				if !strings.Contains(card, want) {
					t.Errorf("the page shows %s, without %s", card, want)
				}
			}
			// Content from elsewhere is shown as text.
			shows(b.send("os.create_note", `{"domain": "business", "title": "<img src=x onerror=alert(1)>", "content": ""}`,
				"succeeded"), `db_writes`)
			shows(b.send("<b>x</b>", `{}`, "failed"), `unknown_tool`)
			if n := b.run(`return document.querySelectorAll('article img, article b').length`); n != "0" {
				t.Errorf("%s elements came out of texts", n)
			}
			shows(b.send("comms.send_sms", sms, "not_configured"), `TWILIO_ACCOUNT_SID`)
			shows(b.send("", `{}`, "not sent"), `tool_name must be the name of a tool`)
			if said := b.run(`
				document.getElementById('input').value = '{'
				document.querySelector('#call button').click()
				return document.getElementById('said').textContent`); !strings.Contains(said, "The input is no JSON") {
				t.Errorf("the page says %s", said)
			}
			// Nothing is stored unless the user asks for it.
			if kept := b.run(`return window.localStorage.length + window.location.href`); kept != `"0http://localhost/"` {
				t.Errorf("stored without a request: %s", kept)
			}
			if kept := b.run(
				`document.getElementById('remember').click(); return JSON.parse(window.localStorage.getItem('gem-example')).url`); kept != `"`+where[0]+`"` {
				t.Errorf("remembered: %s", kept)
			}
			if kept := b.run(`document.getElementById('remember').click(); return window.localStorage.length`); kept != "0" {
				t.Errorf("kept after it was to be forgotten: %s", kept)
			}
			b.connect(where[0], where[1], "x")
			shows(b.send("os.health_check", `{}`, "not sent"), `HTTP 401`)
		})
	}
	if n := p.Value("select count(*) from notes where title like '<img%'"); n != "2" {
		t.Errorf("there are %s notes, want 2", n)
	}
}

func TestThePageEndsACallAndShowsTheLastOnes(t *testing.T) {
	testdb.Long(t, "TestThePageCallsToolsAndShowsTheirReceipts")
	t.Parallel()
	p := supabase.Start(t, supabase.Options{}) // without a worker
	b := page{t, supabase.Page(t, "browser/index.html")}
	b.connect(p.PostgREST, "", p.User("ada"))
	b.send("os.health_check", `{}`, "queued")
	shown := b.run(`
		document.querySelector('article button').click()
		for (const until = Date.now() + 60_000; Date.now() < until; await new Promise(wake => setTimeout(wake, 10))) {
			const card = document.querySelector('article')
			if (card.querySelector('.status').textContent === 'failed')
				return card.textContent + card.querySelector('button').hidden
		}`)
	if !strings.Contains(shown, "The call was cancelled before it ran.") || !strings.Contains(shown, "true") {
		t.Errorf("the page shows %s", shown)
	}
	again := page{t, supabase.Page(t, "browser/index.html")}
	again.connect(p.PostgREST, "", p.User("ada"))
	shown = again.run(`
		document.getElementById('recent').click()
		for (const until = Date.now() + 60_000; Date.now() < until; await new Promise(wake => setTimeout(wake, 10))) {
			const card = document.querySelector('article')
			if (card?.querySelector('.status').textContent === 'failed') return card.textContent
		}`)
	if !strings.Contains(shown, "os.health_check") {
		t.Errorf("the page shows %s", shown)
	}
}

// A browser first asks whether a page from elsewhere may send this.
func TestAPageFromElsewhereMayAsk(t *testing.T) {
	testdb.Long(t, "TestThePageCallsToolsAndShowsTheirReceipts")
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	a := p.Send(supabase.Request{Method: "OPTIONS", Path: "/rpc/enqueue_tool_call", Header: map[string]string{
		"Origin": "null", "Access-Control-Request-Method": "POST",
		"Access-Control-Request-Headers": "authorization,content-type"}})
	allowed := strings.ToLower(a.Header.Get("Access-Control-Allow-Headers"))
	if a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "*" ||
		!strings.Contains(allowed, "authorization") || !strings.Contains(allowed, "content-type") {
		t.Errorf("got %d with %v", a.Status, a.Header)
	}
}

// docs/tools.md shows the program in own-tools: it has each line of its code, except lines for another domain.
func TestTheGuideToToolsShowsTheExample(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	shown := map[string]string{
		"json": read("own-tools/tools.registry.json"),
		"sql":  read("own-tools/00001_orders.sql"),
		"go":   read("own-tools/main.go") + read("own-tools/main_test.go"),
	}
	_, guide, _ := strings.Cut(read("../docs/tools.md"), "\n## A tool in Go\n")
	guide, _, _ = strings.Cut(guide, "\n## ")
	blocks := regexp.MustCompile("(?s)```(json|sql|go)\n(.*?)```").FindAllStringSubmatch(guide, -1)
	for _, block := range blocks {
		if strings.Contains(block[2], "Weather") {
			continue
		}
		for line := range strings.Lines(block[2]) {
			if line = strings.TrimSpace(line); line != "…" && !strings.Contains(shown[block[1]], line) {
				t.Errorf("the example has no line %s", line)
			}
		}
	}
	if len(blocks) < 5 {
		t.Errorf("%d blocks of code", len(blocks))
	}
}
