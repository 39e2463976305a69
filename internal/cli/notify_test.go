package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

// received is a request to a service.
type received struct {
	path, body string
	header     http.Header
}

// receiver starts a service that accepts every request, and returns its URL. next waits for a request.
func receiver(t *testing.T) (url string, next func() received) {
	t.Helper()
	requests := make(chan received, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- received{r.URL.Path, string(body), r.Header}
		_, _ = io.WriteString(w, `{"result": {}}`)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() received {
		t.Helper()
		select {
		case got := <-requests:
			return got
		case <-time.After(patience):
			t.Fatal("no request came")
		}
		return received{}
	}
}

// theGuideToNotices returns the environment of a worker with the files of docs/notices.md, and a server in the place
// of Slack.
func theGuideToNotices(t *testing.T) (env []string, next func() received) {
	t.Helper()
	files := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(readPage(t, "docs/notices.md"), -1)
	if len(files) != 3 {
		t.Fatalf("the guide has %d files", len(files))
	}
	slack, next := receiver(t)
	return []string{"DATABASE_URL=" + newDatabase(t), "GEM_DOMAINS=" + files[0][1], "TOOLS_REGISTRY=" + files[1][1],
		"GEM_NOTIFY=" + files[2][1], "SLACK_WEBHOOK_URL=" + slack + "/services/T0/B0/secret",
		"GEM_DASHBOARD_URL=https://ops.example.com/gem"}, next
}

// A server in the place of Slack gets what the files of docs/notices.md send.
func TestTheGuideToNoticesIsFollowed(t *testing.T) {
	t.Parallel()
	env, slack := theGuideToNotices(t)
	next := func() string {
		post := slack()
		return post.path + " " + post.body
	}
	startGem(t, env, "worker")
	wants(t, gemWith(t, env, "version").stdout, "notices 1, 1 channel (the JSON of GEM_NOTIFY)")
	wants(t, gemWith(t, env, "notify", "check").stdout, "ok: 1 channel, 2 rules, version 1 (the JSON of GEM_NOTIFY)")
	test := gemWith(t, env, "notify", "test", "ops")
	test.wantCode(t, 0)
	wants(t, next(), `/services/T0/B0/secret {"text": "*Test*\nThis is a test of gem notify.\n"}`)
	if strings.Contains(test.stdout, "secret") {
		t.Errorf("the URL is shown: %s", test.stdout)
	}
	question := strings.TrimSpace(gemWith(t, env, "call", "wait.answer", `{"text": "Which?"}`).stdout)
	wants(t, next(), "*Answer needed*", "A user asks. Nobody has reviewed the request.",
		"https://ops.example.com/gem/questions/"+question)
	gemWith(t, env, "call", "no.such", "{}", "--wait").wantCode(t, exitFailed)
	wants(t, next(), "*A call named an unknown tool*", "https://ops.example.com/gem/calls/")
	off := gemWith(t, env, "notify", "off")
	wants(t, off.stdout, "notices are off; ")
	gemWith(t, env, "notify", "test", "opps").wantCode(t, exitUsage)
}

func TestANotifyFileThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	file := func(channels, rules string) string {
		return `{"version": "1", "channels": {` + channels + `}, "rules": [` + rules + `]}`
	}
	const failed = `{"when": "failed", "to": ["ops"]}`
	for name, c := range map[string]struct{ file, want string }{
		"an unknown tool":        {file(`"ops": {"tool": "os.create_notes"}`, failed), "channels.ops.tool: os.create_notes is not"},
		"an input that is wrong": {file(`"ops": {"tool": "comms.send_sms", "input": {"text": "{title}"}}`, failed), "does not fit comms.send_sms"},
		"a mode that is none":    {file(`"ops": {"tool": "os.create_note"}`, failed), "idempotency mode none"},
		"an unknown field":       {file(`"ops": {"tool": "os.create_note", "input": {"title": "{titel}"}}`, failed), "{titel}"},
		"an unknown channel":     {file(`"ops": {"tool": "os.create_note"}`, `{"when": "failed", "to": ["opps"]}`), "did you mean ops?"},
		"a field of others":      {file(`"ops": {"tool": "os.create_note"}`, `{"when": "failed", "to": ["ops"], "roles": ["x"]}`), "belongs to question"},
		"a field that lacks":     {file(`"ops": {"tool": "os.create_note"}`, `{"when": "budget", "to": ["ops"]}`), "is missing: budget needs it"},
	} {
		got := gemWith(t, []string{"GEM_NOTIFY=" + c.file}, "notify", "check")
		if got.code == 0 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%s: exit code %d, %s", name, got.code, got.stderr)
		}
	}
}
