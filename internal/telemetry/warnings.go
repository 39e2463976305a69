package telemetry

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
)

const (
	// warnEvery limits the warnings about a collector that cannot be reached.
	warnEvery = time.Minute
	// maxError is in bytes: a collector may answer with a text of any length.
	maxError = 500
	// minSecret is in bytes. Anything shorter is not a secret, and may be part of any word.
	minSecret = 4
)

// warnings logs errors of exporters, at most one every warnEvery, without the credentials that were sent.
type warnings struct {
	log     *zap.Logger
	secrets *strings.Replacer

	mu       sync.Mutex
	last     time.Time
	withheld int
}

func newWarnings(log *zap.Logger, secrets []string) *warnings {
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // the longest match is replaced
	var pairs []string
	for _, secret := range secrets {
		if len(secret) >= minSecret {
			pairs = append(pairs, secret, "[set]")
		}
	}
	return &warnings{log: log, secrets: strings.NewReplacer(pairs...)}
}

// headerSecrets returns the values of the headers in the environment, and their words, since a collector may repeat the
// token without its "Bearer".
func headerSecrets() (secrets []string) {
	for _, signal := range []string{"", "TRACES_", "METRICS_"} {
		for pair := range strings.SplitSeq(os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"HEADERS"), ",") {
			_, text, _ := strings.Cut(pair, "=")
			if header, err := url.PathUnescape(text); err == nil {
				secrets = append(append(secrets, strings.TrimSpace(header)), strings.Fields(header)...)
			}
		}
	}
	return secrets
}

// Handle implements otel.ErrorHandler.
func (w *warnings) Handle(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && time.Since(w.last) < warnEvery {
		w.withheld++
		return
	}
	text := w.secrets.Replace(err.Error())
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	w.log.Warn("telemetry could not be sent; calls are not affected", zap.String("error", text), zap.Int("warnings_withheld", w.withheld))
	w.last, w.withheld = time.Now(), 0
}

// settings logs every setting that the SDK cannot use while it is being set up. The SDK then goes on with its default. It
// logs no values from the environment, since headers and endpoints may hold secrets.
type settings struct{ log *zap.Logger }

// Handle implements otel.ErrorHandler.
func (s settings) Handle(err error) {
	s.log.Warn("OpenTelemetry ignores a setting of the environment", zap.Error(err))
}

// Error implements logr.LogSink.
func (s settings) Error(err error, message string, pairs ...any) {
	switch e := err.(type) { //nolint:errorlint // as the SDK gets them from the standard library
	case *url.Error:
		err = errors.New("not a valid URL")
	case *fs.PathError:
		err = e.Err
	}
	s.Handle(fmt.Errorf("%s%s: %w", variableIn(pairs), message, err))
}

// Info implements logr.LogSink. The SDK's warnings have level 1. It reports a number that it cannot parse at level 4.
func (s settings) Info(level int, message string, pairs ...any) {
	if variable := variableIn(pairs); level <= 1 || variable != "" {
		s.Handle(errors.New(variable + message))
	}
}

// variableIn returns the name of the variable that a message is about, as "NAME: ". It is empty if pairs do not have one.
func variableIn(pairs []any) string {
	for _, p := range pairs {
		if name, ok := p.(string); ok && strings.HasPrefix(name, "OTEL_") {
			return name + ": "
		}
	}
	return ""
}

func (s settings) Init(logr.RuntimeInfo)          {}
func (s settings) Enabled(level int) bool         { return level <= 4 }
func (s settings) WithValues(...any) logr.LogSink { return s }
func (s settings) WithName(string) logr.LogSink   { return s }
