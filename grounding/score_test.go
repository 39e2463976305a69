package grounding_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/extractscore"
)

func scores(t *testing.T, file string) *extractscore.Scores {
	t.Helper()
	cases, err := extractscore.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := extractscore.Of(cases)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := s.Print(&table); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
	return s
}

func TestTheDevelopmentSetIsReadRight(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("GEM_TEST_DATA")
	if dir == "" {
		t.Skip("GEM_TEST_DATA names no folder with recorded answers")
	}
	s := scores(t, filepath.Join(dir, "extract", "cases.jsonl")).Total
	if s.Cases != 272 || s.Right < 271 || s.Recall() < 0.998 || s.Precision() < 1 || s.Silent > 0 || s.FalseEvidence > 0 ||
		s.Calls > 337 {
		t.Errorf("%d of %d right, recall %.3f, precision %.3f, %d silent, %d false evidence, %d calls", s.Right, s.Cases,
			s.Recall(), s.Precision(), s.Silent, s.FalseEvidence, s.Calls)
	}
}

// The held-out set was written and frozen before the reader read any of it. The first run had 236 of 238 cases right.
// In the other two, a Hebrew item begins with a direction mark that the fold drops.
func TestTheHeldOutSetIsReadAsInItsFirstRun(t *testing.T) {
	t.Parallel()
	s := scores(t, filepath.Join("testdata", "heldout.jsonl")).Total
	if s.Right < 236 || s.F1() < 0.997 || s.Silent > 0 || s.FalseEvidence > 0 {
		t.Errorf("%d of %d right, F1 %.4f, %d silent, %d false evidence", s.Right, s.Cases, s.F1(), s.Silent, s.FalseEvidence)
	}
}
