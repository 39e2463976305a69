package grounding

// Rejection is a claim of an answer that was not accepted.
type Rejection struct {
	Class string `json:"class"`
	Quote string `json:"quote"` // its first 200 characters
	// Reason is one of the constants below. The first fault may follow [InvalidAttributes]. The attribute follows
	// [AttributeNotInQuote]. [MergeAnswers] may report [Unreadable] for a first answer that could not be read.
	Reason string `json:"reason"`
}

// Reasons for a rejection.
const (
	NotAnObject         = "not_an_object"
	UndeclaredClass     = "class_undeclared"
	EmptyQuote          = "quote_empty"
	QuoteTooLong        = "quote_too_long"
	QuoteNotFound       = "quote_not_found"
	InvalidAttributes   = "attributes_invalid"
	AttributeNotInQuote = "attribute_not_in_quote" // the value of a verbatim attribute is not in the quote
	InferredNotAllowed  = "inferred_not_allowed"
	TooManyOfClass      = "too_many_of_class"
	TooManyItems        = "too_many_items"
	Conflict            = "conflict" // another item has the same class and place but other attributes
)
