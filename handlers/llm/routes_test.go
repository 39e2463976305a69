package llm

import (
	"errors"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers"
)

// Without a routes file, the receipt names the process to restart: gem dev reads a new file by itself.
func TestTheReceiptWithoutRoutesSaysWhatToRestart(t *testing.T) {
	t.Parallel()
	_, err := (&LLM{}).asked()
	var missing *handlers.NotConfigured
	if !errors.As(err, &missing) {
		t.Fatal(err)
	}
	const want = "gem dev reads it at once, and gem worker when it starts."
	if steps := strings.Join(missing.NextSteps, " "); !strings.Contains(steps, want) {
		t.Errorf("it does not say %q: %s", want, steps)
	}
}
