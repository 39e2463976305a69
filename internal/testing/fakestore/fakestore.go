// Package fakestore is a store of objects for tests: a server that speaks the parts of S3's protocol that GEM uses,
// checks every signature with an implementation of its own, and fails when a test asks for it.
package fakestore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	// KeyID is the name of the only access key.
	KeyID = "the-key"
	// Secret is its secret.
	Secret = "the/secret+of=it"
	// Region is the region that requests must be signed for.
	Region = "test-1"
	// pageSize is how many objects a page of a list has at most.
	pageSize = 3
)

// Store is a store with any number of buckets.
type Store struct {
	URL string

	mu       sync.Mutex
	objects  map[string][]byte // by /BUCKET/KEY
	requests []string          // method and path
	fail     func(http.ResponseWriter, *http.Request, func()) bool
}

// New starts a store, which ends with the test.
func New(t testing.TB) *Store {
	t.Helper()
	s := &Store{objects: map[string][]byte{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Env returns the environment variables for the store.
func (s *Store) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + KeyID, "AWS_SECRET_ACCESS_KEY=" + Secret, "AWS_REGION=" + Region,
		"AWS_ENDPOINT_URL_S3=" + s.URL}
}

// Fail passes each request to the function fail first. If fail returns true, it has answered the request; otherwise the
// store answers. serve answers it as the store would.
func (s *Store) Fail(fail func(w http.ResponseWriter, r *http.Request, serve func()) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// Objects returns a copy of all objects by /BUCKET/KEY.
func (s *Store) Objects() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]byte{}
	for path, content := range s.objects {
		all[path] = slices.Clone(content)
	}
	return all
}

// Set puts an object, by /BUCKET/KEY.
func (s *Store) Set(path string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = content
}

// Requests returns the methods and paths of the requests so far.
func (s *Store) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	fail := s.fail
	s.mu.Unlock()
	if fail == nil || !fail(w, r, func() { s.Serve(w, r) }) {
		s.Serve(w, r)
	}
}

// Serve answers a request as the store would.
func (s *Store) Serve(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // a request that was cut stores nothing
	}
	if code := check(r, content); code != "" {
		Refuse(w, http.StatusForbidden, code)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodPut:
		s.objects[r.URL.Path] = content
		w.Header().Set("ETag", etag(content))
	case r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		s.list(w, r)
	case r.Method == http.MethodGet:
		object, found := s.objects[r.URL.Path]
		if !found {
			Refuse(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		if match := r.Header.Get("If-Match"); match != "" && match != etag(object) {
			Refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		w.Header().Set("ETag", etag(object))
		if from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
			at, _ := strconv.Atoi(strings.TrimSuffix(from, "-"))
			w.WriteHeader(http.StatusPartialContent)
			object = object[at:]
		}
		_, _ = w.Write(object)
	default:
		Refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func (s *Store) list(w http.ResponseWriter, r *http.Request) {
	type object struct {
		Key  string
		Size int
	}
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		Contents              []object
		NextContinuationToken string `xml:",omitempty"`
	}
	bucket := strings.TrimSuffix(r.URL.Path, "/") + "/"
	query := r.URL.Query()
	var keys []string
	for path := range s.objects {
		if key, ok := strings.CutPrefix(path, bucket); ok && strings.HasPrefix(key, query.Get("prefix")) &&
			key > query.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > pageSize {
		keys = keys[:pageSize]
		page.IsTruncated, page.NextContinuationToken = true, keys[pageSize-1]
	}
	for _, key := range keys {
		page.Contents = append(page.Contents, object{key, len(s.objects[bucket+key])})
	}
	_ = xml.NewEncoder(w).Encode(page)
}

// Refuse answers a request with a status and a code of S3.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>It is %s.</Message></Error>", code,
		Secret)
}

func etag(content []byte) string { return fmt.Sprintf("%q", hash(content)[:32]) }

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// check returns why a request's signature is wrong, or "". See "Signature Calculations for the Authorization Header" in
// the reference of Amazon S3.
func check(r *http.Request, content []byte) string {
	if r.Header.Get("X-Amz-Content-Sha256") != hash(content) {
		return "XAmzContentSHA256Mismatch"
	}
	var scope, signed, signature string
	fields, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Credential":
			scope, ok = strings.CutPrefix(value, KeyID+"/")
		case "SignedHeaders":
			signed = value
		case "Signature":
			signature = value
		}
	}
	parts := strings.Split(scope, "/")
	if !ok || len(parts) != 4 || parts[1] != Region || parts[2] != "s3" || parts[3] != "aws4_request" {
		return "AuthorizationHeaderMalformed"
	}
	for _, needed := range []string{"host", "x-amz-content-sha256", "x-amz-date"} {
		if !slices.Contains(strings.Split(signed, ";"), needed) {
			return "AuthorizationHeaderMalformed"
		}
	}
	escape := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	var query, headers []string
	for name, values := range r.URL.Query() {
		for _, value := range values {
			query = append(query, escape(name)+"="+escape(value))
		}
	}
	slices.Sort(query)
	for name := range strings.SplitSeq(signed, ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.Itoa(len(content))
		}
		headers = append(headers, name+":"+strings.TrimSpace(value)+"\n")
	}
	request := strings.Join([]string{r.Method, strings.ReplaceAll(escape(r.URL.Path), "%2F", "/"),
		strings.Join(query, "&"),
		strings.Join(headers, ""), signed, hash(content)}, "\n")
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), scope, hash([]byte(request))}, "\n")
	key := []byte("AWS4" + Secret)
	for _, part := range append(parts, text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	if signature != hex.EncodeToString(key) {
		return "SignatureDoesNotMatch"
	}
	return ""
}
