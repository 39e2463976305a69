package mcpclient_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// npm is a server of npm over stdin and stdout.
func npm(t *testing.T, pkg string, args ...string) backends.Server {
	t.Helper()
	node, dir := mcpclients.Node(t)
	return backends.Server{Command: node, Args: append(
		[]string{filepath.Join(dir, "node_modules", "@modelcontextprotocol", pkg, "dist", "index.js")}, args...)}
}

// The reference server of the protocol, over stdin and stdout and over HTTP.
func TestTheServerEverythingHasReceiptsAndKeys(t *testing.T) {
	testdb.Long(t, "TestTheServerFilesystemStandsUnderRules")
	t.Parallel()
	overHTTP := npm(t, "server-everything", "streamableHttp")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	cmd := exec.CommandContext(t.Context(), overHTTP.Command, overHTTP.Args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PORT=" + port}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testdb.Eventually(t, "the server", func() bool {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})

	gem := imported(t, map[string]backends.Server{"every": npm(t, "server-everything", "stdio"),
		"web": {URL: "http://127.0.0.1:" + port + "/mcp"}},
		func(text string) string { return text })
	for _, domain := range []string{"every", "web"} {
		for _, c := range []struct{ tool, input, want, says string }{
			{"get_sum", `{"a": 2, "b": 3}`, "succeeded", `{"text": "The sum of 2 and 3 is 5."}`},
			{"get_sum", `{"a": "2"}`, "validation_error", "/a"},
			{"get_structured_content", `{"location": "New York"}`, "succeeded", `"temperature": `},
			{"get_tiny_image", `{}`, "succeeded", `"mimeType": "image/png"`},
			{"get_annotated_message", `{"messageType": "error", "includeImage": false}`, "succeeded",
				`{"text": "Error: Operation failed"}`},
			{"trigger_long_running_operation", `{"duration": 0.1, "steps": 2}`, "succeeded", "completed"},
			{"gzip_file_as_resource", `{"name": "x", "data": "ftp://127.0.0.1/x"}`, "execution_error", ""},
		} {
			r := gem.Run(handlertest.Call{Tool: domain + "." + c.tool, Input: c.input})
			if got := ended(r); got != c.want || !strings.Contains(string(r.Result), c.says) {
				t.Errorf("%s.%s ended as %s: %s", domain, c.tool, got, r.Result)
			}
		}
		first := gem.Run(handlertest.Call{Tool: domain + ".echo", Input: `{"message": "hi"}`, Key: "k"})
		if again := gem.Run(handlertest.Call{Tool: domain + ".echo", Input: `{"message": "hi"}`,
			Key: "k"}); again.ReplayOf != first.ID {
			t.Errorf("%s: the same key ran again: %s", domain, again.Result)
		}
	}
}

func TestTheServerFilesystemStandsUnderRules(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	set, err := rules.Parse(
		[]byte(`{"version": "1.0.0", "rules": [{"name": "no_moves", "tools": ["files.move_file"], "action": "block"},
		{"name": "one_write", "permissions": ["write:files"], "action": "block", "limit": {"max": 1, "within": "1h"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	gem := imported(t, map[string]backends.Server{"files": npm(t, "server-filesystem", folder)},
		func(text string) string { return text },
		func(o *worker.Options) { o.Rules = set })
	file := filepath.Join(folder, "a.txt")
	for _, c := range []struct{ tool, input, want, says string }{
		{"move_file", `{"source": "` + file + `", "destination": "` + file + `2"}`, "rule_blocked", "no_moves"},
		{"write_file", `{"path": "` + file + `", "content": "hello"}`, "succeeded", "a.txt"},
		{"write_file", `{"path": "` + file + `", "content": "again"}`, "limit_reached", "one_write"},
		{"read_text_file", `{"path": "` + file + `"}`, "succeeded", "hello"},
		{"list_directory", `{"path": "` + folder + `"}`, "succeeded", "[FILE] a.txt"},
		{"read_text_file", `{"path": "/etc/hostname"}`, "execution_error", "outside allowed directories"},
	} {
		r := gem.Run(handlertest.Call{Tool: "files." + c.tool, Input: c.input})
		if got := ended(r); got != c.want || !strings.Contains(string(r.Result), c.says) {
			t.Errorf("%s ended as %s: %s", c.tool, got, r.Result)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "hello" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
