package mcpclient_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// imported is a worker whose registry has what the servers list. change alters the registry's text.
func imported(t *testing.T, of map[string]backends.Server, change func(text string) string,
	options ...func(*worker.Options)) *handlertest.Env {
	t.Helper()
	servers := mcpclient.New(of, func(string) string { return "" }, zap.NewNop())
	text := []byte(`{"version": "1.0.0", "tools": []}`)
	for domain := range of {
		tools, err := servers.Tools(t.Context(), domain)
		if err != nil {
			t.Fatal(err)
		}
		if text, err = registry.Rewrite(text, "1.0.0", mcpclient.NewImport(nil, domain, tools, false).Entries); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(servers.Close)
	return handlertest.Start(t, handlertest.Options{
		Registry: []byte(change(string(text))),
		Backends: func(*pgxpool.Pool, *zap.Logger) []binding.Backend { return []binding.Backend{servers} },
		Worker: func(o *worker.Options) {
			for _, change := range options {
				change(o)
			}
		},
	})
}

// entryOf alters the entry of a tool in a registry's text.
func entryOf(text, tool, old, new string) string {
	before, entry, _ := strings.Cut(text, fmt.Sprintf(`"name": %q`, tool))
	return before + fmt.Sprintf(`"name": %q`, tool) + strings.Replace(entry, old, new, 1)
}

// ended is how a call ended.
func ended(r *receipts.Receipt) string {
	if failure, failed := r.Error(); failed {
		return string(failure.Code)
	}
	return string(r.Status)
}

func TestCallsOfAServerEndAsTheirIdempotencySays(t *testing.T) {
	t.Parallel()
	const none, safe = `"mode": "none"`, `"mode": "safe-retry"`
	gem := imported(t, map[string]backends.Server{"lab": started("")}, func(text string) string {
		text = entryOf(text, "lab.cancelled", none, safe)
		text = entryOf(text, "lab.cancelled", "60000", `300, "retry": {"max_attempts": 2, "backoff_ms": 1}`)
		text = entryOf(text, "lab.began", "60000", "300")
		text = entryOf(text, "lab.counts", none, `"mode": "keyed", "key_field": "k"`)
		text = entryOf(text, "lab.counts", `"type": "object"`, `"type": "object", "required": ["k"], "properties": {"k": {}}`)
		text = entryOf(text, "lab.about", `"type": "object"
      },
      "permissions"`, `"type": "string"
      },
      "permissions"`)
		return text
	})
	for _, c := range []struct{ tool, input, want, says string }{
		{"echo", `{"id": 9007199254740993}`, "succeeded", `9007199254740993`},
		{"fails", `{}`, "execution_error", "there is no such"},
		{"about", `{}`, "output_invalid", "does not fit its schema"},
		{"began", `{}`, "outcome_unknown", "The time of the call was over"},
		{"cancelled", `{}`, "timeout", `"attempts": 2`},
		{"dies_once", `{"file": "` + filepath.Join(t.TempDir(), "x") + `"}`, "outcome_unknown", "Check whether it did"},
	} {
		r := gem.Run(handlertest.Call{Tool: "lab." + c.tool, Input: c.input})
		if got := ended(r); got != c.want || !strings.Contains(string(r.Result), c.says) {
			t.Errorf("%s ended as %s: %s", c.tool, got, r.Result)
		}
		var effects struct {
			Calls []receipts.ExternalCall `json:"external_calls"`
		}
		if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.Calls) == 0 ||
			effects.Calls[0].Service != "lab" {
			t.Errorf("%s: the effects are %s", c.tool, r.Effects)
		}
	}
	first := gem.Run(handlertest.Call{Tool: "lab.counts", Input: `{"k": "a"}`})
	again := gem.Run(handlertest.Call{Tool: "lab.counts", Input: `{"k": "a"}`})
	if again.ReplayOf != first.ID || string(first.Result) != string(again.Result) {
		t.Errorf("%s, then %s of %s", first.Result, again.Result, again.ReplayOf)
	}
}

func TestAServerThatAlwaysForgetsGetsACallNoMoreThanItsAttempts(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct {
		calls int64
		code  string
	}{"none": {2, "outcome_unknown"}, "safe-retry": {3, "outcome_unknown"}} {
		var calls atomic.Int64
		settings := forgetful(t, &calls, func(http.ResponseWriter) bool { return false })
		gem := imported(t, map[string]backends.Server{"lab": settings}, func(text string) string {
			text = entryOf(text, "lab.echo", `"mode": "none"`, fmt.Sprintf(`"mode": %q`, mode))
			return entryOf(text, "lab.echo", "60000", `60000, "retry": {"max_attempts": 2, "backoff_ms": 1}`)
		})
		r := gem.Run(handlertest.Call{Tool: "lab.echo", Input: `{}`})
		if ended(r) != want.code || calls.Load() != want.calls {
			t.Errorf("%s: ended as %s after %d calls: %s", mode, ended(r), calls.Load(), r.Result)
		}
	}
}

func TestACallWhoseServerDiesRunsAgainIfItMay(t *testing.T) {
	t.Parallel()
	gem := imported(t, map[string]backends.Server{"lab": started("")}, func(text string) string {
		return entryOf(text, "lab.dies_once", `"mode": "none"`, `"mode": "safe-retry"`)
	})
	r := gem.Run(handlertest.Call{Tool: "lab.dies_once", Input: `{"file": "` + filepath.Join(t.TempDir(), "x") + `"}`})
	if ended(r) != "succeeded" || r.Attempt != 2 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
}
