package mcp

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The official suite calls tools by names without a domain, and expects things that no tool of ours does: a text as
// an answer, and either a task or nothing. asSuite adds that around the unchanged server.
func asSuite(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		params, _ := req.GetParams().(*sdk.CallToolParamsRaw)
		if params != nil && params.Name == "failing_job" &&
			!abilitiesOf(req.GetSession().(*sdk.ServerSession), req.GetExtra(), params.Meta).tasks {
			return nil, needsTasks()
		}
		greet := params != nil && params.Name == "greet"
		if greet {
			params.Name = "lab_greet"
		}
		result, err := next(ctx, method, req)
		if err != nil {
			return result, err
		}
		switch r := result.(type) {
		case *sdk.ListToolsResult:
			for _, t := range r.Tools {
				if t.Name == "lab_greet" {
					copied := *t
					copied.Name = "greet"
					r.Tools[slices.Index(r.Tools, t)] = &copied
				}
			}
		case *sdk.CallToolResult:
			var out labOutput
			if content, ok := r.StructuredContent.(json.RawMessage); greet && ok && json.Unmarshal(content, &out) == nil {
				r.Content = []sdk.Content{&sdk.TextContent{Text: out.Text}}
			}
		}
		return result, nil
	}
}

// serve serves the lab over HTTP.
func (l *labEnv) serve() (url string) {
	l.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.server.ServeHTTP(ctx, listener, HTTPConfig{}) }()
	l.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	})
	return "http://" + listener.Addr().String() + "/mcp"
}

var (
	checksPassed = regexp.MustCompile(`Passed: (\d+)/(\d+)`)
	checkFailed  = regexp.MustCompile(`\[([a-z0-9-]+) *\] \S*FAILURE`)
)

// The scenarios of the official suite for servers with tools, and the number of checks in each.
// tasks-status-notifications tests nothing yet.
func TestTheOfficialSuitePasses(t *testing.T) {
	t.Parallel()
	mcpclients.Node(t) // or there is nothing to test
	l := newLab(t, Options{TaskAfter: time.Second, Subject: "suite"})
	l.server.sdk.AddReceivingMiddleware(asSuite)
	url := l.serve()
	for scenario, c := range map[string]struct {
		checks int
		always bool     // not in the long form alone
		fail   []string // they need tools, logs or prompts that GEM does not have
	}{
		"tasks-lifecycle": {checks: 9, always: true}, "tasks-capability-negotiation": {checks: 5},
		"tasks-wire-fields": {checks: 4}, "tasks-request-state-removal": {checks: 3},
		"tasks-mrtr-input": {checks: 4, always: true}, "tasks-request-headers": {checks: 5},
		"tasks-dispatch-and-envelope": {checks: 9},
		"tasks-required-task-error":   {checks: 3}, "tasks-mrtr-composition": {checks: 2},
		"server-initialize": {checks: 2}, "tools-list": {checks: 3}, "ping": {checks: 2}, "caching": {checks: 7},
		"http-header-validation": {checks: 14}, "dns-rebinding-protection": {checks: 2},
		"server-stateless": {checks: 28, fail: []string{"sep-2575-http-server-no-independent-requests-on-stream",
			"sep-2575-missing-capability-http-400",
			"sep-2575-server-declares-prompts-in-discover", "sep-2575-server-no-log-without-loglevel",
			"sep-2575-server-rejects-undeclared-capability"}},
	} {
		if !c.always && os.Getenv("GEM_TEST_LONG") == "" {
			continue
		}
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			out := mcpclients.Run(t, nil, "conformance", "server", "--url", url, "--scenario", scenario, "--timeout", "60000")
			var failed []string
			for _, match := range checkFailed.FindAllStringSubmatch(out.Stdout, -1) {
				failed = append(failed, match[1])
			}
			slices.Sort(failed)
			passed := checksPassed.FindStringSubmatch(out.Stdout)
			if !slices.Equal(failed, c.fail) || passed == nil || passed[1] != strconv.Itoa(c.checks-len(failed)) ||
				passed[2] != strconv.Itoa(c.checks) {
				t.Errorf("failed are %q, want %q; %q of %d checks\n%s%s", failed, c.fail, passed, c.checks, out.Stdout, out.Stderr)
			}
		})
	}
	t.Cleanup(func() { // after the scenarios
		var rows, tasks int
		err := l.DB.QueryRow(context.Background(), `select count(*),
			count(*) filter (where tool_name in ('failing.job', 'confirm.delete', 'slow.compute'))
			from core_tool_calls where created_by = 'suite' and parent_step is null`).Scan(&rows, &tasks)
		if err != nil || tasks == 0 {
			t.Errorf("%d rows, %d of them tasks, %v", rows, tasks, err)
		}
	})
}
