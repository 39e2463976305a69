package rules

// ParseCoding is parseCoding.
var ParseCoding = parseCoding

// Panics judges a call by a rule that makes the judging panic.
func Panics(j *Judge, c Call) Verdict {
	broken := &Rule{Name: "broken", Action: Block, when: &condition{},
		Limit: &Limit{Sum: "no pointer", Per: []string{"tool"}}}
	c.Tool = nil // a counter needs its name
	f := &facts{judge: j, call: c}
	f.call.Tool = nil
	verdict, _ := f.ask(broken)
	return *verdict
}
