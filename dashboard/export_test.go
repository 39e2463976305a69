package dashboard

import "time"

// Watched pages are read more often, so that tests need not wait.
func init() {
	pace.beat, pace.page, pace.comment = 20*time.Millisecond, 40*time.Millisecond, 100*time.Millisecond
}
