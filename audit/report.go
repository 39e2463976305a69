package audit

import (
	"fmt"
	"io"
)

// Report is the result of an audit.
type Report struct {
	Faults  int64    `json:"faults"`  // of all checks; an undecided check counts as one
	Remarks int64    `json:"remarks"` // findings that are not faults, but worth knowing
	Seconds float64  `json:"seconds"`
	Checks  []Result `json:"checks"`
}

// Result is the result of one check.
type Result struct {
	Check    string    `json:"check"`
	LookedAt int64     `json:"looked_at"`
	Of       string    `json:"of"` // the objects that it checked: calls, receipts, …
	Found    int64     `json:"found"`
	Remark   bool      `json:"remark"`              // its findings are not faults
	Error    string    `json:"undecided,omitempty"` // why the check could not be decided
	Examples []Finding `json:"examples,omitempty"`
}

// Finding is one finding of a check.
type Finding struct {
	ID   string `json:"id"` // of the call in most checks; a guard, or a file and line, in others
	What string `json:"what"`
}

// add adds the result of a check and reports it.
func (r *Report) add(o *Options, result Result) {
	if result.Error != "" {
		r.Faults++
	}
	if result.Remark {
		r.Remarks += result.Found
	} else {
		r.Faults += result.Found
	}
	r.Checks = append(r.Checks, result)
	if o.Each != nil {
		o.Each(result)
	}
}

// Print writes the result as one line for people, and each example as a line below it.
func (r Result) Print(w io.Writer) error {
	said := "ok"
	switch {
	case r.Error != "":
		said = "not decided: " + r.Error
	case r.Found > 0 && r.Remark:
		said = plural(r.Found, "remark")
	case r.Found > 0:
		said = plural(r.Found, "fault")
	}
	text := fmt.Appendf(nil, "%-17s  %10d %-14s  %s\n", r.Check, r.LookedAt, r.Of, said)
	for _, e := range r.Examples {
		text = fmt.Appendf(text, "    %s: %s\n", e.ID, e.What)
	}
	if more := r.Found - int64(len(r.Examples)); more > 0 {
		text = fmt.Appendf(text, "    and %d more\n", more)
	}
	_, err := w.Write(text)
	return err
}

// Verdict summarizes the report in a sentence.
func (r *Report) Verdict() string {
	said := "No fault was found"
	if r.Faults > 0 {
		said = plural(r.Faults, "fault") + " found"
	}
	if r.Remarks > 0 {
		said += ", and " + plural(r.Remarks, "remark")
	}
	return fmt.Sprintf("%s, in %.1f s.", said, r.Seconds)
}

func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
