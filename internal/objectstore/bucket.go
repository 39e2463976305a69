// Package objectstore puts, gets and lists objects in a bucket over the S3 protocol.
package objectstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"github.com/gemworker/gem/internal/outbound"
)

const (
	// tries is how many times a request is sent at most.
	tries = 3
	// answerTimeout is how long a store may take to receive a request and answer it, or to send the next part of an
	// object.
	answerTimeout = time.Minute
	// maxList and maxFault are how many bytes are read at most of a page of a list, and of the reason for a refusal.
	maxList  = 16 << 20
	maxFault = 64 << 10
)

// Location is a place for objects: s3://BUCKET/PREFIX.
type Location struct {
	Bucket string
	Prefix string // without slashes at its ends; may be empty
}

// String returns the location as [ParseLocation] reads it.
func (l Location) String() string { return strings.TrimSuffix(scheme+l.Bucket+"/"+l.Prefix, "/") }

const scheme = "s3://"

// IsLocation reports whether a text is meant as a location, and not as the path of a file.
func IsLocation(text string) bool { return strings.HasPrefix(strings.ToLower(text), scheme) }

var (
	bucketForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	partForm   = regexp.MustCompile(`^[A-Za-z0-9_=.-]{1,100}$`)
)

// ParseLocation reads s3://BUCKET/PREFIX.
func ParseLocation(text string) (Location, error) {
	if !IsLocation(text) {
		return Location{}, errors.New("it does not begin with s3://")
	}
	bucket, prefix, _ := strings.Cut(text[len(scheme):], "/")
	l := Location{Bucket: bucket, Prefix: strings.TrimSuffix(prefix, "/")}
	if !bucketForm.MatchString(l.Bucket) || strings.Contains(l.Bucket, "..") {
		return Location{}, errors.New("it is not s3://BUCKET/PREFIX: a bucket has 3 to 63 lower-case letters, digits, dots " +
			"and hyphens")
	}
	parts := strings.Split(l.Prefix, "/")
	if l.Prefix != "" && (len(parts) > 10 || slices.ContainsFunc(parts, isNoPart)) {
		return Location{}, errors.New("it is not s3://BUCKET/PREFIX: a prefix has up to ten parts of letters, digits and " +
			"_ = . -")
	}
	return l, nil
}

// isNoPart reports whether a text cannot be a part of a prefix.
func isNoPart(text string) bool { return !partForm.MatchString(text) || text == "." || text == ".." }

// Bucket is the bucket of a [Location]. Its methods take and return whole keys, with the location's prefix.
type Bucket struct {
	Location

	root   *url.URL // of the keys
	keys   aws.Credentials
	region string
	signer *v4.Signer
	http   *http.Client
	pause  time.Duration // after the first try that failed; it doubles
	answer time.Duration // answerTimeout, shorter in tests
}

// Open returns a bucket. It sends nothing. Only the access key in c is used: profiles and instance roles are ignored.
func Open(l Location, c *Config) (*Bucket, error) {
	if c.AccessKeyID == "" || c.SecretAccessKey == "" {
		return nil, errors.New(
			"s3:// needs an access key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, since profiles and " +
				"roles of machines are not read")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // the transport must not decompress objects
	b := &Bucket{
		Location: l, region: c.Region, pause: time.Second, answer: answerTimeout,
		keys: aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey.Reveal(),
			SessionToken: c.SessionToken.Reveal()},
		signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
		http: &http.Client{
			Transport:     outbound.Once(transport),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if c.Endpoint != "" {
		root, err := url.Parse(c.Endpoint.Reveal())
		if err != nil {
			return nil, errors.New("AWS_ENDPOINT_URL_S3 is not the URL of a server")
		}
		b.root = root.JoinPath(l.Bucket)
		return b, nil
	}
	b.root = &url.URL{Scheme: "https", Host: l.Bucket + ".s3." + c.Region + ".amazonaws.com"}
	if strings.Contains(l.Bucket, ".") { // AWS's certificates cover one label
		b.root = &url.URL{Scheme: "https", Host: "s3." + c.Region + ".amazonaws.com", Path: "/" + l.Bucket}
	}
	return b, nil
}

// Put stores an object, and returns once the store has confirmed it: with the status 200, an ETag and no error. It
// replaces an object that has the same key.
func (b *Bucket) Put(ctx context.Context, key, contentType string, content []byte) error {
	header := http.Header{"Content-Type": {contentType}}
	got, err := b.send(ctx, http.MethodPut, key, nil, header, content)
	if err == nil && (got.status != http.StatusOK || got.header.Get("ETag") == "" ||
		bytes.Contains(got.body, []byte("<Error")) ||
		bytes.Contains(got.body, []byte("<html"))) {
		err = fmt.Errorf("put %s%s/%s: the answer is not that of a store: check AWS_ENDPOINT_URL_S3", scheme, b.Bucket, key)
	}
	return err
}

// Object is an object in a list.
type Object struct {
	Key  string `xml:"Key"`
	Size int64  `xml:"Size"`
}

// List returns the objects below the location, in the order of their keys.
func (b *Bucket) List(ctx context.Context) (all []Object, err error) {
	query := url.Values{"list-type": {"2"}}
	if b.Prefix != "" {
		query.Set("prefix", b.Prefix+"/")
	}
	for {
		got, err := b.send(ctx, http.MethodGet, "", query, nil, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Contents              []Object `xml:"Contents"`
			IsTruncated           bool     `xml:"IsTruncated"`
			NextContinuationToken string   `xml:"NextContinuationToken"`
		}
		if err := xml.Unmarshal(got.body, &page); err != nil {
			return nil, fmt.Errorf("list %s: the store's answer cannot be read: %w", b.Location, err)
		}
		for _, o := range page.Contents {
			if len(all) > 0 && o.Key <= all[len(all)-1].Key {
				return nil, fmt.Errorf("list %s: the store repeats its list", b.Location)
			}
			all = append(all, o)
		}
		next := page.NextContinuationToken
		if !page.IsTruncated {
			return all, nil
		}
		if next == "" || next == query.Get("continuation-token") {
			return nil, fmt.Errorf("list %s: the store's answer has no token for the next page", b.Location)
		}
		query.Set("continuation-token", next)
	}
}

// send sends a request, and retries it after a temporary failure, until it succeeds or three tries have failed. It
// reads
// the whole answer. An error names the object and the status, and contains no secret.
func (b *Bucket) send(ctx context.Context, method, key string, query url.Values, header http.Header, content []byte) (
	got answer, err error) {
	err = b.retry(ctx, method, key, func() (again bool, err error) {
		limited, cancel := context.WithTimeout(ctx, b.answer)
		defer cancel()
		resp, again, err := b.try(limited, method, key, query, header, content)
		if err != nil {
			return again, err
		}
		defer resp.Body.Close()
		got = answer{status: resp.StatusCode, header: resp.Header}
		if got.body, err = io.ReadAll(io.LimitReader(resp.Body, maxList)); err != nil {
			return true, errors.New("the answer broke off")
		}
		return false, nil
	})
	return got, err
}

// answer is a whole answer of the store.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// retry calls try up to three times, as long as another try may succeed.
func (b *Bucket) retry(ctx context.Context, method, key string, try func() (again bool, err error)) error {
	pause := b.pause
	for n := 1; ; n++ {
		again, err := try()
		if err == nil {
			return nil
		}
		if !again || n == tries || ctx.Err() != nil {
			return fmt.Errorf("%s %s%s/%s: %w", strings.ToLower(method), scheme, b.Bucket, key, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// try sends a request once. again reports whether another try may succeed. The body ends with ctx.
func (b *Bucket) try(ctx context.Context, method, key string, query url.Values, header http.Header, content []byte) (
	resp *http.Response, again bool, err error) {
	to := *b.root
	to.Path, to.RawPath = to.Path+"/"+key, httpbinding.EscapePath(to.Path+"/"+key, false)
	to.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(content))
	if err != nil {
		return nil, false, errors.New("the address is not valid")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	req.Header.Set("X-Amz-Content-Sha256", hash)
	if err := b.signer.SignHTTP(ctx, b.keys, req, hash, "s3", b.region, time.Now()); err != nil {
		return nil, false, errors.New("the request cannot be signed")
	}
	resp, err = b.http.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, true, fmt.Errorf("the store did not answer within %s", b.answer)
	case err != nil:
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // the URL is in the error already
		}
		return nil, true, err
	case resp.StatusCode/100 == 2:
		return resp, false, nil
	}
	var fault struct{ Code string }
	_ = xml.NewDecoder(io.LimitReader(resp.Body, maxFault)).Decode(&fault)
	_ = resp.Body.Close()
	return nil, resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusRequestTimeout, refusal(resp.StatusCode, fault.Code)
}

var codeForm = regexp.MustCompile(`^[A-Za-z0-9.]{1,60}$`)

// refusal describes an answer that is not a success.
func refusal(status int, code string) error {
	text := fmt.Sprintf("the store answered %d %s", status, http.StatusText(status))
	if codeForm.MatchString(code) {
		text += " (" + code + ")"
	}
	switch {
	case code == "AuthorizationHeaderMalformed": // AWS's answer to a signature for another region
		text += ": set AWS_REGION to the region of the bucket"
	case status/100 == 3:
		text += ": the bucket is elsewhere; set AWS_REGION, or AWS_ENDPOINT_URL_S3"
	}
	return errors.New(text)
}
