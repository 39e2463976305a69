package watch

import "time"

// Filter says which calls to list. The zero value lists the newest. It is the URL of the dashboard's /calls, see [Filter.Values], and the
// flags of gem list.
type Filter struct {
	// State is one of [States]; empty means any.
	State string
	// Tool, Caller and Session are the calls' tool_name, created_by and session_id, whole; empty means any.
	Tool, Caller, Session string
	// Key is the computed key of a call, or the one that its client chose, whole; empty means any.
	Key string
	// Code is the error code with which a call failed; empty means any.
	Code string
	// Text is a part of the tool's name, the error's message, the caller, the session or the key, in upper or lower case; empty means any.
	Text string
	// From and To bound the time by which the list is ordered, see [Page]: From on, before To. Zero means no bound.
	From, To time.Time
	// Before is where the page before ended: its Next, or its LookFurther. Empty means the beginning.
	Before string
	// Limit is how many calls a page has: 50 if it is 0, at most 500.
	Limit int
}

// States are the values of [Filter.State]: the statuses of calls, and scheduled (queued until a time that has not come, which queued leaves
// out), open (all that have not ended) and ended.
var States = []string{"queued", "scheduled", "waiting", "running", "succeeded", "failed", "not_configured", "open", "ended"}
