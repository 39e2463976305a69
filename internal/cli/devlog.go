package cli

import (
	"io"
	"sync"
)

// heldLog holds the lines of a log until release, so that they follow the text that gem dev prints first.
type heldLog struct {
	mu   sync.Mutex
	held []byte
	to   io.Writer // nil until it is released
}

func (l *heldLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		return l.to.Write(line)
	}
	l.held = append(l.held, line...)
	return len(line), nil
}

// release writes the held lines, and then each new line at once.
func (l *heldLog) release(to io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = to.Write(l.held)
	l.held, l.to = nil, to
}
