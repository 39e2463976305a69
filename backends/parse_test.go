package backends_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/google/go-cmp/cmp"
)

const both = `{"version": "1.0.0",
	"crm": {"http": {"url": "https://example.com/functions/v1/crm/", "secret_env": "CRM_SECRET", "header_env": {"apikey": "CRM_KEY"}}},
	"github": {"mcp": {"url": "https://example.com/mcp", "header_env": {"Authorization": "GITHUB_TOKEN"}}},
	"files": {"mcp": {"command": "npx", "args": ["-y", "files"], "env": ["FILES_TOKEN"]}, "x-note": "ours"}}`

func TestServicesAndServersAreRead(t *testing.T) {
	t.Parallel()
	d, err := backends.Parse([]byte(both))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]backends.Service{"crm": {URL: "https://example.com/functions/v1/crm",
		SecretEnv: "CRM_SECRET",
		HeaderEnv: map[string]string{"apikey": "CRM_KEY"}}}, d.Services); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]backends.Server{
		"github": {URL: "https://example.com/mcp", HeaderEnv: map[string]string{"Authorization": "GITHUB_TOKEN"}},
		"files": {Command: "npx", Args: []string{"-y", "files"}, Env: []string{"FILES_TOKEN"},
			HeaderEnv: map[string]string{}},
	}, d.Servers); diff != "" {
		t.Error(diff)
	}
	if got := strings.Join(d.Names(), " "); got != "crm files github" || d.Version != "1.0.0" {
		t.Errorf("got %s, version %s", got, d.Version)
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := backends.Parse([]byte(`{"Crm": {"http": {}}, "crm": {"http": {}}, "nowhere": {}, "typo": {"htpp": {}},
		"both": {"http": {"url": "https://user:hunter2@example.com", "secret_env": "whsec_hunter2"}, "mcp": {"url": "x", "command": "y"}},
		"odd": {"http": {"url": "ftp://example.com", "secret_env": "A", "header_env": {"Host": "A", "b": "hunter2", "": "D", "Webhook-Id": "E"}}},
		"query": {"http": {"url": "https://example.com?key=hunter2", "secret_env": "A"}},
		"half": {"http": {"url_env": "A"}}, "plain": {"http": {"url": "https://example.com", "secret_env": "A", "body": "input"}},
		"mixed": {"http": {"url_env": "https://example.com/hunter2", "body": "input", "secret_env": "A"}},
		"program": {"mcp": {"args": [], "env": ["hunter2"], "secret_env": "hunter2"}}}`))
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, problem, _ := strings.Cut(line, ": ")
		got = append(got, field+": "+strings.Join(strings.Fields(problem)[:3], " "))
	}
	want := []string{
		"Crm: is not the",
		"both: has http and",
		"both.http.secret_env: must be the",
		"both.http.url: has a user:",
		"both.mcp: has url and",
		"both.mcp.url: is not a",
		"crm.http.secret_env: is missing: the",
		"crm.http.url: is missing: where",
		"half.http.url_env: needs \"body\": \"input\"",
		"mixed.http: has url_env, whose",
		"mixed.http.url_env: must be the",
		`nowhere: names no backend:`,
		`odd.http.header_env."": is not the`,
		"odd.http.header_env.Host: is a header",
		"odd.http.header_env.Webhook-Id: is a header",
		"odd.http.header_env.b: must be the",
		`odd.http.url: has the scheme`,
		"plain.http.body: belongs to url_env,",
		"program.mcp: has neither url",
		"program.mcp.args: belongs to a",
		"program.mcp.env: belongs to a",
		"program.mcp.env[0]: must be the",
		"program.mcp.secret_env: unknown field: remove",
		"query.http.url: has a query",
		"typo: names no backend:",
		"typo.htpp: unknown field: did",
		"version: is missing. The",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff, "\n", err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
}

func TestWhatIsNoFileOfDomainsIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:                               "must be an object but is a list",
		`{"version": 1}`:                   "must be a string",
		`{"version": "1", "version": "2"}`: "appears twice",
		`{"version": "1", "a": 1}`:         "a: must be an object",
		`{"version": "1"`:                  "the file",
		strings.Repeat(" ", 1<<20+1):       "may have at most 1048576",
	} {
		if _, err := backends.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}

func TestOtherContentsNeedAnotherVersion(t *testing.T) {
	t.Parallel()
	parse := func(text string) *backends.Domains {
		d, err := backends.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	was, formatted := parse(both), parse(strings.ReplaceAll(both, "\n", " "))
	other := parse(strings.Replace(both, "/mcp", "/mcp2", 1))
	raised := parse(strings.Replace(strings.Replace(both, "/mcp", "/mcp2", 1), "1.0.0", "1.0.1", 1))
	if err := backends.CheckUpgrade(was, formatted); err != nil || was.SHA256() != formatted.SHA256() {
		t.Error(err)
	}
	if err := backends.CheckUpgrade(was, other); err == nil ||
		!strings.Contains(err.Error(), "github was changed (mcp); raise") {
		t.Error(err)
	}
	if err := backends.CheckUpgrade(was, raised); err != nil {
		t.Error(err)
	}
}

func TestTheVariableCountsBeforeTheFileAndTheFileBeforeWhatIsBuiltIn(t *testing.T) {
	t.Chdir(t.TempDir())
	const builtIn = `{"version": "built in"}`
	found := func(chosen, builtIn string) string {
		d, from, err := backends.Find(chosen, []byte(builtIn))
		switch {
		case err != nil:
			return err.Error()
		case d == nil:
			return from
		}
		return d.Version + ", " + from
	}
	for _, c := range []struct{ chosen, builtIn, want string }{
		{"", "", "none"},
		{"", builtIn, "built in, built in"},
		{` {"version": "1"}`, builtIn, "1, the JSON of GEM_DOMAINS"},
		{"other.json", builtIn, "there are no domains at other.json: create the file, or set GEM_DOMAINS to its path"},
	} {
		if got := found(c.chosen, c.builtIn); got != c.want {
			t.Errorf("%q: got %s, want %s", c.chosen, got, c.want)
		}
	}
	for name, text := range map[string]string{backends.File: `{"version": "file"}`, "other.json": `{"version": "other"}`} {
		if err := os.WriteFile(filepath.Join(".", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := found("", builtIn); got != "file, domains.json" {
		t.Error(got)
	}
	if got := found("other.json", builtIn); got != "other, other.json" {
		t.Error(got)
	}
}
