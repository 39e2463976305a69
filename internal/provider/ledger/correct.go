package ledger

import (
	"context"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
)

// Correction changes the spending of a budget in its current period, for example because an invoice differs from the
// ledger.
type Correction struct {
	Budget, Subject string         // as in [Budget]
	Amount          provider.Money // below 0: a refund
	Reason          string
}

// Corrected is the budget after a correction.
type Corrected struct {
	Budget   string         `json:"budget"`
	Subject  string         `json:"subject,omitempty"`
	Period   Period         `json:"period"`
	Starts   time.Time      `json:"starts"`
	ResetsAt time.Time      `json:"resets_at"`
	Spent    provider.Money `json:"spent_usd"`
	Reserved provider.Money `json:"reserved_usd"`
}

// Make writes the correction. Its author is the login role, which must own the tables or be a member of gem_operator.
func (c Correction) Make(ctx context.Context, db handlers.DB) (Corrected, error) {
	is := Corrected{Budget: c.Budget, Subject: c.Subject}
	err := db.QueryRow(ctx, "select period, starts, ends, spent, reserved from gem.llm_correct($1, $2, $3, '', $4)",
		c.Budget, c.Subject, int64(c.Amount),
		c.Reason).Scan(&is.Period, &is.Starts, &is.ResetsAt, &is.Spent, &is.Reserved)
	is.Starts, is.ResetsAt = is.Starts.UTC(), is.ResetsAt.UTC()
	return is, err
}
