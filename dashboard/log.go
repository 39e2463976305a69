package dashboard

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logged writes a line for each request, with the path but not the query, which may contain a token or a key.
func (s *site) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		began, level := time.Now(), zapcore.InfoLevel
		path := q.URL.Path
		if path == s.Prefix+"/healthz" || strings.HasPrefix(path, s.Prefix+"/static/") {
			level = zapcore.DebugLevel
		}
		line := s.Log.Check(level, "request")
		if line == nil {
			next.ServeHTTP(w, q)
			return
		}
		user := new(string)
		answer := &statusWriter{ResponseWriter: w}
		defer func() {
			line.Write(zap.String("method", q.Method), zap.String("path", cut(300, path)),
				zap.Int("status", max(answer.status, http.StatusOK)),
				zap.Int64("ms", time.Since(began).Milliseconds()), zap.String("user", *user))
		}()
		next.ServeHTTP(answer, q.WithContext(context.WithValue(q.Context(), userKey{}, user)))
	})
}

// userKey is the context key of the name of a request's user.
type userKey struct{}

func noteUser(ctx context.Context, name string) {
	if user, ok := ctx.Value(userKey{}).(*string); ok {
		*user = name
	}
}

// statusWriter records the status of an answer. [http.ResponseController] reaches the wrapped writer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
