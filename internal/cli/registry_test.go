package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const oneTool = `{"version": "1.0.0", "tools": [{"name": "demo.echo", "input_schema": {"type": "object"},
  "output_schema": {"type": "object"}, "idempotency": {"mode": "none"}, "timeout_ms": 1000}]}`

func writeFile(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "registry.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRegistryCheckPrintsEveryFault(t *testing.T) {
	t.Parallel()
	file := writeFile(t, `{"tools": [
	  {"name": "Leads", "input_schema": {"type": "objekt"}, "output_schema": {"type": "object"}, "idempotency": {"mode": "keyed"}, "timeout_ms": 0},
	  {"name": "leads.create", "input_schema": {"type": "object", "requird": []}, "output_schema": {}, "idempotency": {"mode": "sometimes"}, "timeout_ms": 5}]}`)
	got := gemWith(t, nil, "registry", "check", file)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, file, "version: is missing", "Leads: name: ", "Leads: input_schema/type",
		"Leads: idempotency.key_field: ", "Leads: timeout_ms: ",
		"leads.create: input_schema/requird", "leads.create: idempotency.mode: ")
	if got.stdout != "" {
		t.Errorf("stdout: got %q, want nothing", got.stdout)
	}
}

func TestRegistryCheckOfAGoodOne(t *testing.T) {
	t.Parallel()
	got := gemWith(t, nil, "registry", "check", writeFile(t, oneTool))
	got.wantCode(t, 0)
	wants(t, got.stdout, "ok: 3 tools (1 defined in the registry, 2 that every registry has), version 1.0.0")

	builtIn := gemWith(t, nil, "registry", "check")
	builtIn.wantCode(t, 0)
	wants(t, builtIn.stdout, "ok: ", "(built in)", "closed to signed-in users: comms.send_sms needs the permission "+
		"send:sms\n",
		"closed to signed-in users: comms.send_email needs the permission send:email\n",
		"closed to signed-in users: http.request needs the permission net:http\n")
	if strings.Contains(builtIn.stdout, "users: os.") || strings.Contains(builtIn.stdout, "users: leads.") {
		t.Errorf("got %s", builtIn.stdout)
	}

	named := gemWith(t, []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}, "registry", "check")
	named.wantCode(t, 0)
	wants(t, named.stdout, "ok: 3 tools")
}

func TestRegistryCheckWarnsOfSchemasThatInviteExpensiveInputs(t *testing.T) {
	t.Parallel()
	schema := `{"type": "object", "properties": {"list": {"items": {"anyOf": [{"type": "null"}` +
		strings.Repeat(`, {"minLength": 3}`, 60) + `]}}}}`
	got := gemWith(t, nil, "registry", "check", writeFile(t, strings.Replace(oneTool, `{"type": "object"}`, schema, 1)))
	got.wantCode(t, 0)
	wants(t, got.stderr, "warning: demo.echo: input_schema/properties/list: ", "maxItems")
}

func TestRegistryCheckAgainstAnEarlierOne(t *testing.T) {
	t.Parallel()
	old := writeFile(t, oneTool)
	slower := regexp.MustCompile(`1000`).ReplaceAllString(oneTool, "2000")

	same := gemWith(t, nil, "registry", "check", writeFile(t, oneTool), "--against", old)
	same.wantCode(t, 0)
	wants(t, same.stdout, "no tool changed")

	sameVersion := gemWith(t, nil, "registry", "check", writeFile(t, slower), "--against", old)
	sameVersion.wantCode(t, exitFailed)
	wants(t, sameVersion.stderr, "demo.echo was changed (timeout_ms)", `raise "version"`)

	raised := gemWith(t, nil, "registry", "check", writeFile(t,
		regexp.MustCompile(`1\.0\.0`).ReplaceAllString(slower, "1.1.0")), "--against", old)
	raised.wantCode(t, 0)
	wants(t, raised.stdout, "ok: 3 tools (1 defined in the registry, 2 that every registry has), version 1.1.0",
		"demo.echo was changed (timeout_ms)\n")
}

func TestRegistryListShowsWhereEachToolIsWritten(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs("../../tools.registry.json") // as it is built in, but with the true timeouts
	if err != nil {
		t.Fatal(err)
	}
	got := gemWith(t, []string{"TOOLS_REGISTRY=" + file}, "registry", "list")
	got.wantCode(t, 0)
	for _, line := range []string{
		`(?m)^TOOL +IDEMPOTENCY +TIMEOUT +PERMISSIONS +HANDLER$`,
		`(?m)^leads\.create +keyed by phone +15 s +.*write:db.* +leads/leads\.go Leads\.Create$`,
		`(?m)^comms\.send_sms +safe-retry +20 s +send:sms write:db +comms/.+\.go Comms\.SendSMS$`,
		`(?m)^quote\.generate_pdf .* no handler$`,
	} {
		if !regexp.MustCompile(line).MatchString(got.stdout) {
			t.Errorf("no line is like %s:\n%s", line, got.stdout)
		}
	}
}

// It works in any folder, so that nobody needs to search GEM's source.
func TestRegistryShowFindsTheToolsThatComeWithGEM(t *testing.T) {
	t.Parallel()
	file := writeFile(t, oneTool)
	env := []string{"TOOLS_REGISTRY=" + file}
	own := gemWith(t, env, "registry", "show", "llm.chat")
	own.wantCode(t, 0)
	wants(t, own.stdout, `"name": "llm.chat"`)
	wants(t, own.stderr, "llm.chat comes with GEM, and the registry ("+file+
		`) lacks it: to include it, add "llm.chat" to "include"`)
	builtIn := gemWith(t, env, "registry", "show", "leads.create")
	builtIn.wantCode(t, 0)
	wants(t, builtIn.stdout, `"name": "leads.create"`)
	wants(t, builtIn.stderr, `to use it, copy this entry into "tools"`)

	text := strings.Replace(oneTool, `"tools"`,
		`"include": ["llm"], "overrides": {"llm.chat": {"timeout_ms": 77}}, "tools"`, 1)
	included := gemWith(t, []string{"TOOLS_REGISTRY=" + text}, "registry", "show", "llm.chat")
	included.wantCode(t, 0)
	wants(t, included.stdout, `"timeout_ms": 77`)
	if included.stderr != "" {
		t.Errorf("stderr: %s", included.stderr)
	}
}

func TestRegistryShowPrintsEntries(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	got := gemWith(t, env, "registry", "show", "demo.echo", "wait.answer")
	got.wantCode(t, 0)
	wants(t, got.stdout, `"name": "demo.echo"`, `"name": "wait.answer"`, `"ask:people"`)
	if got.stderr != "" {
		t.Errorf("stderr: %s", got.stderr)
	}
	none := gemWith(t, env, "registry", "show", "demo.ecko")
	none.wantCode(t, exitUsage)
	wants(t, none.stderr, `has no tool "demo.ecko": did you mean demo.echo?`)
}
