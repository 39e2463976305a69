package cli

import (
	"strings"
	"testing"
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

func TestDevReadsTheEnvFile(t *testing.T) {
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
