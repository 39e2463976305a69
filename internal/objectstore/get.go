package objectstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Get returns the content of an object. The first request is sent at the first Read. If the connection breaks, the rest
// of the object is requested.
func (b *Bucket) Get(ctx context.Context, key string) io.Reader {
	return &content{ctx: ctx, bucket: b, key: key}
}

type content struct {
	ctx    context.Context // kept here, as in the response bodies of net/http
	bucket *Bucket
	key    string
	etag   string // of the object that is being read
	at     int64  // how many bytes were read
	failed int    // connections that broke
	body   io.ReadCloser
	cancel context.CancelFunc // ends its request
}

func (c *content) Read(p []byte) (int, error) {
	for {
		if c.body == nil {
			if err := c.open(); err != nil {
				return 0, err
			}
		}
		body := c.body
		late := time.AfterFunc(c.bucket.answer, c.cancel)
		n, err := body.Read(p)
		late.Stop()
		c.at += int64(n)
		if err == nil {
			return n, nil
		}
		_ = body.Close()
		c.cancel()
		if errors.Is(err, io.EOF) {
			return n, err
		}
		c.body = nil
		if c.failed++; c.failed >= tries || c.ctx.Err() != nil {
			return n, fmt.Errorf("get %s%s/%s: the connection broke after %d bytes", scheme, c.bucket.Bucket, c.key, c.at)
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (c *content) open() error {
	header := http.Header{}
	if c.at > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(c.at, 10)+"-")
		if c.etag != "" {
			header.Set("If-Match", c.etag)
		}
	}
	var resp *http.Response
	err := c.bucket.retry(c.ctx, http.MethodGet, c.key, func() (again bool, err error) {
		ctx, cancel := context.WithCancel(c.ctx)
		late := time.AfterFunc(c.bucket.answer, cancel) // until the answer begins; Read has a limit for each part
		//nolint:bodyclose // Read closes it
		resp, again, err = c.bucket.try(ctx, http.MethodGet, c.key, nil, header, nil)
		if !late.Stop() || err != nil {
			cancel()
			return again || err == nil, cmp.Or(err, errors.New("the store answered too late"))
		}
		c.cancel = cancel
		return false, nil
	})
	if err != nil {
		return err
	}
	if c.at > 0 && resp.StatusCode != http.StatusPartialContent {
		c.cancel()
		return fmt.Errorf("get %s%s/%s: the store ignored the requested range", scheme, c.bucket.Bucket, c.key)
	}
	c.etag, c.body = resp.Header.Get("ETag"), resp.Body
	return nil
}
