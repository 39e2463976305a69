package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTypesAreWrittenToStdoutOrAFile(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	printed := gemWith(t, env, "types", "typescript")
	printed.wantCode(t, 0)
	wants(t, printed.stdout, "// The tools of GEM's registry 1.0.0, sha256 ",
		`"demo.echo": { input: DemoEchoInput; output: DemoEchoOutput }`, "export type Receipt<")

	python := gemWith(t, env, "types", "python")
	python.wantCode(t, 0)
	wants(t, python.stdout, "# The tools of GEM's registry 1.0.0, sha256 ", "DemoEchoInput: TypeAlias = 'dict[str, Any]'",
		`tool: Literal["demo.echo"], input: DemoEchoInput)`)

	out := filepath.Join(t.TempDir(), "tools.ts")
	gemWith(t, nil, "types", "typescript", writeFile(t, oneTool), "--out", out).wantCode(t, 0)
	if written, err := os.ReadFile(out); err != nil || string(written) != printed.stdout {
		t.Errorf("%v: %s", err, written)
	}

	wrong := gemWith(t, nil, "types", "typescript", writeFile(t, `{"tools": []}`))
	wrong.wantCode(t, exitFailed)
	wants(t, wrong.stderr, "version: is missing")
	gemWith(t, env, "types", "typescript", "--out", filepath.Join(t.TempDir(), "none", "tools.ts")).wantCode(t, exitFailed)
}
