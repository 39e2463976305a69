package config

import (
	"bytes"
	"strings"

	"github.com/gemworker/gem/internal/oneline"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// console writes log lines for a terminal. The console format of zap writes messages unchanged: someone else's text in
// a message could start a new line, or draw on the terminal.
type console struct{ zapcore.Encoder }

func (c console) Clone() zapcore.Encoder { return console{c.Encoder.Clone()} }

func (c console) EncodeEntry(e zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	e.Message = strings.NewReplacer("\n", " ", "\t", " ").Replace(e.Message)
	line, err := c.Encoder.EncodeEntry(e, fields)
	if err != nil {
		return nil, err
	}
	text := strings.Map(func(r rune) rune {
		if oneline.Hidden(r) {
			return ' '
		}
		return r
	}, line.String())
	line.Reset()
	line.AppendString(text)
	return line, nil
}

// escaped writes log lines as JSON. That of zap leaves characters in strings that control or reorder text.
type escaped struct{ zapcore.Encoder }

func (e escaped) Clone() zapcore.Encoder { return escaped{e.Encoder.Clone()} }

func (e escaped) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	line, err := e.Encoder.EncodeEntry(entry, fields)
	if err != nil || !bytes.ContainsFunc(line.Bytes(), func(c rune) bool { return c >= 0x7f }) {
		return line, err
	}
	text := oneline.JSON(line.Bytes())
	line.Reset()
	line.AppendBytes(text)
	return line, nil
}
