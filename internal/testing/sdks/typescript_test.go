package sdks

import (
	"os/exec"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// typescript.mjs has the tests of the TypeScript SDK that need no worker.
func TestTypeScriptWithoutAWorker(t *testing.T) {
	t.Parallel()
	node, dir := npmrig.Node(t, rig, "ai", "npm ci --prefix "+rig)
	cmd := exec.CommandContext(t.Context(), node, "typescript.mjs")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
