package cli

import (
	"encoding/json"
	"io"
	"mime/quotedprintable"
	netmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// These tests check notices with third-party software that receives them. Some of it is in this folder.
const recipients = "internal/testing/recipients"

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

func TestAMailServerTakesANotice(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "TestTheGuideToNoticesIsFollowed")
	const password, refused = "p4ssw0rd-of-the-mail-server", "nobody@example.com"
	node, folder := npmrig.Node(t, recipients, "smtp-server", "npm ci --prefix "+recipients)
	in, out := npmrig.Start(t, node, folder, os.Stderr, "smtp.mjs")
	if err := json.NewEncoder(in).Encode(map[string]string{"username": "gem", "password": password,
		"refused": refused}); err != nil {
		t.Fatal(err)
	}
	line := func() string {
		t.Helper()
		text, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	port := line()
	channel := func(to string) string {
		return `{"tool": "comms.send_email", "input": {"to": "` + to + `", "subject": "GEM: {title}",
			"body": "{text}\n{link}", "context_ref": {"type": "notice"}}}`
	}
	database := newDatabase(t)
	env := []string{"DATABASE_URL=" + database, "GEM_DASHBOARD_URL=https://ops.example.com/gem",
		"SMTP_HOST=127.0.0.1", "SMTP_PORT=" + port, "SMTP_TLS=none", "SMTP_FROM=GEM <gem@example.com>",
		"SMTP_USERNAME=gem", "SMTP_PASSWORD=" + password,
		`GEM_NOTIFY={"version": "1", "rules": [{"when": "failed", "to": ["ops"]}],
			"channels": {"ops": ` + channel("ops@example.com") + `, "gone": ` + channel(refused) + `}}`}
	startWorker(t, database, env...)
	call := strings.TrimSpace(gemWith(t, env, "call", "no.such", "{}").stdout)
	var mail struct {
		To   []string
		Data string
	}
	if err := json.Unmarshal([]byte(line()), &mail); err != nil {
		t.Fatal(err)
	}
	message, err := netmail.ReadMessage(strings.NewReader(mail.Data))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(message.Body))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{strings.Join(mail.To, ", "), message.Header.Get("To"), message.Header.Get("Subject"),
		strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))}
	want := []string{"ops@example.com", "<ops@example.com>", "GEM: A call named an unknown tool",
		"The first call is " + call + ".\nhttps://ops.example.com/gem/calls/" + call}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	receipt := gemWith(t, env, "notify", "test", "gone")
	receipt.wantCode(t, exitFailed)
	wants(t, receipt.stdout, `"failed"`, `"smtp_refused"`, `"smtp_code": 550`, "No mailbox nobody@example.com for")
	if strings.Contains(receipt.stdout+receipt.stderr, password) {
		t.Error("the receipt shows the password")
	}
}

// Of Slack's packages, @slack/webhook has the type of the arguments, and @slack/types those of the blocks.
func TestSlacksTypesFitANotice(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "TestTheGuideToNoticesIsFollowed")
	_, rig := npmrig.Node(t, recipients, "@slack/webhook", "npm ci --prefix "+recipients)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(rig, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	compile := func(body string) mcpclients.ProgramResult {
		file := filepath.Join(dir, "body.ts")
		if err := os.WriteFile(file, []byte(`import type { KnownBlock } from '@slack/types'
import type { IncomingWebhookSendArguments } from '@slack/webhook'
type Arguments = Omit<IncomingWebhookSendArguments, 'blocks'> & { blocks?: KnownBlock[] }
export const body: Arguments = `+body), 0o600); err != nil {
			t.Fatal(err)
		}
		return mcpclients.Run(t, nil, "tsc", "--noEmit", "--strict", "--skipLibCheck", file)
	}

	env, slack := theGuideToNotices(t)
	const blocks = `"channels": { "blocks": { "tool": "slack.post", "escape": "slack", "input": { "text": "{title}",
		"blocks": [{ "type": "section", "text": { "type": "mrkdwn", "text": "*{title}*\n{text}" } }] } },`
	for i, v := range env {
		env[i] = strings.Replace(v, `"channels": {`, blocks, 1)
	}
	startGem(t, env, "worker")
	for channel, want := range map[string]string{"ops": "*Test*", "blocks": `"mrkdwn"`} {
		gemWith(t, env, "notify", "test", channel).wantCode(t, 0)
		body := slack().body
		wants(t, body, want)
		if got := compile(body); got.Code != 0 {
			t.Errorf("%s: %s%s", body, got.Stdout, got.Stderr)
		}
	}
	for body, want := range map[string]string{
		`{"text": 1}`:                                         "'number' is not assignable to type 'string'",
		`{"content": "the field of Discord"}`:                 "'\"content\"' does not exist in type",
		`{"blocks": [{"type": "section", "text": "a text"}]}`: "'string' is not assignable to type",
	} {
		if got := compile(body); got.Code == 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("%s: exit code %d, %s", body, got.Code, got.Stdout)
		}
	}
}
