package cli

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// invoiced is what a model answers about the invoice of docs/examples/extract, with this amount as the total.
func invoiced(amount string) string {
	return `{"extractions": [
		{"class": "party", "quote": "Zoë's Roofing", "attributes": {"role": "seller"}},
		{"class": "party", "quote": "Ada Byron", "attributes": {"role": "buyer"}},
		{"class": "due", "quote": "14 December 2026", "attributes": {"date": "2026-12-14"}},
		{"class": "item", "quote": "| Ridge tiles | 24 | £ 96.00 |", "attributes": {"name": "Ridge tiles", "quantity": 24, "price": "96.00"}},
		{"class": "item", "quote": "| Labour, two days | 2 | £ 640.00 |", "attributes": {"name": "Labour, two days", "quantity": 2, "price": "640.00"}},
		{"class": "total", "quote": "Total: £ 736.00", "attributes": {"amount": "` + amount + `", "currency": "GBP"}}]}`
}

// The commands of docs/extract.md are run from its top, and give what it shows. Only the providers are played.
func TestTheGuideToExtractionIsFollowed(t *testing.T) {
	testdb.Long(t, "TestTheTutorialIsFollowed")
	t.Parallel()
	const sonnet = "claude-sonnet-4-6"
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}}
	f.server = llmtest.Start(t, llmtest.Options{Answer: func(r *llmtest.Request) llmtest.Script {
		t.Errorf("nothing is said for %s in %s", r.Asked.Model, f.section)
		return llmtest.Say("")
	}})
	f.follow(t, "docs/extract.md", "The program", map[string]map[string][]llmtest.Script{
		"From nothing to a read invoice": {sonnet: {said(invoiced("736.00"), 1240, 310)}},
		"Documents in parts": {sonnet: {said(
			`{"extractions": [{"class": "rent", "quote": "£ 900", "attributes": {"amount": "900"}}]}`, 700, 40)}},
		"When it does not succeed": {sonnet: {said("I cannot do that.", 600, 6), said("I really cannot.", 650, 5),
			said(`{"extractions": [{"class": "date", "quote": "Monday"}]}`, 600, 20)}},
		"What a text can do": {sonnet: {said(invoiced("1.00"), 1260, 310), said(invoiced("1.00"), 1900, 310)}},
	})
	guide, err := os.ReadFile(fromRoot(t, "docs/extract.md"))
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := os.ReadFile(fromRoot(t, "grounding/rejected.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\t[A-Za-z]+ += "([a-z_]+)"`).FindAllSubmatch(reasons, -1)
	for _, reason := range found {
		if !bytes.Contains(guide, []byte("`"+string(reason[1])+"`")) {
			t.Errorf("the guide does not say what the reason %s means", reason[1])
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d reasons", len(found))
	}
	if f.calls < 7 || f.shown < 8 {
		t.Errorf("%d calls are made, and %d results shown", f.calls, f.shown)
	}
}
