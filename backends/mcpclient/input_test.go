package mcpclient_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// busy is a program that reads nothing while its tool runs: until the file that the call names exists.
func busy() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m called
		if json.Unmarshal(in.Bytes(), &m) != nil {
			fmt.Fprintln(os.Stderr, "a broken line")
			os.Exit(1)
		}
		result := `{"content":[{"type":"text","text":"done"}]}`
		switch {
		case m.ID == nil:
			continue
		case m.Method == "initialize":
			result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"busy","version":"0"}}`
		case m.Method == "tools/list":
			result = `{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}`
		case filepath.IsAbs(m.Params.Arguments.Say):
			fmt.Fprintln(os.Stderr, "held")
			for _, err := os.Stat(m.Params.Arguments.Say); err != nil; _, err = os.Stat(m.Params.Arguments.Say) {
				time.Sleep(10 * time.Millisecond)
			}
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", m.ID, result)
	}
}

// The pipe to a program holds 64 KiB: a large input is cut in the middle while the program does not read.
func TestCallsWaitWhileTheirProgramDoesNotRead(t *testing.T) {
	t.Parallel()
	p := open(t, started("busy"), nil)
	release := filepath.Join(t.TempDir(), "release")
	run := func(ctx context.Context, text string) <-chan error { return p.start(ctx, "do", say(text)) }
	first := run(t.Context(), release)
	testdb.Eventually(t, "the tool to run", func() bool { return p.logs.FilterMessage("the MCP server says").Len() > 0 })
	large := strings.Repeat("x", 200_000)
	ends, end := context.WithCancelCause(t.Context())
	cut := run(ends, large)
	testdb.Eventually(t, "the large input to be on its way", func() bool { return mcpclient.Writes(p.Servers, "lab") })
	small := run(t.Context(), "small")
	end(errors.New("it is over")) // in the middle of its line
	if err := <-cut; err == nil {
		t.Error("a call that ended succeeded")
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, ended := range map[string]<-chan error{"the tool that ran": first, "the one that waited": small,
		"a later one": run(t.Context(), "later")} {
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := p.logs.FilterMessageSnippet("has ended").Len(); n > 0 {
		t.Errorf("the program ended: %v", p.logs.All())
	}
}

// Otherwise no call would ever reach it again.
func TestAProgramThatNeverReadsIsReplacedOnceNoCallWaitsForIt(t *testing.T) {
	t.Parallel()
	p := open(t, started("busy"), nil)
	run := func(ctx context.Context, text string) <-chan error { return p.start(ctx, "do", say(text)) }
	waits, stop := context.WithCancel(t.Context())
	first := run(waits, filepath.Join(t.TempDir(), "never"))
	testdb.Eventually(t, "the tool to run", func() bool { return p.logs.FilterMessage("the MCP server says").Len() > 0 })
	mcpclient.Hurry(p.Servers, "lab")
	ends, end := context.WithCancel(t.Context())
	cut := run(ends, strings.Repeat("x", 200_000))
	testdb.Eventually(t, "the large input to be on its way", func() bool { return mcpclient.Writes(p.Servers, "lab") })
	end()
	<-cut
	if n := p.logs.FilterMessageSnippet("the program of the MCP server has ended").Len(); n > 0 {
		t.Error("the program was ended while a call waited for it")
	}
	stop()
	<-first
	if err := <-run(t.Context(), "later"); err != nil {
		t.Errorf("a later call: %v", err)
	}
	testdb.Eventually(t, "the program to be ended", func() bool {
		return p.logs.FilterMessageSnippet("the program of the MCP server has ended").Len() > 0
	})
}
