package receipts

// Kind distinguishes the calls with the status failed. Only [KindFailed] counts as a failure.
type Kind string

// The kinds of calls with the status failed.
const (
	KindFailed    Kind = "failed"
	KindRefused   Kind = "refused"   // a rule, a limit, a person or the tool's terms refused it, as intended
	KindCancelled Kind = "cancelled" // its cancellation was requested
)

// Kind returns the kind of a failed call by its error code. In SQL it is gem.failure_kind.
func (c Code) Kind() Kind {
	switch c {
	case RuleBlocked, LimitReached, ApprovalDenied, ApprovalExpired, RuleError, NotAllowed, KeyReused:
		return KindRefused
	case Cancelled:
		return KindCancelled
	}
	return KindFailed
}

// Ended returns the word that counts and lists use for a call: its status, or its kind if the status is failed.
func Ended(status string, code Code) string {
	if status == string(Failed) {
		return string(code.Kind())
	}
	return status
}
