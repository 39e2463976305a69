package config

import (
	stdlog "log"
	"strings"

	"go.uber.org/zap"

	"github.com/gemworker/gem/handlers/value"
)

// unsolicited begins a line of net/http's that quotes what a server sent without a request. It may hold anything, such
// as a key that the server was given.
const unsolicited = "Unsolicited response received on idle HTTP channel"

// RouteStandardLog sends the lines of Go's standard logger, which net/http uses, to a log: each as one line of at most
// 500 bytes, and without what it quotes from a server.
func RouteStandardLog(log *zap.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetPrefix("")
	stdlog.SetOutput(standardLines{log})
}

type standardLines struct{ log *zap.Logger }

// Write gets one whole message at a time.
func (l standardLines) Write(p []byte) (int, error) {
	text := value.OneLine(string(p[:min(len(p), 4<<10)]))
	if strings.HasPrefix(text, unsolicited) {
		l.log.Debug("a server sent something without a request, and its connection is closed")
		return len(p), nil
	}
	l.log.Warn("a library wrote to the standard log", zap.String("line", text))
	return len(p), nil
}
