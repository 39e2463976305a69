// Package notify reads notify.json, which decides who is notified of questions, failures, refusals, budgets and
// schedules, and writes the texts of notices. The worker collects notices and makes the calls that deliver them.
package notify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/schema"
)

// The kinds of notices.
const (
	Question = "question" // a question waits for people
	Failed   = "failed"   // a call failed or is not configured
	Refused  = "refused"  // a rule, a person or the tool's registry entry refused a call
	Failing  = "failing"  // a tool failed a number of times within a period
	Budget   = "budget"   // the spent share of a budget passed a percentage
	Schedule = "schedule" // a time was refused or missed, or a schedule ended or was paused by GEM
	// Undelivered is the kind of notices about failed deliveries. They go to the channel in "else".
	Undelivered = "undelivered"
)

// Set is a valid notify.json. It never changes.
type Set struct {
	// Version names the contents: other contents need another version. See [CheckUpgrade].
	Version string

	channels map[string]channel
	rules    []rule
	doc      map[string]any
	json     []byte
}

// channel is a tool that delivers notices.
type channel struct {
	Tool   string         `json:"tool"`
	Input  map[string]any `json:"input"` // nil: the fields of the notice
	Escape string         `json:"escape"`
	Text   bool           `json:"text"` // whether the text of questions is sent
}

// rule decides which notices go to which channels.
type rule struct {
	When   string   `json:"when"`
	Tools  []string `json:"tools"`
	Roles  []string `json:"roles"`
	Codes  []string `json:"codes"`
	Failed int      `json:"failed"`
	Within duration `json:"within"`
	At     []int    `json:"at"`
	To     []string `json:"to"`
	Every  duration `json:"every"`
	Else   string   `json:"else"`
}

// duration is a duration in the file, at most a day.
type duration time.Duration

// File is the name of the file in the working directory.
const File = "notify.json"

// Find reads the file or the JSON in chosen (GEM_NOTIFY). If chosen is empty, it reads the file in the working
// directory, or returns nil and no error without one. from names the source.
func Find(chosen string) (s *Set, from string, err error) {
	if chosen = strings.TrimSpace(chosen); chosen == "" {
		if _, err := os.Stat(File); errors.Is(err, fs.ErrNotExist) {
			return nil, "none", nil
		}
		chosen = File
	}
	if strings.HasPrefix(chosen, "{") {
		from = "the JSON of GEM_NOTIFY"
		if s, err = Parse([]byte(chosen)); err != nil {
			err = fmt.Errorf("the notices (%s) are refused:\n%w", from, err)
		}
		return s, from, err
	}
	s, err = ReadFile(chosen)
	return s, chosen, err
}

// ReadFile reads and parses a file. Its errors name the file and the remedy.
func ReadFile(path string) (*Set, error) {
	return plainfile.Parsed(path, "notices", "GEM_NOTIFY", Parse)
}

// SHA256 returns the hash of [Set.JSON] in hexadecimal digits. Formatting the file does not change it; any other change
// does.
func (s *Set) SHA256() string { return fmt.Sprintf("%x", sha256.Sum256(s.json)) }

// JSON returns the file's contents.
func (s *Set) JSON() []byte { return slices.Clone(s.json) }

// CheckUpgrade returns an error if old and new have the same version, but different contents.
func CheckUpgrade(old, new *Set) error { return schema.CheckUpgrade(old.file(), new.file()) }

func (s *Set) file() schema.File {
	return schema.File{Noun: "the notices", Version: s.Version, Doc: s.doc}
}

// Channels returns the names of the channels, sorted.
func (s *Set) Channels() []string { return slices.Sorted(maps.Keys(s.channels)) }

// Rules returns the number of rules.
func (s *Set) Rules() int { return len(s.rules) }

// Kinds returns the kinds of notices that the rules need, and the percentages of budgets.
func (s *Set) Kinds() (kinds []string, marks []int16) {
	for _, r := range s.rules {
		kind := r.When
		if kind == Failing {
			kind = Failed
		}
		kinds = append(kinds, kind)
		for _, mark := range r.At {
			marks = append(marks, int16(mark))
		}
	}
	slices.Sort(kinds)
	slices.Sort(marks)
	return slices.Compact(kinds), slices.Compact(marks)
}
