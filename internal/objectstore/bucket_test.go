package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/envvar"
	"github.com/gemworker/gem/internal/objectstore"
	"github.com/gemworker/gem/internal/testing/fakestore"
)

func bucket(t *testing.T, env []string, location string) *objectstore.Bucket {
	t.Helper()
	var c objectstore.Config
	if err := envvar.Read(lookup(env), &c); err != nil {
		t.Fatal(err)
	}
	at, err := objectstore.ParseLocation(location)
	if err != nil {
		t.Fatal(err)
	}
	b, err := objectstore.Open(at, &c)
	if err != nil {
		t.Fatal(err)
	}
	objectstore.Hurry(b, time.Minute)
	return b
}

func lookup(env []string) func(string) string {
	return func(name string) string {
		for _, variable := range env {
			if value, ok := strings.CutPrefix(variable, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestObjectsAreStoredListedAndRead(t *testing.T) {
	t.Parallel()
	store := fakestore.New(t)
	b := bucket(t, store.Env(), "s3://calls/of/gem/")
	var want []string
	for _, name := range []string{"a", "b=1", "c d", "e+f", "ü", "g/h", "i"} {
		key := "of/gem/" + name
		want = append(want, key)
		if err := b.Put(t.Context(), key, "text/plain", []byte("it is "+name)); err != nil {
			t.Fatal(err)
		}
	}
	store.Set("/calls/of/gems/another", nil)
	store.Set("/another/of/gem/x", nil)
	slices.Sort(want)
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range all {
		got = append(got, o.Key)
		content, err := io.ReadAll(b.Get(t.Context(), o.Key))
		if err != nil || string(content) != "it is "+strings.TrimPrefix(o.Key, "of/gem/") || int64(len(content)) != o.Size {
			t.Errorf("%s: %s %v", o.Key, content, err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A store may be busy, and an answer may be lost after the object was stored.
func TestARequestWithoutAnAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request, serve func()){
		"busy":        func(w http.ResponseWriter, _ *http.Request, _ func()) { fakestore.Refuse(w, 503, "SlowDown") },
		"cut":         func(_ http.ResponseWriter, _ *http.Request, _ func()) { panic(http.ErrAbortHandler) },
		"lost answer": func(_ http.ResponseWriter, _ *http.Request, serve func()) { serve(); panic(http.ErrAbortHandler) },
		"no answer":   func(_ http.ResponseWriter, r *http.Request, _ func()) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := fakestore.New(t)
			b := bucket(t, store.Env(), "s3://calls")
			if name == "no answer" {
				objectstore.Hurry(b, 300*time.Millisecond)
			}
			failures := 2
			store.Fail(func(w http.ResponseWriter, r *http.Request, serve func()) bool {
				if failures--; failures < 0 {
					return false
				}
				if name == "no answer" {
					_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client has disconnected
				}
				answer(unwritten(w, name), r, serve)
				return true
			})
			if err := b.Put(t.Context(), "k", "text/plain", []byte("v")); err != nil {
				t.Fatal(err)
			}
			if got := store.Requests(); len(got) != 3 || string(store.Objects()["/calls/k"]) != "v" {
				t.Errorf("%v %q", got, store.Objects())
			}

			failures = 3
			err := b.Put(t.Context(), "k", "text/plain", []byte("w"))
			if err == nil || !strings.HasPrefix(err.Error(), "put s3://calls/k: ") || len(store.Requests()) != 6 {
				t.Errorf("%v %v", err, store.Requests())
			}
			if err != nil && name == "busy" && !strings.HasSuffix(err.Error(), "503 Service Unavailable (SlowDown)") {
				t.Error(err)
			}
		})
	}
}

// unwritten keeps an answer from being sent, if it is to be lost.
func unwritten(w http.ResponseWriter, name string) http.ResponseWriter {
	if name == "lost answer" {
		return httptest.NewRecorder()
	}
	return w
}

func TestARefusalIsNotRepeatedAndNamesTheObjectWithoutSecrets(t *testing.T) {
	t.Parallel()
	store := fakestore.New(t)
	env := store.Env()
	env[1] = "AWS_SECRET_ACCESS_KEY=another-secret"
	b := bucket(t, env, "s3://calls/of")
	err := b.Put(t.Context(), "of/k", "text/plain", []byte("v"))
	if want := "put s3://calls/of/k: the store answered 403 Forbidden (SignatureDoesNotMatch)"; err == nil ||
		err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, err := b.List(t.Context()); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
		t.Error(err)
	}
	if _, err := io.ReadAll(b.Get(t.Context(), "of/k")); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
		t.Error(err)
	}
	if got := len(store.Requests()); got != 3 {
		t.Errorf("%d requests", got)
	}
	store.Fail(func(w http.ResponseWriter, _ *http.Request, _ func()) bool {
		w.Header().Set("Location", store.URL+"/elsewhere")
		fakestore.Refuse(w, http.StatusMovedPermanently, "<b>")
		return true
	})
	err = b.Put(t.Context(), "of/k", "text/plain", []byte("v"))
	if err == nil || !strings.HasSuffix(err.Error(), "301 Moved Permanently: the bucket is elsewhere; set AWS_REGION, or "+
		"AWS_ENDPOINT_URL_S3") || len(store.Requests()) != 4 {
		t.Errorf("%v %v", err, store.Requests())
	}
	store.Fail(func(w http.ResponseWriter, _ *http.Request, _ func()) bool {
		fakestore.Refuse(w, http.StatusBadRequest, "AuthorizationHeaderMalformed")
		return true
	})
	err = b.Put(t.Context(), "of/k", "text/plain", []byte("v"))
	if err == nil || !strings.HasSuffix(err.Error(), ": set AWS_REGION to the region of the bucket") {
		t.Error(err)
	}
}

// A wrong address may lead to a page for people, which is there whatever is sent to it.
func TestOnlyTheAnswerOfAStoreConfirmsAnObject(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a page":          func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<!doctype html><html><body>Sign in") },
		"another success": func(w http.ResponseWriter) { w.Header().Set("ETag", `"1"`); w.WriteHeader(http.StatusAccepted) },
		"nothing":         func(http.ResponseWriter) {},
		"an error with it": func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"1"`)
			fakestore.Refuse(w, 200,
				"InternalError")
		},
	} {
		store := fakestore.New(t)
		store.Fail(func(w http.ResponseWriter, _ *http.Request, _ func()) bool { answer(w); return true })
		err := bucket(t, store.Env(), "s3://calls").Put(t.Context(), "k", "text/plain", []byte("v"))
		if err == nil || !strings.Contains(err.Error(), "put s3://calls/k: the answer is not that of a store") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAnswerThatStallsEnds(t *testing.T) {
	t.Parallel()
	store := fakestore.New(t)
	b := bucket(t, store.Env(), "s3://calls")
	objectstore.Hurry(b, 200*time.Millisecond)
	store.Fail(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	if _, err := b.List(t.Context()); err == nil || !strings.Contains(err.Error(), "the answer broke off") {
		t.Errorf("a list: %v", err)
	}
	if _, err := io.ReadAll(b.Get(t.Context(), "k")); err == nil || !strings.Contains(err.Error(),
		"the connection broke") {
		t.Errorf("an object: %v", err)
	}
}

func TestAListThatDoesNotEndIsRefused(t *testing.T) {
	t.Parallel()
	store := fakestore.New(t)
	store.Fail(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
		fmt.Fprintf(w, "<L><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents><NextContinuationToken>%s-"+
			"</NextContinuationToken></L>",
			r.URL.Query().Get("continuation-token"))
		return true
	})
	if _, err := bucket(t, store.Env(), "s3://calls").List(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "the store repeats its list") {
		t.Error(err)
	}
}

func TestTheRestOfAnObjectIsRequestedAgain(t *testing.T) {
	t.Parallel()
	store := fakestore.New(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	store.Set("/calls/k", content)
	cuts := 2
	store.Fail(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
		if cuts--; cuts < 0 || r.Method != http.MethodGet {
			return false
		}
		whole := httptest.NewRecorder()
		store.Serve(whole, r)
		w.Header().Set("ETag", whole.Header().Get("ETag"))
		w.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
		w.WriteHeader(whole.Code)
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/3])
		panic(http.ErrAbortHandler)
	})
	b := bucket(t, store.Env(), "s3://calls")
	got, err := io.ReadAll(b.Get(t.Context(), "k"))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d of %d bytes: %v", len(got), len(content), err)
	}
	if n := len(store.Requests()); n != 3 {
		t.Errorf("%d requests", n)
	}

	cuts = 1
	reading := b.Get(t.Context(), "k")
	if _, err := io.ReadFull(reading, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	store.Set("/calls/k", append([]byte("x"), content...)) // another object under the same key
	if _, err := io.ReadAll(reading); err == nil || !strings.Contains(err.Error(), "412 Precondition Failed") {
		t.Errorf("a mixture of two objects was read: %v", err)
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"s3://calls": "s3://calls", "s3://calls/": "s3://calls", "s3://my.calls-1/a/b=2/": "s3://my.calls-1/a/b=2",
		"S3://calls/x": "s3://calls/x",
		"s3://":        "", "s3:///x": "", "s3://Calls": "", "s3://a_b": "", "s3://calls//x": "", "s3://calls/../x": "",
		"s3://calls/a b": "", "s3://calls/a?b": "", "s3://a..b/x": "", "calls": "",
	} {
		got, err := objectstore.ParseLocation(text)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
}

func TestTheEnvironmentIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"plain http": {[]string{"AWS_ENDPOINT_URL_S3=http://store.example.com"}, "without https"},
		"no server":  {[]string{"AWS_ENDPOINT_URL_S3=store"}, "it is not the URL of a server"},
		"a password": {[]string{"AWS_ENDPOINT_URL_S3=https://a:secret\"@store"}, "it is not the URL of a server"},
		"a secret":   {[]string{"AWS_SECRET_ACCESS_KEY=se\ncret"}, "its value is not shown"},
		"a region":   {[]string{"AWS_REGION=eu central"}, "AWS_REGION"},
	} {
		var config objectstore.Config
		err := envvar.Read(lookup(c.env), &config)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "cret\"") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, env := range [][]string{nil, {"AWS_PROFILE=mine", "AWS_ACCESS_KEY_ID=k"}} {
		var config objectstore.Config
		if err := envvar.Read(lookup(env), &config); err != nil {
			t.Fatal(err)
		}
		_, err := objectstore.Open(objectstore.Location{Bucket: "calls"}, &config)
		if err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, since profiles") {
			t.Error(err)
		}
	}
}

func TestWithoutAnEndpointTheStoreIsAWS(t *testing.T) {
	t.Parallel()
	for bucketName, want := range map[string]string{
		"calls":    "https://calls.s3.eu-central-1.amazonaws.com/k",
		"my.calls": "https://s3.eu-central-1.amazonaws.com/my.calls/k",
	} {
		b := bucket(t, []string{"AWS_ACCESS_KEY_ID=k", "AWS_SECRET_ACCESS_KEY=s", "AWS_SESSION_TOKEN=token",
			"AWS_REGION=eu-central-1"}, "s3://"+bucketName)
		var got *http.Request
		objectstore.Through(b, func(r *http.Request) (*http.Response, error) {
			got = r
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{"Etag": {`"1"`}}}, nil
		})
		if err := b.Put(t.Context(), "k", "text/plain", nil); err != nil {
			t.Fatal(err)
		}
		if got.URL.String() != want || got.Header.Get("X-Amz-Security-Token") != "token" {
			t.Errorf("%s %v", got.URL, got.Header)
		}
	}
}
