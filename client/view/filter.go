package view

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Filter selects the calls to list. The zero value lists the newest. It corresponds to the URL of the dashboard's
// /calls, see [Filter.Values], and to the flags of gem list.
type Filter struct {
	// State is one of [States]; empty means any.
	State string
	// Tool, Caller and Session are the calls' complete tool_name, created_by and session_id; empty means any. The
	// Tool [NoTool] selects calls of an earlier GEM that have none.
	Tool, Caller, Session string
	// Key is the complete key of a call, computed or chosen by its client; empty means any.
	Key string
	// Code is the error code of a call with the status failed, or failed if an earlier GEM recorded none; empty means
	// any.
	Code string
	// Text is a part of the tool's name, the error's message, the caller, the session or the key, ignoring case;
	// empty means any.
	Text string
	// From and To limit the time that orders the list, see [Page]: at or after From, and before To. Zero means no
	// limit.
	From, To time.Time
	// Before is where the previous page ended: its Next, or its LookFurther. Empty means the beginning.
	Before string
	// Limit is the number of calls on a page: at most 500; 0 means 50.
	Limit int
}

// States are the values of [Filter.State]: the statuses of calls, and scheduled (queued until a future time, which
// queued excludes), open (not ended) and ended. The state failed excludes refused and cancelled calls, which also
// have the status failed.
var States = []string{"queued", "scheduled", "waiting", "running", "succeeded", "failed", "refused", "cancelled",
	"not_configured",
	"open", "ended"}

// FilterError names the invalid value of a filter, and the reason.
type FilterError struct{ Name, Message string }

func (e *FilterError) Error() string { return e.Name + ": " + e.Message }

// NoTool is the [Filter.Tool] of calls that name no tool.
const NoTool = " "

const mostCalls = 500 // of a page

// ParseFilter reads a filter from the query of a URL: state, tool, caller, session, key, code, q, from, to, before and
// limit. Other names are ignored. Its errors are [*FilterError].
func ParseFilter(v url.Values) (f Filter, err error) {
	f = Filter{State: v.Get("state"), Tool: v.Get("tool"), Caller: v.Get("caller"), Session: v.Get("session"),
		Key: v.Get("key"), Code: v.Get("code"),
		Text: strings.TrimSpace(v.Get("q")), Before: v.Get("before")}
	for name, at := range map[string]*time.Time{"from": &f.From, "to": &f.To} {
		if *at, err = ParseTime(v.Get(name)); err != nil {
			return Filter{}, &FilterError{name, err.Error()}
		}
	}
	if limit := v.Get("limit"); limit != "" {
		if f.Limit, err = strconv.Atoi(limit); err != nil {
			return Filter{}, &FilterError{"limit", fmt.Sprintf("%q is not a number", limit)}
		}
	}
	return f, f.check()
}

// ParseTime reads a time: RFC 3339, the same without seconds or without a zone, or a date. Without a zone it is UTC.
// The empty text is the zero time.
func ParseTime(text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04",
		"2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err = time.Parse(layout, text); err == nil && t.Year() >= 1 {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as 2026-01-31T09:30:00Z or 2026-01-31", text)
}

// check returns a FilterError for a value that no list can have.
func (f Filter) check() error {
	for name, value := range map[string]string{"state": f.State, "tool": f.Tool, "caller": f.Caller, "session": f.Session,
		"key": f.Key, "code": f.Code,
		"q": f.Text, "before": f.Before} {
		if len(value) > 2000 || !valid(value) {
			return &FilterError{name, "it is longer than 2,000 bytes, or not text that Postgres can store"}
		}
	}
	switch {
	case f.State != "" && !slices.Contains(States, f.State):
		return &FilterError{"state", fmt.Sprintf("%q is not one of %s", f.State, strings.Join(States, ", "))}
	case f.Limit < 0 || f.Limit > mostCalls:
		return &FilterError{"limit", fmt.Sprintf("%d is not from 1 to %d", f.Limit, mostCalls)}
	case !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To):
		return &FilterError{"to", "it must be after from"}
	}
	return nil
}

// valid reports whether Postgres can store a text.
func valid(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Values returns the filter as the query of a URL, which ParseFilter reads.
func (f Filter) Values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{"state": f.State, "tool": f.Tool, "caller": f.Caller, "session": f.Session,
		"key": f.Key, "code": f.Code,
		"q": f.Text, "before": f.Before} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !at.IsZero() {
			v.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Limit != 0 {
		v.Set("limit", strconv.Itoa(f.Limit))
	}
	return v
}
