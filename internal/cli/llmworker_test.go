package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// A price can be traced only if one version of the routes has one content, whichever worker asked.
func TestAWorkerRefusesOtherRoutesOfARecordedVersion(t *testing.T) {
	testdb.Long(t, "TestAWorkerWithWrongRoutesDoesNotStartAndSaysWhere")
	t.Parallel()
	url := newDatabase(t)
	old, changed := writeFile(t, oneTarget), writeFile(t, strings.Replace(oneTarget, `"0.3"`, `"0.4"`, 1))
	start := func(routes string) commandResult {
		return gemWith(t, []string{"DATABASE_URL=" + url, "LLM_ROUTES=" + routes}, "worker")
	}
	const says = `version 1.0.0 of the routes has other contents than the recorded version 1.0.0: target quick was changed (usd_per_mtok); raise "version" in the file, or undo the change`
	startWorker(t, url, "LLM_ROUTES="+old)
	second := start(changed)
	second.wantCode(t, exitFailed)
	wants(t, second.stderr, says)
	checked := gemWith(t, nil, "llm", "check", changed, "--against", old)
	checked.wantCode(t, exitFailed)
	wants(t, checked.stderr, says)

	startWorker(t, url, "LLM_ROUTES="+strings.Join(strings.Fields(oneTarget), " ")) // the same, written otherwise
	raised := strings.Replace(strings.Replace(oneTarget, `"0.3"`, `"0.4"`, 1), "1.0.0", "1.1.0", 1)
	startWorker(t, url, "LLM_ROUTES="+raised)
	startWorker(t, url, "LLM_ROUTES="+old) // and back
}

func TestAWorkerWithWrongRoutesDoesNotStartAndSaysWhere(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	invalid := writeFile(t, strings.NewReplacer(`https://`, `http://`, `["quick"]`, `["quik"]`).Replace(oneTarget))
	for routes, want := range map[string][]string{
		invalid: {invalid, "providers.here.base_url: is http",
			"routes.default.targets[0]: there is no target quik: did you mean quick?"},
		"nowhere.json":              {"there are no routes at nowhere.json: create the file, or set LLM_ROUTES to its path"},
		`{"version": "1.0.0", "a"}`: {"LLM_ROUTES", "refused"},
	} {
		got := gemWith(t, []string{"DATABASE_URL=" + url, "LLM_ROUTES=" + routes}, "worker")
		if got.code != exitFailed && got.code != exitUsage {
			t.Errorf("%s: exit code %d", routes, got.code)
		}
		wants(t, got.stderr, want...)
	}
	if n := testdb.Value[int](t, testdb.Pool(t, url), "select count(*)::int from core_workers"); n != 0 {
		t.Errorf("%d workers have started", n)
	}
}

// kill -9 of the program itself while a model answers.
func TestAProgramThatIsKilledWhileAModelAnswersCostsOneRequestMore(t *testing.T) {
	testdb.Long(t, "TestAStepThatWasKilledRunsOnceMore")
	t.Parallel()
	server := llmtest.Start(t, llmtest.Options{})
	streams := make(chan struct{})
	cut := llmtest.Say("an answer that nobody reads to its end")
	cut.Before = func(ctx context.Context, delta int) {
		if delta == 2 {
			close(streams)
			<-ctx.Done()
		}
	}
	server.Script("", cut, llmtest.Say("whole"))
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	routes := fmt.Sprintf(`{"version": "1", "providers": {"here": {"dialect": "anthropic", "base_url": %q, "local": true}},
		"targets": {"quick": {"provider": "here", "model": "quick-1", "context": 8000, "max_output": 2000, "usd_per_mtok": [{"input": "1", "output": "2", "cache_write": "1"}]}},
		"routes": {"default": {"targets": ["quick"]}}, "budgets": [{"name": "all", "scope": "all", "period": "month", "usd": "1"}]}`, server.BaseURL(llmtest.Anthropic))
	d := delta{T: t, url: url, db: db}
	first := startWorker(t, url, "LLM_ROUTES="+routes)
	id := testdb.Value[string](t, db, `insert into core_tool_calls (tool_name, input)
		values ('llm.chat', '{"messages": [{"role": "user", "content": "hello"}]}') returning id::text`)
	<-streams
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	startWorker(t, url, "LLM_ROUTES="+routes)
	r := d.await(id)
	var result struct {
		Text  string
		Usage struct {
			Call struct {
				Requests int
				Unknown  int `json:"unknown_requests"`
			}
		}
	}
	if err := json.Unmarshal(r.Result, &result); err != nil || r.Status != receipts.Succeeded || result.Text != "whole" ||
		result.Usage.Call.Requests != 2 || result.Usage.Call.Unknown != 1 {
		t.Errorf("%s %s", r.Status, r.Result)
	}
	if n := server.Counts().Requests; n != 2 {
		t.Errorf("%d requests", n)
	}
	if got := testdb.Value[string](t, db,
		"select string_agg(status, ' ' order by n) from core_llm_requests"); got != "lost done" {
		t.Errorf("the ledger has %s", got)
	}
	d.sound()
}
