package telemetry

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// warnEvery is how often a collector that can not be reached is worth a line in the log.
	warnEvery = time.Minute
	// longestError is in bytes: a collector answers what it likes.
	longestError = 500
	// shortestSecret is in bytes. What is shorter is no secret, and may be part of any word.
	shortestSecret = 4
)

// warnings logs what could not be sent, at most once every warnEvery, without the credentials that were sent along.
type warnings struct {
	log     *zap.Logger
	secrets *strings.Replacer

	mu       sync.Mutex
	last     time.Time
	withheld int
}

func newWarnings(log *zap.Logger, secrets []string) *warnings {
	var pairs []string
	for _, secret := range secrets {
		if len(secret) >= shortestSecret {
			pairs = append(pairs, secret, "[set]")
		}
	}
	return &warnings{log: log, secrets: strings.NewReplacer(pairs...)}
}

// Handle is called by the SDK, from any goroutine.
func (w *warnings) Handle(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && time.Since(w.last) < warnEvery {
		w.withheld++
		return
	}
	text := w.secrets.Replace(err.Error())
	if len(text) > longestError {
		text = strings.ToValidUTF8(text[:longestError], "") + "…"
	}
	w.log.Warn("telemetry could not be sent; calls go on without it", zap.String("error", text), zap.Int("warnings_withheld", w.withheld))
	w.last, w.withheld = time.Now(), 0
}
