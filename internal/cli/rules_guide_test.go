package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fromRoot is the path of a file of the repository.
func fromRoot(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// The examples of docs/rules.md are taken by gem rules check, and gem rules test finds of their calls what they say.
func TestTheExamplesOfTheGuideToRulesAreSound(t *testing.T) {
	t.Parallel()
	for file, tools := range map[string]string{
		"docs/examples/rules/rules":   "tools.registry.json",
		"docs/examples/rules/refunds": "docs/examples/rules/refunds.registry.json",
	} {
		env := []string{"TOOLS_REGISTRY=" + fromRoot(t, tools)}
		gemWith(t, env, "rules", "check", fromRoot(t, file+".json")).wantCode(t, 0)
		gemWith(t, env, "rules", "test", fromRoot(t, file+".test.json")).wantCode(t, 0)
	}
}

// Each block of JSON in the guides to rules is a rule of these examples, or is itself a file that GEM takes.
func TestTheGuidesToRulesShowTheExamples(t *testing.T) {
	t.Parallel()
	var entries []any
	for _, name := range []string{"rules.json", "refunds.json"} {
		text, err := os.ReadFile(fromRoot(t, "docs/examples/rules/"+name))
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Rules []any }
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, file.Rules...)
	}
	env := []string{"TOOLS_REGISTRY=" + fromRoot(t, "tools.registry.json")}
	for guide, least := range map[string]int{"docs/rules.md": 12, "docs/hook.md": 3} {
		text, err := os.ReadFile(fromRoot(t, guide))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(text, -1)
		if len(blocks) < least {
			t.Errorf("%s shows %d blocks, want %d", guide, len(blocks), least)
		}
		for _, block := range blocks {
			var doc map[string]any
			if err := json.Unmarshal(block[1], &doc); err != nil {
				t.Errorf("%s: %v:\n%s", guide, err, block[1])
			}
			switch {
			case doc["version"] != nil:
				gemWith(t, env, "rules", "check", writeFile(t, string(block[1]))).wantCode(t, 0)
			case doc["sequences"] != nil:
				file := strings.ReplaceAll(string(block[1]), `"rules.json"`, `"`+fromRoot(t, "docs/examples/rules/rules.json")+`"`)
				gemWith(t, env, "rules", "test", writeFile(t, file)).wantCode(t, 0)
			case doc["hooks"] != nil: // settings of an agent
			case !slices.ContainsFunc(entries, func(entry any) bool { return reflect.DeepEqual(entry, any(doc)) }):
				t.Errorf("%s: the examples do not have this:\n%s", guide, block[1])
			}
		}
	}
}
