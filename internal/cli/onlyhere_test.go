package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestAToolThatOnlyTheFolderKnowsIsNamedWithTheFile(t *testing.T) {
	testdb.Long(t, "TestDevTakesFilesThatAppearChangeAndGo")
	t.Parallel()
	url, dir := newDatabase(t), reachableFolder(t)
	startWorker(t, url)
	in := func(env ...string) (called, explained commandResult) {
		t.Helper()
		p := prepare(t, append(env, "DATABASE_URL="+url), "call", "shop.refund", "{}", "--wait", "--timeout", "1m")
		p.cmd.Dir = dir
		p.start(t)
		called = commandResult{p.wait(t), p.stdout.String(), p.stderr.String()}
		called.wantCode(t, exitFailed)
		_, rest, _ := strings.Cut(called.stderr, "call ")
		id, _, _ := strings.Cut(rest, "\n")
		e := prepare(t, append(env, "DATABASE_URL="+url), "explain", id)
		e.cmd.Dir = dir
		e.start(t)
		return called, commandResult{e.wait(t), e.stdout.String(), e.stderr.String()}
	}
	called, _ := in()
	if strings.Contains(called.stderr, "does not:") {
		t.Errorf("the folder has no registry:\n%s", called.stderr)
	}
	writeIn(t, dir, "tools.registry.json", strings.Replace(devTool, `"version": "1"`, `"version": "7"`, 1))
	called, explained := in()
	for _, text := range []string{called.stderr, explained.stdout} {
		wants(t, text, "tools.registry.json here (version 7) has the tool shop.refund, and the registry of the worker "+
			"that ended the call (version 1.5.0", "does not: start a worker with this file: gem dev in this folder, "+
			"or gem worker with TOOLS_REGISTRY="+dir+"/tools.registry.json.\n")
	}

	// It names a gem dev that rejects the file, and the command that shows the fault.
	dev := prepare(t, nil, "dev")
	dev.cmd.Dir = reachableFolder(t)
	dev.start(t)
	devURL(t, dev)
	writeIn(t, dev.cmd.Dir, "tools.registry.json", strings.Replace(devTool, `"mode"`, `"mod"`, 1))
	dev.stderr.waitFor(t, "until tools.registry.json is repaired")
	got := inFolder(t, dev.cmd.Dir, "call", "shop.refund", "{}", "--wait", "--timeout", "1m")
	wants(t, got.stderr, "does not: gem dev loads the file as soon as `gem registry check` finds no fault in it.")
	dev.stop(t)
}
