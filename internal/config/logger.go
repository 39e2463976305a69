package config

import (
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Logger returns a logger that writes to stderr as LOG_LEVEL and LOG_FORMAT say. It drops no line: a call's log is
// whole.
func (c *Config) Logger() *zap.Logger { return c.LoggerTo(os.Stderr) }

// LoggerTo is [Config.Logger] with another place for the lines.
func (c *Config) LoggerTo(w io.Writer) *zap.Logger {
	level, _ := zapcore.ParseLevel(c.LogLevel) // info if it has none, in a Config that Load did not make
	format := zap.NewProductionEncoderConfig()
	format.TimeKey = "time"
	format.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	format.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder = escaped{zapcore.NewJSONEncoder(format)}
	if c.LogFormat == "console" {
		format.EncodeLevel = zapcore.CapitalLevelEncoder
		format.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = console{zapcore.NewConsoleEncoder(format)}
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}
