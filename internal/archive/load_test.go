package archive_test

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/archive"
)

func TestLinesAreReadOneByOne(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	in := bufio.NewReaderSize(strings.NewReader("a\n\n"+long+"\n"+long+"x\nb\nrest"), 16)
	for _, want := range []struct {
		line string
		size int
		none bool // it is too long
		err  error
	}{
		{"a", 2, false, nil}, {"", 1, false, nil}, {long, 101, false, nil}, {"", 102, true, nil}, {"b", 2, false, nil},
		{"rest", 4, false, io.EOF}, {"", 0, false, io.EOF},
	} {
		line, size, err := archive.ReadLine(in, 101)
		if string(line) != want.line || size != want.size || (line == nil) != want.none || !errors.Is(err, want.err) {
			t.Errorf("got %q (nil: %t), %d bytes, %v, want %+v", line, line == nil, size, err, want)
		}
	}
}
