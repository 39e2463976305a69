package provider

import (
	"net/http"
	"time"
)

// The codes with which a call fails after an error of a model.
const (
	CodeContextTooLong      = "context_too_long"
	CodeRequestTooLarge     = "request_too_large"
	CodeProviderRefused     = "provider_refused"
	CodeProviderAuth        = "provider_auth"
	CodeRateLimited         = "rate_limited"
	CodeProviderUnavailable = "provider_unavailable"
	CodeStreamCut           = "stream_cut"
	CodeFirstContentLate    = "first_content_late"
	CodeAnswerTooLarge      = "answer_too_large"
)

// Failover determines which other targets may be asked in the same attempt, as long as no content was seen.
type Failover string

// The targets that may be asked.
const (
	ToNone   Failover = "none" // the request itself is at fault
	ToLarger Failover = "larger"
	ToAny    Failover = "any"
)

// Judgment determines the handling of a kind of error if no content was seen before it.
type Judgment struct {
	// Code is the code of the call's failure.
	Code string
	// Retry: the same request may succeed later.
	Retry    bool
	Failover Failover
	// Cooldown is the target's cooldown; 0 means none. See [Error.Cooldown].
	Cooldown time.Duration
	// Operator means that time alone does not resolve the cause: somebody must correct a key or the name of a model.
	Operator bool
	// Counted: the provider may be down, so the error counts towards a cooldown of the target.
	Counted bool
	// Taken means that the provider accepted the request, and charges for its input.
	Taken bool
}

const (
	afterLimit   = 30 * time.Second // if the provider gives no time
	afterRefusal = 10 * time.Minute // a key that does not work, or a model that does not exist
)

// judgments has each kind of error.
var judgments = map[ErrorKind]Judgment{
	Unreachable:   {Code: CodeProviderUnavailable, Retry: true, Failover: ToAny, Counted: true},
	Unauthorized:  {Code: CodeProviderAuth, Failover: ToAny, Cooldown: afterRefusal, Operator: true},
	NotFound:      {Code: CodeProviderRefused, Failover: ToAny, Cooldown: afterRefusal, Operator: true},
	BadRequest:    {Code: CodeProviderRefused, Failover: ToNone},
	TooLarge:      {Code: CodeRequestTooLarge, Failover: ToNone},
	ContextLength: {Code: CodeContextTooLong, Failover: ToLarger},
	RateLimited:   {Code: CodeRateLimited, Retry: true, Failover: ToAny, Cooldown: afterLimit},
	Overloaded:    {Code: CodeProviderUnavailable, Retry: true, Failover: ToAny, Cooldown: afterLimit, Counted: true},
	Unavailable:   {Code: CodeProviderUnavailable, Retry: true, Failover: ToAny, Counted: true},
	Late:          {Code: CodeFirstContentLate, Retry: true, Failover: ToAny, Counted: true, Taken: true},
	Stalled:       {Code: CodeProviderUnavailable, Retry: true, Failover: ToAny, Counted: true},
	Cut:           {Code: CodeStreamCut, Retry: true, Failover: ToAny, Counted: true, Taken: true},
	Garbled:       {Code: CodeProviderUnavailable, Retry: true, Failover: ToAny, Counted: true, Taken: true},
	AnswerTooBig:  {Code: CodeAnswerTooLarge, Failover: ToNone, Taken: true},
}

// Judge returns the judgment of a kind of error. An unknown kind may be temporary, and does not count against the
// provider.
func Judge(kind ErrorKind) Judgment {
	if j, known := judgments[kind]; known {
		return j
	}
	return Judgment{Code: CodeProviderUnavailable, Retry: true, Failover: ToAny}
}

// AfterContent returns the judgment once content was seen: no other target may continue the answer, which was cut.
func (j Judgment) AfterContent() Judgment {
	if j.Code != CodeAnswerTooLarge {
		j.Code, j.Retry = CodeStreamCut, true
	}
	j.Failover = ToNone
	return j
}

// Cooldown returns how long the target cools down after this error, or 0. If such errors lead to a cooldown, the
// provider's requested time overrides the default. A 503 is not a limit: it counts as a failure of the provider unless
// it has a time to wait.
func (e *Error) Cooldown() time.Duration {
	j := Judge(e.Kind)
	switch {
	case j.Cooldown == 0 || j.Operator:
		return j.Cooldown
	case e.RetryAfter > 0:
		return e.RetryAfter
	case e.Kind == Overloaded && e.Status == http.StatusServiceUnavailable:
		return 0
	}
	return j.Cooldown
}
