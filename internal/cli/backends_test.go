package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
)

// crmTools is a registry with two tools of the domain crm; more is put into the entry of crm.refund.
func crmTools(more string) string {
	return `{"version": "1.0.0", "tools": [
		{"name": "crm.refund", "input_schema": {"type": "object"}, "output_schema": true, "idempotency": {"mode": "none"}, "timeout_ms": 10000` + more + `},
		{"name": "crm.a.b", "input_schema": {"type": "object"}, "output_schema": true, "idempotency": {"mode": "none"}, "timeout_ms": 10000}]}`
}

func parseBoth(t *testing.T, tools, domains string) (*registry.Registry, *backends.Domains) {
	t.Helper()
	r, err := registry.Parse([]byte(tools))
	if err != nil {
		t.Fatal(err)
	}
	d, err := backends.Parse([]byte(domains))
	if err != nil {
		t.Fatal(err)
	}
	return r, d
}

const crmAt = `{"version": "1", "crm": {"http": {"url": "https://example.com/crm/", "secret_env": "CRM_SECRET"}}}`

func TestAToolExistsOnce(t *testing.T) {
	t.Parallel()
	for there, named := range map[string]string{
		`{"http": {"url": "https://example.com/leads", "secret_env": "A"}}`: "https://example.com/leads/create",
		`{"mcp": {"url": "https://example.com/leads"}}`:                     "leads create",
	} {
		r, d := parseBoth(t, string(builtIn.Registry), `{"version": "1", "leads": `+there+`}`)
		if _, _, err := builtIn.fit(r, d); err == nil {
			t.Errorf("%s is taken", there)
		} else {
			wants(t, err.Error(), "leads.create is defined twice, by leads/leads.go (Leads.Create) and by leads in "+
				"domains.json ("+named+"): remove one")
		}
	}
}

func TestAURLThatIsSecretIsClosedToSignedInUsers(t *testing.T) {
	t.Parallel()
	const secret = `{"version": "1", "crm": {"http": {"url_env": "CRM_URL", "body": "input"}}}`
	r, d := parseBoth(t, crmTools(""), secret)
	_, _, err := builtIn.fit(r, d)
	if err == nil {
		t.Fatal("open tools are accepted")
	}
	wants(t, err.Error(), "crm.refund posts its input to a URL of yours", `give its entry "frontends": false`)
	closed := strings.ReplaceAll(crmTools(""), `"timeout_ms"`, `"frontends": false, "timeout_ms"`)
	r, d = parseBoth(t, closed, secret)
	bound, _, err := builtIn.fit(r, d)
	if err != nil {
		t.Fatal(err)
	}
	if h, _ := bound.For("crm.refund"); h.Func != "the URL in CRM_URL" {
		t.Errorf("got %s", h.Func)
	}
}

func TestFieldsOfDurableHandlersAreDefectsOfABackendsTool(t *testing.T) {
	t.Parallel()
	r, d := parseBoth(t, crmTools(`, "calls": ["crm.a.b"], "deadline_ms": 1000`), crmAt)
	_, _, err := builtIn.fit(r, d)
	if err == nil {
		t.Fatal("it is taken")
	}
	wants(t, err.Error(), "crm.refund: calls is for durable handlers, and the tool runs in a backend (HTTP "+
		"https://example.com/crm/refund)", "crm.refund: deadline_ms is for durable handlers")
}

func TestARuleBlocksNoResultOfAToolOutside(t *testing.T) {
	t.Parallel()
	r, d := parseBoth(t, crmTools(""), crmAt)
	bound, _, err := builtIn.fit(r, d)
	if err != nil {
		t.Fatal(err)
	}
	set, err := rules.Parse(
		[]byte(`{"version": "1", "rules": [{"name": "late", "tools": ["crm.refund"], "action": "block", "when": {"result": {"x": {"const": 1}}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rulesFit(set, r, bound); err == nil || !strings.Contains(err.Error(),
		"the effects of crm.refund cannot be rolled back") {
		t.Error(err)
	}
}

func TestADomainWithoutToolsIsToldOf(t *testing.T) {
	t.Parallel()
	r, d := parseBoth(t, crmTools(""),
		`{"version": "1", "crms": {"http": {"url": "https://example.com", "secret_env": "A"}}, "github": {"mcp": {"url": "https://example.com"}},
		"billing": {"http": {"url": "https://example.com", "secret_env": "A"}}}`)
	want := []string{
		"domains.json names the domain billing, and the registry has no tool of it: add entries for its tools, such as " +
			"billing.do",
		"domains.json names the domain crms, and the registry has no tool of it: did you mean crm?",
		"domains.json names the domain github, and the registry has no tool of it: `gem registry import github` adds those " +
			"of the server",
	}
	if diff := cmp.Diff(want, domainsWithoutTools(d, r)); diff != "" {
		t.Error(diff)
	}
	if got := domainsWithoutTools(nil, r); got != nil {
		t.Error(got)
	}
}

func TestCommandsShowTheBackends(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + crmTools(""), "GEM_DOMAINS=" + crmAt}
	list := gemWith(t, env, "registry", "list")
	list.wantCode(t, 0)
	wants(t, list.stdout, "HTTP https://example.com/crm/refund", "HTTP https://example.com/crm/a_b")
	wants(t, gemWith(t, env, "version").stdout, "backends 1, crm (the JSON of GEM_DOMAINS)")
	refused := gemWith(t, append(env, "GEM_DOMAINS={}"), "registry", "check")
	refused.wantCode(t, exitFailed)
	wants(t, refused.stderr, "the domains (the JSON of GEM_DOMAINS) are refused", "version: is missing")
}

// A tool behind HTTP needs no Go: a registry and a domains.json are files of the working directory.
func TestAWorkerCallsAServiceOfItsDomainsFile(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"result": {"path": "`+r.URL.Path+`"}}`)
	}))
	defer service.Close()
	url := newDatabase(t)
	domains := `{"version": "1", "crm": {"http": {"url": "` + service.URL + `", "secret_env": "CRM_SECRET"}}}`
	files := func(p *process, domains string) {
		for name, text := range map[string]string{"tools.registry.json": crmTools(""), backends.File: domains} {
			if err := os.WriteFile(filepath.Join(p.cmd.Dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	env := []string{"DATABASE_URL=" + url, "LOG_FORMAT=json", "CRM_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
	p := prepare(t, env, "worker")
	files(p, domains)
	p.start(t)
	p.stderr.waitFor(t, "worker started")
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('crm.refund')")
	p.stderr.waitFor(t, "call ended")
	if got := testdb.Value[string](t, db,
		"select status || result from core_tool_receipts"); got != `succeeded{"path": "/refund"}` {
		t.Error(got)
	}
	p.stop(t)
	var loaded struct {
		From    string   `json:"from"`
		Domains []string `json:"domains"`
		Missing []string `json:"missing_variables"`
	}
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, "backends loaded") {
			if err := json.Unmarshal([]byte(line), &loaded); err != nil {
				t.Fatal(err)
			}
		}
	}
	if loaded.From != backends.File || len(loaded.Domains) != 1 || len(loaded.Missing) != 0 {
		t.Errorf("the log says %+v", loaded)
	}
	if strings.Contains(p.stderr.String(), "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") {
		t.Error("the log shows the secret")
	}

	other := prepare(t, env, "worker")
	files(other, strings.Replace(domains, `"}}}`, `", "header_env": {"apikey": "CRM_KEY"}}}}`, 1))
	other.start(t)
	if code := other.wait(t); code == 0 {
		t.Error("other contents under a recorded version are taken")
	}
	wants(t, other.stderr.String(),
		`version 1 of the domains has other contents than the recorded version 1: crm was changed (http); raise "version"`,
		`"missing_variables":["CRM_KEY"]`)
}
