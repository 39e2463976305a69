package prose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// IsQuestion reports whether the calls to a tool take one answer, without a name.
func IsQuestion(tool string) bool { return slices.Contains(registry.Asking, tool) }

// Ending describes in one line how a call ended.
func Ending(r *receipts.Receipt) string {
	said := string(r.Status)
	if r.ReplayOf != "" {
		said += " by repeating receipt " + r.ReplayOf
	}
	if run := Span(Milliseconds(r.DurationMS)); r.DurationMS > 0 && durable(r) {
		said += ", its last run in " + run
	} else if r.DurationMS > 0 {
		said += " in " + run
	}
	return said + ": " + Upshot(r)
}

// durable reports whether the receipt belongs to a handler with a journal, which runs again after each wait.
func durable(r *receipts.Receipt) bool {
	var effects receipts.Effects
	return json.Unmarshal(r.Effects, &effects) == nil && effects.Durable != nil
}

// EventData is the data of a journal's events. Fields that an event does not have are empty.
type EventData struct {
	Was        string         `json:"was"`
	RunAt      time.Time      `json:"run_at"`
	Priority   int            `json:"priority"`
	Needs      string         `json:"needs"`
	HeldBy     string         `json:"held_by"`
	Name       string         `json:"name"` // of a step, or a call
	Names      []string       `json:"names"`
	For        []string       `json:"for"`
	CleanUp    bool           `json:"clean_up"`
	CallID     string         `json:"call_id"`
	Tool       string         `json:"tool"`
	Status     string         `json:"status"`
	LostWorker string         `json:"lost_worker"`
	Error      receipts.Error `json:"error"`

	Rules []string `json:"rules"` // that delayed it, or ask
	Place string   `json:"place"` // the rule for whose place it waits

	Value json.RawMessage `json:"value"` // of an answer
	By    string          `json:"by"`    // who answered, cancelled or repeated the call

	Login   string `json:"login"` // of the person in `by`
	Reason  string `json:"reason"`
	AgainOf string `json:"again_of"`

	Code struct{ Name, Message string } `json:"code"` // why it waits for code
	Kind string                         `json:"kind"` // of a step

	Result json.RawMessage `json:"result"` // of a step
}

// DataOf reads the data of an event.
func DataOf(e receipts.Event) (d EventData) {
	_ = json.Unmarshal(e.Data, &d)
	return d
}

func (d EventData) act() client.Act { return client.Act{By: d.By, Login: d.Login, Reason: d.Reason} }

// Person names the person who acted.
func Person(a client.Act) string {
	switch {
	case a.By == "":
		return "someone"
	case a.Login != "":
		return fmt.Sprintf("%s (by the login %s)", Cut(Printable(a.By), 100), Cut(Printable(a.Login), 100))
	}
	return Cut(Printable(a.By), 100)
}

// Because returns the reason, if there is one.
func Because(a client.Act) string {
	if a.Reason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", Cut(Printable(a.Reason), 300))
}

// Named lists names of a journal: the names of answers begin with #.
func Named(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = name
		if answer, ok := strings.CutPrefix(name, "#"); ok {
			all[i] = strings.TrimSuffix("the answer "+answer, " answer")
		}
	}
	return Printable(strings.Join(all, ", "))
}

// under names an answer, unless it has the default name.
func under(name string) string {
	if name = strings.TrimPrefix(name, "#"); name == "answer" {
		return ""
	}
	return " under the name " + Printable(name)
}

// Happened describes an event of a journal.
func Happened(e receipts.Event) string {
	data := DataOf(e)
	switch e.Event {
	case "imported":
		return fmt.Sprintf("taken over from an earlier GEM, where its status was %q", data.Was)
	case "queued":
		said := "inserted"
		if data.AgainOf != "" {
			said = fmt.Sprintf("%s repeated the call %s%s", Person(data.act()), Printable(data.AgainOf),
				Because(data.act()))
		}
		if data.RunAt.Sub(e.At) > time.Millisecond {
			said += ", to run no earlier than " + Moment(data.RunAt)
		}
		if data.Priority != 0 {
			said += ", priority " + strconv.Itoa(data.Priority)
		}
		return said
	case "claimed":
		return "the worker claimed it"
	case "waiting":
		if data.Code.Message != "" {
			said := "no program can continue it: " + Cut(Printable(data.Code.Message), 200)
			if data.Code.Name != "" {
				said += " The name is " + Cut(Printable(data.Code.Name), 200) + "."
			}
			return said
		}
		if data.Place != "" {
			return "as many calls run as " + TheRules([]string{data.Place}, "") + " allows: it waits for a place"
		}
		if AsksPeople(data.For) {
			return "an approval is required by " + TheRules(data.Rules, "")
		}
		if len(data.For) > 0 {
			if e.Attempt == 0 {
				return "it waits for " + Cut(Named(data.For), 200)
			}
			if data.CleanUp {
				return "its handler cleans up, and waits for " + Cut(Named(data.For), 200)
			}
			return "its handler waits for " + Cut(Named(data.For), 200)
		}
		return "another call runs with the same key, so it waits for that call: " + data.HeldBy
	case "woken":
		return "back in the queue"
	case "delayed":
		return "scheduled by " + TheRules(data.Rules, "") + ", to run in " + Span(data.RunAt.Sub(e.At))
	case "ruled":
		return ruling(e.Data)
	case "called":
		if AsksPeople([]string{data.Name}) {
			return "the question to people: " + data.CallID
		}
		return fmt.Sprintf("its handler makes a call to %s under the name %s: %s", Cut(data.Tool, 200), data.Name,
			data.CallID)
	case "returned":
		if AsksPeople([]string{data.Name}) {
			if data.Status == "succeeded" { // whatever they decided
				return "a question to people has ended"
			}
			return "a question to people has ended: " + data.Status
		}
		return fmt.Sprintf("the call %s has ended: %s", data.Name, data.Status)
	case "answered":
		said := Printable(data.By) + " answered" + under(data.Name)
		if len(data.Value) > 0 { // not everyone may see it
			said += ": " + Cut(Printable(string(data.Value)), 200)
		}
		return said
	case "timed_out":
		return "timed out: " + Cut(Named(data.Names), 200)
	case "retried":
		said := "a transient error; the next attempt is in " + Span(data.RunAt.Sub(e.At))
		if data.Error.Message != "" {
			said += ": " + Cut(data.Error.Message, 200)
		}
		return said
	case "released":
		if data.Needs != "" {
			return "the worker leaves it to one with: " + Cut(data.Needs, 200)
		}
		return "the worker stops and hands it over: back in the queue"
	case "lost":
		return fmt.Sprintf("the worker %s died: back in the queue", data.LostWorker)
	case "began":
		return "begins the step " + data.Name + ", which must not run twice"
	case "step":
		if data.Kind == "call" {
			return "the call " + data.Name + " could not be made: " + Cut(data.Error.Message, 200)
		}
		if data.Kind == "version" {
			return "the version of " + data.Name + " was checked"
		}
		if data.Error.Message != "" {
			return "the step " + data.Name + " failed: " + Cut(data.Error.Message, 200)
		}
		return "the step " + data.Name + " has ended"
	case "cancel_requested":
		return Person(data.act()) + " asked to cancel it" + Because(data.act()) + "; its worker will end it"
	case "failed":
		if data.By != "" {
			return "cancelled by " + Person(data.act()) + Because(data.act()) + "; the receipt was written: failed"
		}
	}
	return "the receipt was written: " + strings.ReplaceAll(e.Event, "_", " ")
}
