package pgpool

import "time"

// CancelWithin sets how long the server may take to cancel a statement.
func CancelWithin(o *Options, limit time.Duration) { o.cancelWithin = limit }
