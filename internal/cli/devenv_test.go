package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestValuesOfTheEnvFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`plain`: "plain", `two words # and a comment`: "two words", `a#b`: "a#b", ``: "",
		`'single # quoted'`: "single # quoted", `"double $quoted"  # comment`: "double $quoted",
		`'not closed`: "'not closed", `"a" b`: `"a" b`, `whsec_ab+/=`: "whsec_ab+/=",
	} {
		if got := unquoted(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// A folder may come from a stranger, and gem dev starts programs.
func TestTheEnvFileCannotMakeProgramsRunCode(t *testing.T) {
	ignored := []string{"LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PATH", "HOME", "PGHOST",
		"PGSERVICEFILE",
		"GODEBUG", "GOFLAGS", "SHELL", "IFS", "BASH_ENV", "ENV", "PYTHONPATH", "NODE_OPTIONS", "npm_config_registry",
		"XDG_CACHE_HOME", "TMPDIR", "GEM_POSTGRES_BIN", "GIT_SSH_COMMAND", "OPENSSL_CONF", "NODE_EXTRA_CA_CERTS"}
	taken := []string{"CRM_SECRET", "OPENAI_API_KEY", "GOOGLE_API_KEY", "TOOLS_REGISTRY", "OTEL_SERVICE_NAME",
		"NODE_ENV", "ENVIRONMENT", "HOMEPAGE", "PATHS"}
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range taken {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	writeIn(t, dir, ".env", strings.Join(ignored, "=x\nexport ")+"=x\n"+strings.Join(taken, "=y\n")+"=y\n")
	var said strings.Builder
	if err := readEnvFile(&said); err != nil {
		t.Fatal(err)
	}
	wants(t, said.String(), "warning: ignored in .env: "+strings.Join(ignored, ", ")+".",
		"read from .env: "+strings.Join(taken, ", ")+"\n")
	for _, name := range ignored {
		if value, _ := os.LookupEnv(name); value == "x" {
			t.Errorf("it set %s", name)
		}
	}
	for _, name := range taken {
		if os.Getenv(name) != "y" {
			t.Errorf("it did not set %s", name)
		}
	}
}

func TestDevReadsTheEnvFile(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	p := prepare(t, []string{"LOG_LEVEL=info"}, "dev")
	writeIn(t, p.cmd.Dir, ".env", `# mine

DATABASE_URL=postgres://elsewhere/x
LOG_LEVEL=error
export CRM_SECRET='whsec_x' # of the service
WORKER_ID=me
`)
	writeIn(t, p.cmd.Dir, "domains.json", crmAt)
	p.start(t)
	devURL(t, p)
	log := p.stderr.waitFor(t, "worker started")
	wants(t, log, "read from .env: CRM_SECRET, WORKER_ID\n", `"missing_variables": []`, `{"worker_id": "me-`)
	if strings.Contains(log, "DATABASE_URL is set") {
		t.Errorf("it took DATABASE_URL:\n%s", log)
	}
	p.stop(t)

	p = prepare(t, nil, "dev")
	writeIn(t, p.cmd.Dir, ".env", "LOG_LEVEL=info\nLOG LEVEL\n")
	p.start(t)
	if code := p.wait(t); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	wants(t, p.stderr.String(), ".env: line 2 is not NAME=value: correct it, or begin it with #")
}
