package mcpclient

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers/value"
)

// linesPerMinute is the maximum number of lines of a program's stderr in the log per minute; the others are only
// counted.
const linesPerMinute = 60

// keptLine is the number of bytes of a line that are searched for secrets; the rest of a longer line is dropped.
const keptLine = 64 << 10

// lines passes on the written text, a line at a time, each cut to 500 bytes.
type lines struct {
	secrets secrets
	say     func(line string, left int)

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
		l.line = append(l.line, line[:min(len(line), keptLine+1-len(l.line))]...)
		if rest = after; ended {
			l.end()
		}
	}
	return len(p), nil
}

func (l *lines) end() {
	line := string(l.line)
	l.line = l.line[:0]
	if time.Since(l.since) > time.Minute {
		l.since, l.said = time.Now(), 0
	}
	switch {
	case strings.TrimSpace(line) == "":
	case l.said >= linesPerMinute:
		l.left++
	default:
		if text := value.OneLine(l.secrets.beginning(line, keptLine)); text != "" {
			l.said++
			l.say(text, l.left)
			l.left = 0
		}
	}
}
