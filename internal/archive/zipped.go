package archive

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// level is the level of gzip, from 1 to 9. Higher levels hardly make lines of calls smaller.
const level = 5

// isZipped reports whether the name of an archive says that its lines are compressed.
func isZipped(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".gz") }

func newZip(w io.Writer) *gzip.Writer {
	zip, err := gzip.NewWriterLevel(w, level)
	if err != nil {
		panic(err) // the level is a constant
	}
	return zip
}

// repairZipped does what repair does, for members instead of lines: it checks that the file is an archive, and removes
// an incomplete last member. It reads the whole file.
func repairZipped(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	var (
		in   = &counting{r: bufio.NewReader(io.NewSectionReader(file, 0, info.Size()))}
		zip  *gzip.Reader
		ends int64 // the offset after the last complete member
	)
	for ends < info.Size() {
		if zip == nil {
			zip, err = gzip.NewReader(in)
		} else {
			err = zip.Reset(in)
		}
		if err == nil {
			zip.Multistream(false)
			err = checkLines(zip, true)
		}
		switch {
		case err == nil:
			ends = in.n
		case errors.Is(err, io.ErrUnexpectedEOF) && beginsMember(io.NewSectionReader(file, ends, info.Size()-ends)):
			return file.Truncate(ends)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errNotOurs
		case isDamage(err) && ends == 0:
			return errNotOurs
		case isDamage(err):
			return fmt.Errorf("the file is damaged after %d bytes (%w): keep it, and choose another file", ends, err)
		default:
			return err
		}
	}
	return nil
}

// beginsMember reports whether bytes are the beginning of a member with rows.
func beginsMember(bytes io.ReadSeeker) bool {
	// as compress/gzip writes it for a level between the extremes
	const header = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	if !begins(bytes, header) {
		return false
	}
	if _, err := bytes.Seek(0, io.SeekStart); err != nil {
		return false
	}
	zip, err := gzip.NewReader(bytes)
	return err != nil || begins(zip, rowStart)
}

// begins reports whether a text begins with start, or is itself a prefix of start.
func begins(text io.Reader, start string) bool {
	head := make([]byte, len(start))
	n, _ := io.ReadFull(text, head)
	return strings.HasPrefix(start, string(head[:n]))
}

// isDamage reports whether an error means that compressed data is damaged.
func isDamage(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt)
}

// counting counts the bytes that are read. It is an [io.ByteReader], so that gzip reads no byte beyond its member.
type counting struct {
	r *bufio.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counting) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

// unzipped reads an archive, and decompresses it if its name ends in .gz. It reads nothing before the first Read.
type unzipped struct {
	name string
	r    io.Reader
	zip  *gzip.Reader
}

func (u *unzipped) Read(p []byte) (int, error) {
	if !isZipped(u.name) {
		return u.r.Read(p)
	}
	if u.zip == nil {
		zip, err := gzip.NewReader(u.r)
		if err != nil {
			return 0, err
		}
		u.zip = zip
	}
	return u.zip.Read(p)
}
