package config

import (
	"strings"
	"unicode"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// console writes log lines for a terminal. The console format of zap writes messages unchanged: someone else's text in a message could start a new
// line, or draw on the terminal.
type console struct{ zapcore.Encoder }

func (c console) Clone() zapcore.Encoder { return console{c.Encoder.Clone()} }

func (c console) EncodeEntry(e zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	e.Message = strings.NewReplacer("\n", " ", "\t", " ").Replace(e.Message)
	line, err := c.Encoder.EncodeEntry(e, fields)
	if err != nil {
		return nil, err
	}
	text := strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, line.String())
	line.Reset()
	line.AppendString(text)
	return line, nil
}
