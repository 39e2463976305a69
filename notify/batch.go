package notify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Notice is an event that people may be notified of.
type Notice struct {
	Kind    string
	Subject string // the id of the call, or the name of the budget or of the schedule
	Tool    string
	Code    string // an error code; of a budget, the percentage; of a schedule, what happened
	At      time.Time
	// About describes a question, or a notice that was not delivered, as gem.take_notices returns it.
	About json.RawMessage
}

// Batch is a group of notices that one call delivers through a channel.
type Batch struct {
	Channel   string      `json:"channel"`
	Kind      string      `json:"kind"`
	Tool      string      `json:"tool"`
	Code      string      `json:"code"`
	Subject   string      `json:"subject"` // empty if different subjects are counted together
	Count     int64       `json:"count"`
	FirstAt   time.Time   `json:"first_at"`
	LastAt    time.Time   `json:"last_at"`
	Recent    []time.Time `json:"recent"` // of the kind failing: the last failures
	First     first       `json:"notice"`
	EveryMS   int64       `json:"every_ms"`
	Failed    *int        `json:"failed"` // of the kind failing
	WithinMS  *int64      `json:"within_ms"`
	Otherwise string      `json:"otherwise,omitempty"` // the channel that is notified if the delivery fails
}

// first is the stored description of the first notice of a batch.
type first struct {
	Kind     string `json:"kind"`
	Subject  string `json:"subject"`
	Tool     string `json:"tool"` // of a question: the tool that it is about
	Code     string `json:"code"`
	Asks     string `json:"asks,omitempty"`  // of a question: wait.answer or wait.approval
	Asker    string `json:"asker,omitempty"` // of a question: rule, handler or user
	Question string `json:"question,omitempty"`
	Failed   int    `json:"failed,omitempty"` // of the kind failing, like Within
	Within   string `json:"within,omitempty"`
	Through  string `json:"through,omitempty"` // the channel that did not deliver it
	Count    int64  `json:"count,omitempty"`   // of a batch that was delivered
}

// Batches returns the batches of some notices, one for each channel, kind, tool and code. A notice that no rule matches
// is not in any batch.
func (s *Set) Batches(notices []Notice) (all []*Batch) {
	known := map[[5]string]*Batch{}
	for _, n := range notices {
		for _, b := range s.batchesOf(n) {
			key := [5]string{b.Channel, b.Kind, b.Tool, b.Code, b.Subject}
			earlier := known[key]
			if earlier == nil {
				known[key] = b
				all = append(all, b)
				continue
			}
			earlier.Count += b.Count
			earlier.LastAt = b.LastAt
			earlier.Recent = append(earlier.Recent, b.Recent...)
		}
	}
	return all
}

// batchesOf returns a batch with this notice alone for each channel that delivers it.
func (s *Set) batchesOf(n Notice) (all []*Batch) {
	if n.Kind == Undelivered {
		return s.undelivered(n)
	}
	var about struct {
		Tool, Asker, Question string
		Roles                 []string
	}
	_ = json.Unmarshal(n.About, &about) // SQL wrote it
	content := first{Kind: n.Kind, Subject: n.Subject, Tool: cmp.Or(about.Tool, n.Tool), Code: n.Code,
		Asker: about.Asker, Question: about.Question}
	if n.Kind == Question {
		content.Asks = n.Tool
	}
	for i := range s.rules {
		r := &s.rules[i]
		if !r.matches(n, content.Tool, about.Roles) {
			continue
		}
		for _, channel := range r.To {
			same := func(b *Batch) bool { return r.When != Failing && b.Channel == channel && b.Kind == r.When }
			if i := slices.IndexFunc(all, same); i >= 0 { // both rules apply: the shorter pause, and the first else
				b := all[i]
				b.EveryMS = min(b.EveryMS, time.Duration(r.Every).Milliseconds())
				b.Otherwise = cmp.Or(b.Otherwise, r.Else)
				if b.EveryMS == 0 {
					b.Subject = n.Subject
				}
				continue
			}
			b := &Batch{Channel: channel, Kind: r.When, Tool: content.Tool, Code: n.Code, Count: 1, FirstAt: n.At, LastAt: n.At,
				Recent: []time.Time{}, First: content, EveryMS: time.Duration(r.Every).Milliseconds(), Otherwise: r.Else}
			if !s.channels[channel].Text {
				b.First.Question = ""
			}
			if r.Every == 0 || r.When == Budget || r.When == Schedule {
				b.Subject = n.Subject
			}
			if r.When == Failing {
				within := time.Duration(r.Within).Milliseconds()
				b.First.Kind, b.First.Failed, b.First.Within = Failing, r.Failed, time.Duration(r.Within).String()
				b.Code, b.Subject = fmt.Sprintf("%d in %s", r.Failed, b.First.Within), ""
				b.Recent, b.Failed, b.WithinMS = []time.Time{n.At}, &r.Failed, &within
			}
			all = append(all, b)
		}
	}
	return all
}

// undelivered returns the batch that notifies the "else" channel of a failed delivery.
func (s *Set) undelivered(n Notice) []*Batch {
	var about struct {
		Notice             first
		Channel, Otherwise string
	}
	if json.Unmarshal(n.About, &about) != nil || about.Otherwise == "" {
		return nil
	}
	content := about.Notice
	content.Through = about.Channel
	return []*Batch{{Channel: about.Otherwise, Kind: Undelivered, Tool: content.Tool, Code: content.Code,
		Subject: n.Subject, Count: max(1, content.Count), FirstAt: n.At, LastAt: n.At, Recent: []time.Time{},
		First: content}}
}

// matches reports whether a rule matches a notice. tool is the tool of the notice, or the one that a question is about.
// roles are the roles of the people who may answer.
func (r *rule) matches(n Notice, tool string, roles []string) bool {
	switch {
	case r.When != n.Kind && (r.When != Failing || n.Kind != Failed):
		return false
	case r.Tools != nil && !slices.ContainsFunc(r.Tools, func(pattern string) bool { return covers(pattern, tool) }):
		return false
	case r.Roles != nil && !slices.ContainsFunc(r.Roles, func(role string) bool {
		return slices.Contains(roles, "role:"+role)
	}):
		return false
	case r.Codes != nil && !slices.Contains(r.Codes, n.Code):
		return false
	case r.At != nil:
		mark, err := strconv.Atoi(n.Code)
		return err == nil && slices.Contains(r.At, mark)
	}
	return true
}

// covers reports whether a pattern such as leads.create or leads.* matches the name of a tool.
func covers(pattern, tool string) bool {
	family, all := strings.CutSuffix(pattern, "*")
	return pattern == tool || all && strings.HasPrefix(tool, family)
}
