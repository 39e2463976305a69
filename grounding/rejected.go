package grounding

// Rejected is what an answer claimed and does not count.
type Rejected struct {
	Class string `json:"class"`
	Quote string `json:"quote"` // its first 200 characters
	// one of the constants below, or Unreadable of a first answer; of InvalidAttributes the first fault follows, of
	// AttributeNotInQuote the attribute
	Reason string `json:"reason"`
}

// The reasons why an item is rejected.
const (
	NotAnObject         = "not_an_object"
	UndeclaredClass     = "class_undeclared"
	EmptyQuote          = "quote_empty"
	QuoteTooLong        = "quote_too_long"
	QuoteNotFound       = "quote_not_found"
	InvalidAttributes   = "attributes_invalid"
	AttributeNotInQuote = "attribute_not_in_quote" // its value must be verbatim
	InferredNotAllowed  = "inferred_not_allowed"
	TooManyOfClass      = "too_many_of_class"
	TooManyItems        = "too_many_items"
	Conflict            = "conflict" // an item of the same class is at the same place with other attributes
)
