package config

import (
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Logger writes to standard error, as LOG_LEVEL and LOG_FORMAT say. Results go to standard output, and never through it.
func (c *Config) Logger() *zap.Logger {
	level, err := zapcore.ParseLevel(c.LogLevel)
	if err != nil {
		level = zapcore.InfoLevel
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.TimeKey, encoding.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(encoding)
	if c.LogFormat == "console" {
		encoding.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level))
}
