package watch

import (
	"context"
	"time"
)

// Minute is a point of a plot: what ended in the Step seconds from At on.
type Minute struct {
	At   time.Time `json:"at"`
	Step int       `json:"step"` // seconds: 60 for up to 6 h, 300 up to 30 h, 900 beyond
	Totals
	// Cost is that of requests to models which began then, in 10⁻⁹ USD: what providers took, and what is reserved where that is not known.
	Cost     int64 `json:"cost,omitempty"`
	Requests int   `json:"requests,omitempty"` // to models
}

// Minutes returns the points from one time to another, without gaps: at most the last 72 h, of one tool, or of all if tool is empty. Cost counts
// all tools' or the tool's requests, 100,000 at most.
func Minutes(ctx context.Context, db DB, from, to time.Time, tool string) ([]Minute, error) {
	return nil, nil
}
