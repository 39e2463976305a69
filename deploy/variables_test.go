package deploy_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/gemworker/gem/internal/objectstore"
	"go.yaml.in/yaml/v3"
)

// gem reads every variable that a file sets for it, and the page about the file names it.
func TestEveryVariableOfAFileIsReadByGEMAndExplained(t *testing.T) {
	t.Parallel()
	known := knownVariables(t)
	for file, page := range map[string]string{
		"docker-compose.yml":                     "docs/docker.md",
		"docs/examples/image/docker-compose.yml": "docs/docker.md",
		"render.yaml":                            "docs/render.md",
		"docs/examples/image/render.yaml":        "docs/render.md",
		".env of gem init":                       "docs/configuration.md",
	} {
		set := initVariables(t)
		if strings.HasSuffix(file, ".yml") {
			set = composeVariables(t, file)
		} else if strings.HasSuffix(file, ".yaml") {
			set = blueprintVariables(t, file)
		}
		if len(set) == 0 && strings.Contains(file, ".y") {
			t.Errorf("%s sets no variables", file)
		}
		explained := readFile(t, page)
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if !known[name] && !strings.HasPrefix(name, "OTEL_") && name != ownSecret {
				t.Errorf("%s sets %s, which gem does not read", file, name)
			}
			if !names(explained, name) {
				t.Errorf("%s sets %s, and %s does not name it", file, name, page)
			}
		}
	}
}

// names reports whether a page names a variable, in full or by its beginning, such as SMTP_….
func names(page, variable string) bool {
	for _, found := range regexp.MustCompile("`([A-Z][A-Z0-9_]+)(…?)").FindAllStringSubmatch(page, -1) {
		if found[1] == variable || found[2] != "" && strings.HasPrefix(variable, found[1]) {
			return true
		}
	}
	return false
}

// knownVariables returns the variables that a worker, the dashboard and gem mcp read.
func knownVariables(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{"GOMEMLIMIT": true, "GEM_ARCHIVE": true}
	for _, name := range variables(t) {
		known[name] = true
	}
	for _, v := range slices.Concat(config.Describe(), envvar.Describe(&config.Dashboard{}, &objectstore.Config{})) {
		known[v.Name] = true
	}
	_, help := gem(t, nil, "mcp", "--help")
	for _, name := range regexp.MustCompile(`\bGEM_MCP_[A-Z_]+`).FindAllString(help, -1) {
		known[name] = true
	}
	return known
}

// composeVariables are those of the services that run gem.
func composeVariables(t *testing.T, file string) map[string]bool {
	t.Helper()
	var compose struct{ Services map[string]service }
	if err := yaml.Unmarshal([]byte(readFile(t, file)), &compose); err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for name, s := range compose.Services {
		runsGEM := s.Image == "" || strings.Contains(s.Image, published)
		for variable := range s.Environment {
			if runsGEM && name != "test" {
				set[variable] = true
			}
		}
	}
	return set
}

func blueprintVariables(t *testing.T, file string) map[string]bool {
	t.Helper()
	var blueprint struct{ Services []renderService }
	if err := yaml.Unmarshal([]byte(readFile(t, file)), &blueprint); err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, s := range blueprint.Services {
		for _, v := range s.EnvVars {
			set[v.Key] = true
		}
	}
	return set
}

// initVariables are those of the .env that gem init writes, even if they are commented out there: of the files below
// internal/cli whose names contain .env, and of the text in its init*.go.
func initVariables(t *testing.T) map[string]bool {
	t.Helper()
	set, assignment := map[string]bool{}, regexp.MustCompile(`(?m)^(?:# ?)?([A-Z][A-Z0-9_]+)=`)
	err := filepath.WalkDir(filepath.Join(root, "internal", "cli"), func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if source, _ := filepath.Match("init*.go", file.Name()); !source && !strings.Contains(file.Name(), ".env") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range assignment.FindAllStringSubmatch(string(text), -1) {
			set[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}
