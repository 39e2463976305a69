package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// These tests check notices with third-party software that receives them.

func TestStandardWebhooksVerifiesASignedNotice(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "TestTheGuideToNoticesIsFollowed")
	const secret, other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	url, next := receiver(t)
	env := []string{
		`GEM_DOMAINS={"version": "1", "pager": {"http": {"url": "` + url + `", "secret_env": "PAGER_SECRET"}}}`,
		`TOOLS_REGISTRY={"version": "1", "tools": [{"name": "pager.page", "description": "Pages the team.",
			"input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "permissions": ["net:pager"],
			"idempotency": {"mode": "safe-retry"}, "timeout_ms": 10000}]}`,
		`GEM_NOTIFY={"version": "1", "channels": {"ops": {"tool": "pager.page"}},
			"rules": [{"when": "failed", "to": ["ops"]}]}`,
		"PAGER_SECRET=" + secret}
	database := newDatabase(t)
	startWorker(t, database, env...)
	gemWith(t, []string{"DATABASE_URL=" + database}, "call", "no.such", "{}", "--wait").wantCode(t, exitFailed)
	notice := next()
	wants(t, notice.body, `"title":"A call named an unknown tool"`)
	headers := map[string]string{}
	for name := range notice.header {
		headers[strings.ToLower(name)] = notice.header.Get(name)
	}
	verify := func(secret, body string) mcpclients.ProgramResult {
		request, err := json.Marshal(map[string]any{"secret": secret, "headers": headers, "body": body})
		if err != nil {
			t.Fatal(err)
		}
		return mcpclients.Run(t, []string{"VERIFY=" + string(request)}, "webhook.mjs")
	}
	if got := verify(secret, notice.body); got.Code != 0 || !strings.Contains(got.Stdout, "unknown_tool") {
		t.Errorf("the notice is refused: %s", got.Stderr)
	}
	for name, got := range map[string]mcpclients.ProgramResult{
		"another body":   verify(secret, strings.Replace(notice.body, "unknown_tool", "timeout", 1)),
		"another secret": verify(other, notice.body),
	} {
		if got.Code == 0 || !strings.Contains(got.Stderr, "No matching signature found") {
			t.Errorf("%s: exit code %d, %s", name, got.Code, got.Stderr)
		}
	}
}
