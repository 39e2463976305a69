package handlers_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/durable.md shows the example.
func TestTheGuideToDurableHandlersShowsTheExample(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/durable.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(guide, -1)
	for _, block := range blocks {
		if !strings.Contains(string(example), string(block[1])) {
			t.Errorf("the example does not have this:\n%s", block[1])
		}
	}
	if len(blocks) == 0 {
		t.Error("the guide shows no code")
	}
}
