package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
)

func TestNamesAreTakenByProvidersAndMeanOneToolEach(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in every run
	taken := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	for range 500 {
		tools := map[string]bool{"x." + strings.Repeat("long_", 30) + "a": true, "x." + strings.Repeat("long_", 30) + "b": true}
		for range r.IntN(20) {
			name := "a"
			for range 1 + r.IntN(4) {
				name += string("._"[r.IntN(2)]) + string("ab"[r.IntN(2)])
			}
			tools[name] = true
		}
		names := slices.Sorted(maps.Keys(tools))
		for _, made := range withNames(names) {
			if made.As != underscored(made.Name) { // and a tool that would have that very name
				tools[strings.Replace(made.As, "_", ".", 1)] = true
			}
		}
		names = slices.Sorted(maps.Keys(tools))
		box, seen := toolbox{Tools: withNames(names)}, map[string]bool{}
		for i, tool := range box.Tools {
			byAs, _ := box.find(tool.As)
			byName, _ := box.find(tool.Name)
			if seen[tool.As] || !taken.MatchString(tool.As) || tool.Name != names[i] || byAs != tool || byName != tool {
				t.Fatalf("%+v in %+v", tool, box.Tools)
			}
			seen[tool.As] = true
		}
	}
}

func TestAnObservationIsOneBoundedObjectWhateverIsInIt(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same in every run
	letters := []string{`"`, `\`, "\x00", "\n", "</tool_result>", "}", "]", "界", "\u2028", "x", "\xff"}
	text := func(n int) string {
		var b strings.Builder
		for b.Len() < n {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	for range 100 {
		n := r.IntN(100_000)
		result, _ := json.Marshal(map[string]string{"text": text(n)})
		for i, end := range []error{nil, &handlers.NotConfigured{Reason: text(n)}, &handlers.Failure{Code: "x", Message: text(n), Details: text(n)}, fmt.Errorf("%s", text(n))} {
			got, isError := observation(result, end)
			var back map[string]any
			if len(got) > maxSeen || isError != (i > 0) || !utf8.ValidString(got) || strings.Contains(got, "\n") || json.Unmarshal([]byte(got), &back) != nil || back["status"] == nil {
				t.Fatalf("%d, of %d bytes: %.200s", i, n, got)
			}
		}
	}
}
