package servers

import (
	"bytes"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers/value"
)

// linesPerMinute is how many lines of a program's stderr reach the log in a minute; the others are counted.
const linesPerMinute = 60

// lines says what is written to it, a line at a time, each cut to 500 bytes.
type lines struct {
	scrub func(line string) string
	say   func(line string, left int)

	mu    sync.Mutex
	line  []byte // without its end
	since time.Time
	said  int
	left  int
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		const kept = 2000 // bytes of a line; the rest of a longer one is dropped
		l.line = append(l.line, line[:min(len(line), kept-min(len(l.line), kept))]...)
		if rest = after; ended {
			l.end()
		}
	}
	return len(p), nil
}

func (l *lines) end() {
	text := value.OneLine(l.scrub(string(l.line)))
	l.line = l.line[:0]
	if time.Since(l.since) > time.Minute {
		l.since, l.said = time.Now(), 0
	}
	switch {
	case text == "":
	case l.said >= linesPerMinute:
		l.left++
	default:
		l.said++
		l.say(text, l.left)
		l.left = 0
	}
}
