package grounding

import (
	"encoding/json"
	"math/rand"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// recordedCase is a case of the held-out set or of the development set.
type recordedCase struct {
	ID, Doc, Operator, Answer, Kind string
	Classes                         []string
}

func heldOut(t testing.TB) []recordedCase {
	t.Helper()
	file, err := os.Open("testdata/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cases []recordedCase
	for d := json.NewDecoder(file); d.More(); {
		var c recordedCase
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

func (c *recordedCase) program(t testing.TB) *CompiledProgram {
	p := &Program{Instructions: "Find all."}
	for _, name := range c.Classes {
		p.Classes = append(p.Classes, Class{Name: name})
	}
	return compiled(t, p)
}

func TestTheBeginningOfAnAnswerIsNeverEmpty(t *testing.T) {
	t.Parallel()
	for _, c := range heldOut(t) {
		if c.Kind != "non_empty" || strings.Contains(c.Answer, `{"extractions":[]}`) {
			continue // a prefix of such an answer may be {"extractions":[]}
		}
		program, w := c.program(t), Window{Body: c.Doc}
		for cut := range c.Answer {
			if r := program.Read(w, c.Answer[:cut], false); r.Failure == "" && len(r.Items)+len(r.Rejected) == 0 {
				t.Errorf("%s is empty when it is cut to %q", c.ID, c.Answer[:cut])
			}
		}
	}
}

func TestTheBeginningOfAGoodAnswerIsTruncated(t *testing.T) {
	t.Parallel()
	for _, c := range heldOut(t) {
		if c.Operator != "own_form" && c.Operator != "reversed" {
			continue
		}
		program, w := c.program(t), Window{Body: c.Doc}
		whole := outcome(program.Read(w, c.Answer, false))
		for cut := 1; cut < len(c.Answer); cut++ {
			if got := outcome(program.Read(w, c.Answer[:cut], false)); got != Truncated {
				t.Errorf("%s: %s, cut to %q", c.ID, got, c.Answer[:cut])
			}
		}
		if strings.HasPrefix(whole, "answer_") {
			t.Errorf("%s: %s", c.ID, whole)
		}
	}
}

func TestWhatStandsAroundAnAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range heldOut(t) {
		if c.Operator == "empty_list_alone" || c.Kind == "failure" {
			continue // [] is an answer only on its own
		}
		program, w := c.program(t), Window{Body: c.Doc}
		want := program.Read(w, c.Answer, false)
		for _, around := range [][2]string{
			{"\ufeff\n ", "\n"}, {"```json\n", "\n```"}, {"Here [you] are, {friend}:\n", "\nThat is all (see [1])."},
			{"<think>{\"extractions\":[]}\n[\"</think>", ""}, {"event: x\ndata: ", "\n\n"},
		} {
			if diff := cmp.Diff(want, program.Read(w, around[0]+c.Answer+around[1], false)); diff != "" {
				t.Errorf("%s in %q (-want +got):\n%s", c.ID, around, diff)
			}
		}
	}
}

func TestTheOrderOfTheItemsDecidesOnlyAmongEqualMentions(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewSource(1)) //nolint:gosec // the same orders each time
	for _, c := range heldOut(t) {
		program, w := c.program(t), Window{Body: c.Doc}
		first := program.Read(w, c.Answer, false)
		var values []string
		for _, item := range first.Items {
			if strings.Count(c.Doc, item.Quote) == 1 {
				values = append(values, string(mustJSON(map[string]any{"class": item.Class, "quote": item.Quote})))
			}
		}
		want := program.Read(w, extractions(values...), false)
		for range 3 {
			random.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
			if diff := cmp.Diff(want, program.Read(w, extractions(values...), false)); diff != "" {
				t.Errorf("%s in the order %s (-want +got):\n%s", c.ID, values, diff)
			}
		}
	}
}

// FuzzReadAnswer checks that Read accepts only text of the window, never returns a cut list and never takes long.
func FuzzReadAnswer(f *testing.F) {
	for i, c := range heldOut(f) {
		if i%7 == 0 {
			f.Add(c.Doc, c.Answer, i%3)
		}
	}
	f.Add("a", `{"extractions":[{"class":"token","quote":"a"}`, 0)
	f.Fuzz(func(t *testing.T, text, answer string, context int) {
		text = strings.ToValidUTF8(text, "")
		w := Window{Body: text}
		if n := len(text) / 3; context%3 > 0 {
			for n > 0 && !utf8.RuneStart(text[n]) {
				n--
			}
			w = Window{Before: text[:n], Body: text[n:]}
		}
		c := compiled(t, &Program{Instructions: "Find all.",
			Classes: []Class{{Name: "token", Inferred: true}, {Name: "person", Max: 2}, {Name: "place"}}})
		began := time.Now()
		r, work := c.read(w, answer, false)
		if time.Since(began) > 20*time.Second {
			t.Fatalf("it took %v", time.Since(began))
		}
		if most := 64*(len(answer)+1)*3 + 100*(len(text)+1)*(r.Claimed+1); work > most {
			t.Fatalf("%d steps, more than %d", work, most)
		}
		if r.Failure != "" && len(r.Items)+len(r.Rejected) > 0 {
			t.Fatalf("%s with items: %+v", r.Failure, r)
		}
		for _, item := range r.Items {
			if w.Text()[item.Start:item.End] != item.Quote || item.Start < len(w.Before) ||
				item.Start >= len(w.Before)+len(w.Body) || !json.Valid(item.Attributes) {
				t.Fatalf("%+v is not in the body", item)
			}
		}
		if !slices.IsSortedFunc(r.Items, compareItems) {
			t.Fatalf("not sorted: %+v", r.Items)
		}
		if len(r.Items) > 0 && strings.HasPrefix(answer, `{"extractions":[{`) &&
			!strings.Contains(answer[1:], "{\"extractions\"") && !strings.ContainsAny(answer, "]") {
			t.Fatalf("a list that is never closed gave %+v", r.Items)
		}
	})
}
