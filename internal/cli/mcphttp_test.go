package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMCPOverHTTPIsRefusedWhereAnybodyCouldComeIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"mcp", "--http", "0.0.0.0:0"}, "set --auth"},
		{[]string{"mcp", "--http", ":0", "--auth", "token"}, "GEM_MCP_TOKENS is not set"},
		{[]string{"mcp", "--http", "127.0.0.1:0", "--auth", "jwt"}, "GEM_MCP_ISSUER"},
		{[]string{"mcp", "--http", "127.0.0.1:0", "--auth", "none"}, `--auth is "none"`},
		{[]string{"mcp", "--http", "8848"}, `--http is "8848"`},
		{[]string{"mcp", "token"}, "a subject"},
		{[]string{"mcp", "token", "ada lovelace"}, "white space"},
	} {
		e := gemWith(t, nil, c.args...)
		e.wantCode(t, exitUsage)
		wants(t, e.stderr, c.want)
	}
}

// mcpOverHTTP starts a server for the tokens of a file, and returns it and the URL of its messages.
func mcpOverHTTP(t *testing.T, url, tokens string) (p *process, messages string) {
	t.Helper()
	p = startGem(t, []string{"DATABASE_URL=" + url, "LOG_FORMAT=json", "LOG_LEVEL=debug"}, "mcp", "--http", "127.0.0.1:0",
		"--auth", "token", "--tokens", tokens)
	log := p.stderr.waitFor(t, `/mcp"`)
	return p, regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`).FindString(log)
}

func TestACallOverHTTPSurvivesTheServer(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	made := gemWith(t, nil, "mcp", "token", "ada", "read:db", "write:db")
	made.wantCode(t, 0)
	_, token, _ := strings.Cut(strings.TrimSpace(made.stderr), "\n")
	if strings.Contains(made.stdout, token) || !regexp.MustCompile(`^[0-9a-f]{64} ada read:db write:db\n$`).
		MatchString(made.stdout) {
		t.Fatalf("the line is %q", made.stdout)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(made.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(messages string) (status int, callID, text string, err error) {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"os_create_note","arguments":{"domain":"business","title":"Roof","content":"x"},` +
			`"_meta":{"io.github.gemworker/key":"k"}}}`
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, messages, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", "", err
		}
		defer func() { _ = resp.Body.Close() }()
		all, err := io.ReadAll(resp.Body)
		var answer struct {
			Result struct {
				Meta map[string]any `json:"_meta"`
			}
		}
		_ = json.Unmarshal(all, &answer)
		callID, _ = answer.Result.Meta["io.github.gemworker/callId"].(string)
		return resp.StatusCode, callID, string(all), err
	}

	first, messages := mcpOverHTTP(t, url, tokens)
	lost := make(chan error, 1)
	go func() {
		_, _, text, err := ask(messages)
		if err == nil {
			t.Errorf("an answer without a worker: %s", text)
		}
		lost <- err
	}()
	// the insert is asked for until it is there
	for testdb.Value[int](t, db, "select count(c) from pg_sleep(0.01) left join core_tool_calls c on true") == 0 {
	}
	first.signal(t, syscall.SIGKILL)
	<-lost
	first.wait(t)

	startWorker(t, url)
	second, messages := mcpOverHTTP(t, url, tokens)
	status, id, text, err := ask(messages)
	if err != nil || status != http.StatusOK || id != testdb.Value[string](t, db, "select id::text from core_tool_calls") {
		t.Errorf("asked again: %d %s, %v", status, text, err)
	}
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_receipts where status = 'succeeded'"); n != 1 {
		t.Errorf("%d receipts", n)
	}
	second.stop(t)
	for _, p := range []*process{first, second} {
		if log := p.stderr.String(); strings.Contains(log, token) || p.stdout.String() != "" {
			t.Errorf("the token is in the log, or the log on stdout:\n%s", log)
		}
	}
}
