package sdks

import (
	"os/exec"
	"testing"
)

// typescript.mjs has the tests of the TypeScript SDK that need no worker.
func TestTheTypeScriptSDKWithoutAWorker(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "node", "typescript.mjs").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
