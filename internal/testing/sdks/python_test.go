package sdks

import (
	"os/exec"
	"testing"
)

// The script tests the Python SDK in one process, without a worker.
func TestThePythonSDKWithoutAWorker(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "python3", "python_cases.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
