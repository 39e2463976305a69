package llmtest

import (
	"fmt"
	"net/http"
	"time"
)

// FaultKind is the kind of a fault.
type FaultKind string

// The kinds. A connection that is refused, and a TLS error, have no request: see [Refused] and Options.TLS.
const (
	None FaultKind = ""
	// FailedStatus: Status, with the dialect's error. Message, Retry and RetryForm count.
	FailedStatus FaultKind = "status"
	// TooLong: a 400 that says, in the provider's words, that the prompt does not fit the model.
	TooLong FaultKind = "prompt too long"
	// Redirected: Status (307) to Location.
	Redirected FaultKind = "redirect"
	// Silent: no header ever comes.
	Silent FaultKind = "hang before headers"
	// Hanging: the answer begins, signs of life come every Every, and no content.
	Hanging FaultKind = "hang before content"
	// ErrorFirst: the first event is an error, in a response of 200.
	ErrorFirst FaultKind = "error event first"
	// ErrorLate: an error event comes after After deltas.
	ErrorLate FaultKind = "error event late"
	// Reset: the connection is reset after After deltas. A negative After: before the headers.
	Reset FaultKind = "reset"
	// Broken: the connection ends after After deltas, in the middle of the body.
	Broken FaultKind = "broken connection"
	// CleanCut: the body ends after After deltas as a whole one would, and without its terminal event.
	CleanCut FaultKind = "clean cut"
	// Stalled: nothing comes after After deltas, but signs of life if there is an Every.
	Stalled FaultKind = "stall"
	// Garbage: an event that is not JSON comes after After deltas, and then the rest.
	Garbage FaultKind = "garbage"
	// EndlessLine: a line that does not end (64 MiB) comes after After deltas.
	EndlessLine FaultKind = "endless line"
	// NoUsage: the answer is whole, and says nothing of usage.
	NoUsage FaultKind = "usage missing"
	// FinishedTwice: the answer is whole, and its end comes twice.
	FinishedTwice FaultKind = "finish twice"
)

// RetryForm says how a provider asks for a pause.
type RetryForm string

// The forms.
const (
	InSeconds      RetryForm = "seconds"
	InMilliseconds RetryForm = "milliseconds"
	AtDate         RetryForm = "date"
	InRetryInfo    RetryForm = "RetryInfo" // Gemini's: in the body alone
)

// Fault is what goes wrong. The zero value is nothing.
type Fault struct {
	Kind FaultKind
	// Status is the response's, or the one that an error event names. Default: 503 in an event.
	Status int
	// After is how many deltas come first.
	After int
	// Every is the time between signs of life. Default for Hanging: 5 ms.
	Every time.Duration
	// Retry is the pause that is asked for, in RetryForm. 0: none.
	Retry     time.Duration
	RetryForm RetryForm
	// Message is the provider's. Default: one for the status.
	Message string
	// Location is where a redirect leads.
	Location string
	// Raw is sent in place of the event of ErrorFirst, ErrorLate and Garbage, or of the body of FailedStatus.
	Raw string
}

// Status answers with an error status.
func Status(status int) Fault { return Fault{Kind: FailedStatus, Status: status} }

// Limited answers with 429 and asks for a pause.
func Limited(retry time.Duration, form RetryForm) Fault {
	return Fault{Kind: FailedStatus, Status: http.StatusTooManyRequests, Retry: retry, RetryForm: form}
}

// After returns the fault of a kind, after so many deltas.
func After(deltas int, kind FaultKind) Fault { return Fault{Kind: kind, After: deltas} }

func (f Fault) String() string {
	switch f.Kind {
	case None:
		return "no fault"
	case FailedStatus:
		if f.RetryForm != "" {
			return fmt.Sprintf("%d, %s in %s", f.Status, f.Retry, f.RetryForm)
		}
		return fmt.Sprint(f.Status)
	case ErrorLate, Reset, Broken, CleanCut, Stalled, Garbage, EndlessLine:
		return fmt.Sprintf("%s after %d", f.Kind, f.After)
	}
	return string(f.Kind)
}

// Faults returns one of each that a request can meet, in an order that does not change: those before any content first.
func Faults() []Fault {
	return append(EarlyFaults(), LateFaults()...)
}

// EarlyFaults are the faults before any content.
func EarlyFaults() []Fault {
	var list []Fault
	for _, status := range []int{400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529} {
		list = append(list, Status(status))
	}
	return append(list,
		Limited(7*time.Second, InSeconds), Limited(7*time.Second, InMilliseconds), Limited(7*time.Second, AtDate),
		Limited(7*time.Second, InRetryInfo),
		Fault{Kind: TooLong}, Fault{Kind: Redirected}, Fault{Kind: Silent}, Fault{Kind: Hanging}, Fault{Kind: ErrorFirst},
		After(-1, Reset), After(0, Reset), After(0, Broken), After(0, CleanCut), After(0, Stalled), After(0, Garbage),
		After(0, EndlessLine))
}

// LateFaults are the faults after content, and those of a whole answer (NoUsage, FinishedTwice).
func LateFaults() []Fault {
	return []Fault{
		After(3, ErrorLate), After(3, Reset), After(3, Broken), After(3, CleanCut), After(3, Stalled), After(3, Garbage),
		After(3, EndlessLine),
		{Kind: NoUsage}, {Kind: FinishedTwice},
	}
}
