// Package store is the Go face of the state machine in SQL: a Go function for every gem function that a worker calls, and for
// reading receipts and journals. The rules are in the SQL; nothing is decided here.
//
// A statement that moves a call names the attempt that moves it. When that attempt no longer has the call, the statement
// changes nothing and its error is [IsNotHeld].
package store

import "github.com/gemworker/gem/handlers"

// DB runs statements: a pool, a connection or a transaction.
type DB = handlers.DB

// Attempt is one run of a call. It is the fence: a call is moved only by the attempt that claimed it last.
type Attempt struct {
	CallID   string
	Number   int // counts the claims of the call, from 1
	WorkerID string
}

// split returns attempts as the two arrays that the gem functions take.
func split(attempts []Attempt) (ids []string, numbers []int) {
	ids, numbers = make([]string, len(attempts)), make([]int, len(attempts))
	for i, a := range attempts {
		ids[i], numbers[i] = a.CallID, a.Number
	}
	return ids, numbers
}
