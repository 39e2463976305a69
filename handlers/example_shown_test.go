package handlers_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// blocks returns the blocks of docs/durable.md in a language.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	guide, err := os.ReadFile("../docs/durable.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(guide, -1) {
		found = append(found, string(block[1]))
	}
	return found
}

// Each example of docs/durable.md is in example_test.go, indented or not, so it is compiled and run. Its program is a
// module of its own.
func TestTheGuideToDurableHandlersShowsTheExamples(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(code string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "") }
	shown := 0
	for _, block := range blocks(t, "go") {
		if strings.HasPrefix(block, "package ") {
			continue
		}
		shown++
		if !strings.Contains(flat(string(example)), flat(block)) {
			t.Errorf("the examples do not have this:\n%s", block)
		}
	}
	if shown != 3 {
		t.Errorf("the guide shows %d examples, want 3", shown)
	}
}

// The program of docs/durable.md is built as a module somewhere else, and its test passes.
func TestTheProgramOfTheGuideToDurableHandlersPassesItsTest(t *testing.T) {
	testdb.Long(t, "TestTheGuideToDurableHandlersShowsTheExamples")
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, block := range blocks(t, "go") {
		switch {
		case !strings.HasPrefix(block, "package main\n"):
		case strings.Contains(block, `"testing"`):
			files["main_test.go"] = []byte(block)
		default:
			files["main.go"] = []byte(block)
		}
	}
	if files["main.go"] == nil || files["main_test.go"] == nil {
		t.Fatalf("the guide lacks the program, or its test")
	}
	files["tools.registry.json"] = []byte(strings.Join(blocks(t, "json"), ""))
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, "examples/own-tools", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = bytes.Replace(text, []byte("=> ../.."), []byte("=> "+root), 1)
	}
	folder := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"go", "vet", "."}, {"go", "test", "."}, {"gofmt", "-d", "."},
		{"go", "run", ".", "registry", "check"}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil || args[0] == "gofmt" && len(out) > 0 {
			t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
