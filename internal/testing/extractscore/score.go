// Package extractscore measures how well package extract reads recorded answers about documents whose items are known.
package extractscore

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"github.com/gemworker/gem/grounding"
)

// Case is a document, an answer about it, and the expected result.
type Case struct {
	ID       string   `json:"id"`
	Doc      string   `json:"doc"`
	Operator string   `json:"operator"` // the kind of damage to the answer
	Classes  []string `json:"classes"`
	Answer   string   `json:"answer"`
	Gold     []Span   `json:"gold"`
	Kind     string   `json:"kind"` // non_empty, empty_by_evidence or failure
}

// Span is an item. Its offsets count UTF-16 code units.
type Span struct {
	Class string `json:"class"`
	Quote string `json:"quote"`
	Start int    `json:"start"`
	End   int    `json:"end"`
}

// Load reads cases from a file with one case per line.
func Load(file string) ([]Case, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var cases []Case
	for d := json.NewDecoder(bufio.NewReader(f)); ; {
		var c Case
		if err := d.Decode(&c); err == io.EOF {
			return cases, nil
		} else if err != nil {
			return nil, fmt.Errorf("case %d of %s: %w", len(cases)+1, file, err)
		}
		cases = append(cases, c)
	}
}

// Score is the result of a set of cases.
type Score struct {
	Cases, Right             int
	Gold, Found, Hits        int // items: in the text, found, and both
	Silent                   int // cases with claimed or truncated items that were read as empty
	FalseEvidence, WrongKind int // items whose quote is not in the document; cases with the wrong kind
	Calls                    int // calls of the model, including a second one for answers that are worth it
	Time                     time.Duration
	Wrong                    []string // ids of the cases that are not right, with their results
}

// Precision returns the share of found items that exist, or 1 if none was found.
func (s *Score) Precision() float64 { return share(s.Hits, s.Found) }

// Recall returns the share of existing items that were found, or 1 if there are none.
func (s *Score) Recall() float64 { return share(s.Hits, s.Gold) }

// F1 returns the harmonic mean of precision and recall.
func (s *Score) F1() float64 { return share(2*s.Hits, s.Found+s.Gold) }

func share(part, of int) float64 {
	if of == 0 {
		return 1
	}
	return float64(part) / float64(of)
}

// Add reads the answer of a case. If the reader asks again, the model gives the same answer.
func (s *Score) Add(c Case) error {
	program := &grounding.Program{Instructions: "Find all."}
	for _, class := range c.Classes {
		program.Classes = append(program.Classes, grounding.Class{Name: class})
	}
	compiled, err := program.Compile()
	if err != nil {
		return fmt.Errorf("%s: %w", c.ID, err)
	}
	began := time.Now()
	text := grounding.Normalise(c.Doc)
	whole := grounding.Shard{End: len(text.Read()), Window: grounding.Window{Body: text.Read()}}
	reading := compiled.Read(whole.Window, c.Answer, false)
	s.Calls++
	if reading.AskAgain() {
		s.Calls++
		reading = grounding.MergeAnswers(reading, compiled.Read(whole.Window, c.Answer, false))
	}
	found, rejected := grounding.Merge(text, grounding.UTF16, []grounding.Part{{Shard: whole, Reading: reading}})
	s.Time += time.Since(began)
	kind := "empty_by_evidence"
	switch {
	case reading.Failure != "" || len(found) == 0 && len(rejected) > 0:
		kind = "failure"
	case len(found) > 0:
		kind = "non_empty"
	}
	s.count(c, kind, found, fmt.Sprint(reading.Failure, rejected))
	return nil
}

func (s *Score) count(c Case, kind string, found []grounding.FoundItem, why string) {
	s.Cases++
	units := utf16.Encode([]rune(c.Doc))
	gold := map[Span]bool{}
	for _, g := range c.Gold {
		gold[Span{Class: g.Class, Start: g.Start, End: g.End}] = true
	}
	hits := 0
	for _, f := range found {
		if string(utf16.Decode(units[f.Start:f.End])) != f.Quote {
			s.FalseEvidence++
		}
		if gold[Span{Class: f.Class, Start: f.Start, End: f.End}] {
			hits++
		}
	}
	s.Gold, s.Found, s.Hits = s.Gold+len(gold), s.Found+len(found), s.Hits+hits
	if kind != c.Kind {
		s.WrongKind++
		if kind == "empty_by_evidence" {
			s.Silent++
		}
	}
	if kind == c.Kind && hits == len(gold) && hits == len(found) {
		s.Right++
	} else {
		s.Wrong = append(s.Wrong, fmt.Sprintf("%s: %s in place of %s, %d of %d found and %d others; %.200s", c.ID, kind,
			c.Kind, hits, len(gold), len(found)-hits, why))
	}
}

// Scores has the score of all cases, and one for each operator.
type Scores struct {
	Total      Score
	Operators  []string // in the order of the cases
	ByOperator map[string]*Score
}

// Of returns the scores of the answers of all cases.
func Of(cases []Case) (*Scores, error) {
	all := &Scores{ByOperator: map[string]*Score{}}
	for _, c := range cases {
		s := all.ByOperator[c.Operator]
		if s == nil {
			s = &Score{}
			all.ByOperator[c.Operator] = s
			all.Operators = append(all.Operators, c.Operator)
		}
		if err := s.Add(c); err != nil {
			return nil, err
		}
	}
	t := &all.Total
	for _, s := range all.ByOperator {
		t.Cases, t.Right, t.Gold, t.Found, t.Hits = t.Cases+s.Cases, t.Right+s.Right, t.Gold+s.Gold, t.Found+s.Found,
			t.Hits+s.Hits
		t.Silent, t.FalseEvidence, t.WrongKind = t.Silent+s.Silent, t.FalseEvidence+s.FalseEvidence, t.WrongKind+s.WrongKind
		t.Calls, t.Time = t.Calls+s.Calls, t.Time+s.Time
	}
	return all, nil
}

// Print writes the scores as a table, followed by the cases that are not right.
func (s *Scores) Print(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operator\tcases\tright\tprecision\trecall\tF1\tsilent\tfalse evidence\twrong kind\tcalls\ttime\t")
	row := func(name string, s *Score) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.3f\t%.3f\t%.3f\t%d\t%d\t%d\t%d\t%v\t\n", name, s.Cases, s.Right, s.Precision(),
			s.Recall(), s.F1(), s.Silent, s.FalseEvidence, s.WrongKind,
			s.Calls, s.Time.Round(10*time.Microsecond))
	}
	for _, name := range s.Operators {
		row(name, s.ByOperator[name])
	}
	row("all", &s.Total)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, name := range s.Operators {
		for _, wrong := range s.ByOperator[name].Wrong {
			fmt.Fprintln(to, wrong)
		}
	}
	return nil
}
