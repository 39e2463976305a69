package telemetry

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

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
	w.log.Warn("telemetry could not be sent; calls are not affected", zap.String("error", text),
		zap.Int("warnings_withheld", w.withheld))
	w.last, w.withheld = time.Now(), 0
}

// settings logs every setting that the SDK cannot use during its setup. The SDK then uses its default. It logs no
// values from the environment, because headers and endpoints may contain secrets.
type settings struct {
	slog.Handler // discards: for the methods that the SDK does not use
	log          *zap.Logger
}

func (s settings) Enabled(_ context.Context, level slog.Level) bool { return level >= -4 }

// Handle gets the SDK's warnings at level -1. The SDK reports a number that it cannot parse at level -4.
func (s settings) Handle(_ context.Context, r slog.Record) error {
	var variable, reason string
	for a := range r.Attrs {
		switch value := a.Value.Any().(type) {
		case *url.Error:
			reason = ": not a valid URL"
		case *fs.PathError:
			reason = ": " + value.Err.Error()
		case error:
			reason = ": " + value.Error()
		}
		text, _ := a.Value.Any().(string)
		for _, name := range []string{a.Key, text} {
			if strings.HasPrefix(name, "OTEL_") {
				variable = name + ": "
			}
		}
	}
	if variable != "" || r.Level >= -1 {
		s.ignored(errors.New(variable + r.Message + reason))
	}
	return nil
}

func (s settings) ignored(err error) {
	s.log.Warn("OpenTelemetry ignores a setting of the environment", zap.Error(err))
}
