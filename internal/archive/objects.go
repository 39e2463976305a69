package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/objectstore"
)

// maxObject is the size in bytes at which an object ends even if its batch has not, since a whole object is held in
// memory.
const maxObject = 32 << 20

// Objects is an archive in a bucket: each batch of lines becomes an object, compressed with gzip, whose key ends in
// YYYY/MM/DD/HHMMSSZ-RUN-NNNNNN.jsonl.gz. The time is the start of the run, RUN is 64 random bits in hexadecimal, and
// NNNNNN is the object's number in the run, from 1.
type Objects struct {
	bucket *objectstore.Bucket
	run    string // the part of the keys before the number
	number int
	packed bytes.Buffer
	zip    *gzip.Writer
	empty  bool
}

// NewObjects begins a run that stores objects below the bucket's location. It sends nothing.
func NewObjects(bucket *objectstore.Bucket, at time.Time) *Objects {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	o := &Objects{bucket: bucket, empty: true,
		run: path.Join(bucket.Prefix, at.UTC().Format("2006/01/02/150405Z")+"-"+hex.EncodeToString(id))}
	o.zip = newZip(&o.packed)
	return o
}

// Add adds a line, given without its line break. The line is safe after the next [Objects.Sync].
func (o *Objects) Add(ctx context.Context, line string) error {
	o.empty = false
	if _, err := io.WriteString(o.zip, line+"\n"); err != nil {
		return err
	}
	if o.packed.Len() < maxObject {
		return nil
	}
	return o.Sync(ctx)
}

// Sync stores the lines since the last one as an object, and returns once the store has confirmed it.
func (o *Objects) Sync(ctx context.Context) error {
	if o.empty {
		return nil
	}
	if err := o.zip.Close(); err != nil {
		return err
	}
	o.number++
	err := o.bucket.Put(ctx, fmt.Sprintf("%s-%06d.jsonl.gz", o.run, o.number), "application/gzip", o.packed.Bytes())
	o.packed.Reset()
	o.zip.Reset(&o.packed)
	o.empty = true
	return err
}

// Source is an archive that is open for reading.
type Source struct {
	io.Reader

	name  string
	whole bool // no interrupted run can have left it incomplete
}

// NewSource reads an archive from r. It is compressed if its name ends in .gz.
func NewSource(name string, r io.Reader) *Source {
	return &Source{&unzipped{name: name, r: r}, name, false}
}

// Name returns the name by which findings refer to the archive.
func (s *Source) Name() string { return s.name }

// InBucket lists the archives below the bucket's location. It skips objects whose keys do not end in .jsonl or
// .jsonl.gz, and returns an error if none do. An archive is requested when it is read.
func InBucket(ctx context.Context, bucket *objectstore.Bucket) ([]*Source, error) {
	objects, err := bucket.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []*Source
	for _, o := range objects {
		if strings.HasSuffix(o.Key, ".jsonl.gz") || strings.HasSuffix(o.Key, ".jsonl") {
			source := NewSource("s3://"+bucket.Bucket+"/"+o.Key, bucket.Get(ctx, o.Key))
			source.whole = true
			all = append(all, source)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no archive: no key ends in .jsonl or .jsonl.gz", bucket.Location)
	}
	return all, nil
}
