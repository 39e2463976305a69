package agent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
)

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
		for i, end := range []error{nil, &handlers.NotConfigured{Reason: text(n)},
			&handlers.Failure{Code: "x", Message: text(n), Details: text(n)}, fmt.Errorf("%s", text(n))} {
			got, isError := observation(result, "", end)
			var back map[string]any
			if len(got) > maxSeen || isError != (i > 0) || !utf8.ValidString(got) || strings.Contains(got, "\n") ||
				json.Unmarshal([]byte(got), &back) != nil || back["status"] == nil {
				t.Fatalf("%d, of %d bytes: %.200s", i, n, got)
			}
		}
	}
}
