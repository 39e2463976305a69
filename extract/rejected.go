package extract

// Rejected is what an answer claimed and does not count.
type Rejected struct {
	Class  string `json:"class"`
	Quote  string `json:"quote"` // its first 200 characters
	Reason string `json:"reason"`
}
