package sdks

import (
	"os/exec"
	"testing"
)

// Each script tests an SDK in one process, without a worker.
func TestEachSDKWithoutAWorker(t *testing.T) {
	t.Parallel()
	for language, command := range map[string][]string{"TypeScript": {"node", "typescript.mjs"},
		"Python": {"python3", "python_cases.py"}} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput() //nolint:gosec // fixed
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
