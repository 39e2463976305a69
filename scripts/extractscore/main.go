// Command extractscore reads files of cases and prints how well package extract does on them:
//
//	go run ./scripts/extractscore FILE...
package main

import (
	"fmt"
	"os"

	"github.com/gemworker/gem/internal/testing/extractscore"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "extractscore:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("name a file of cases, such as grounding/testdata/heldout.jsonl")
	}
	var cases []extractscore.Case
	for _, file := range files {
		more, err := extractscore.Load(file)
		if err != nil {
			return err
		}
		cases = append(cases, more...)
	}
	scores, err := extractscore.Of(cases)
	if err != nil {
		return err
	}
	return scores.Print(os.Stdout)
}
