package llmtest

import (
	"fmt"
	"net/http"
	"time"
)

// FaultKind is the kind of a fault.
type FaultKind string

// The kinds. A refused connection and a TLS error have no request: see [Refused] and Options.TLS.
const (
	None FaultKind = ""
	// FailedStatus answers with Status and the dialect's error. It uses Message, Retry and RetryForm.
	FailedStatus FaultKind = "status"
	// TooLong answers with 400 and the provider's error for a prompt that does not fit the model.
	TooLong FaultKind = "prompt too long"
	// Redirected answers with Status (default 307) and a redirect to Location.
	Redirected FaultKind = "redirect"
	// Silent never sends a header.
	Silent FaultKind = "hang before headers"
	// Hanging begins the answer and sends a sign of life every Every, but no content.
	Hanging FaultKind = "hang before content"
	// ErrorFirst sends an error as the first event of a response with 200.
	ErrorFirst FaultKind = "error event first"
	// ErrorLate sends an error event after After deltas.
	ErrorLate FaultKind = "error event late"
	// Reset resets the connection after After deltas. With a negative After it does so before the headers.
	Reset FaultKind = "reset"
	// Broken ends the connection after After deltas, in the middle of the body.
	Broken FaultKind = "broken connection"
	// CleanCut ends the body normally after After deltas, but without its terminal event.
	CleanCut FaultKind = "clean cut"
	// Stalled sends nothing after After deltas, except signs of life if Every is set.
	Stalled FaultKind = "stall"
	// Garbage sends an event that is not JSON after After deltas, and then the rest.
	Garbage FaultKind = "garbage"
	// EndlessLine sends an endless line (64 MiB) after After deltas.
	EndlessLine FaultKind = "endless line"
	// NoUsage sends a complete answer without usage.
	NoUsage FaultKind = "usage missing"
	// FinishedTwice sends a complete answer and its end twice.
	FinishedTwice FaultKind = "finish twice"
)

// RetryForm is the form in which a provider requests a pause.
type RetryForm string

// The forms.
const (
	InSeconds      RetryForm = "seconds"
	InMilliseconds RetryForm = "milliseconds"
	AtDate         RetryForm = "date"
	InRetryInfo    RetryForm = "RetryInfo" // Gemini's form, only in the body
)

// Fault is the fault of an answer. The zero value leaves the answer as it should be.
type Fault struct {
	Kind FaultKind
	// Status is the status of the response, or the one that an error event names. The default in an event is 503.
	Status int
	// After is the number of deltas before the fault.
	After int
	// Every is the time between signs of life. The default for Hanging is 5 ms.
	Every time.Duration
	// Retry is the requested pause, in the form RetryForm. With 0 no pause is requested.
	Retry     time.Duration
	RetryForm RetryForm
	// Message is the provider's message. By default it depends on the status.
	Message string
	// Location is the target of a redirect.
	Location string
	// Raw replaces the event of ErrorFirst, ErrorLate and Garbage, or the body of FailedStatus.
	Raw string
}

// Status returns a fault that answers with an error status.
func Status(status int) Fault { return Fault{Kind: FailedStatus, Status: status} }

// Limited returns a fault that answers with 429 and requests a pause.
func Limited(retry time.Duration, form RetryForm) Fault {
	return Fault{Kind: FailedStatus, Status: http.StatusTooManyRequests, Retry: retry, RetryForm: form}
}

// After returns a fault of a kind after a number of deltas.
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

// Faults returns one fault of each kind that a request can meet, in a fixed order: first those before any content.
func Faults() []Fault {
	return append(EarlyFaults(), LateFaults()...)
}

// EarlyFaults returns the faults before any content.
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

// LateFaults returns the faults after content, and those of a complete answer (NoUsage, FinishedTwice).
func LateFaults() []Fault {
	return []Fault{
		After(3, ErrorLate), After(3, Reset), After(3, Broken), After(3, CleanCut), After(3, Stalled), After(3, Garbage),
		After(3, EndlessLine),
		{Kind: NoUsage}, {Kind: FinishedTwice},
	}
}
