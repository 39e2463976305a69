package rules

// Panics judges a call by a rule that makes the judging panic.
func Panics(j *Judge, c Call) Verdict {
	broken := &Rule{Name: "broken", Action: Block, When: &Condition{}, Limit: &Limit{Sum: "no pointer", Per: []string{"tool"}}}
	c.Tool = nil // of which a counter needs the name
	f := &facts{judge: j, call: c}
	f.call.Tool = nil
	verdict, _ := f.ask(broken)
	return *verdict
}
