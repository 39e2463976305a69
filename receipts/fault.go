package receipts

// Fault is one defect of an input or an output. The receipt of a validation_error lists its faults in this form.
type Fault struct {
	// Path is the JSON pointer of the value, "" for the whole document. For a missing property it is the pointer that the
	// property would have. A path of more than 500 characters is cut.
	Path string `json:"path"`
	// Keyword is the keyword of the schema that refuses the value. Other faults have json (not one JSON value), size (too
	// large, or too expensive to check), depth (nested too deeply), number (too many digits, or too large an exponent),
	// nul or unicode (text that Postgres cannot store), schema (the check itself failed), or more (the last of too many
	// faults).
	Keyword string `json:"keyword"`
	// Message is a sentence for a person, of at most 300 characters. It quotes the schema, and at most one character of
	// the value.
	Message string `json:"message"`
}
