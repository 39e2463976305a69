package migrations

import "time"

// The number of the functions, their files in order, and the hash of all of them.
var (
	FunctionsNumber = functionsNumber
	FunctionFiles   = functionFiles
)

func FunctionsHash() (string, error) {
	whole, err := allFunctions()
	return whole.sha256(), err
}

// LimitCounts sets the time for a count of rows, and returns a function that sets it back.
func LimitCounts(to string) (back func()) {
	was := countLimit
	countLimit = to
	return func() { countLimit = was }
}

// LimitPatience sets how long a migration waits for locks, and returns a function that sets it back.
func LimitPatience(to time.Duration) (back func()) {
	was := lockPatience
	lockPatience = to
	return func() { lockPatience = was }
}
