package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// registry acts as all registries: /v2/… gives clients with a token the manifest of a tag, and /token a token.
type registry struct {
	*httptest.Server
	manifest func(host, path string) string
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{manifest: func(host, path string) string { return `{"manifest of": "` + host + path + `"}` }}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		host := q.Header.Get("X-Host")
		if q.URL.Path == "/token" {
			if q.URL.Query().Get("service") == "" || q.URL.Query().Get("scope") == "" {
				w.WriteHeader(http.StatusBadRequest)
			}
			fmt.Fprintf(w, `{"token": "for %s"}`, q.URL.Query().Get("service"))
			return
		}
		if q.Header.Get("Authorization") != "Bearer for "+host {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(
				`Bearer realm="https://auth.%s/token",service="%s",scope="repository:x:pull"`, host, host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body := r.manifest(host, q.URL.Path)
		if body == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if !strings.Contains(q.Header.Get("Accept"), "index") && len(q.Header.Values("Accept")) < 2 {
			w.WriteHeader(http.StatusNotAcceptable)
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(r.Close)
	return r
}

// client sends every request here, whatever its host.
func (r *registry) client() *http.Client { return &http.Client{Transport: r} }

func (r *registry) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("X-Host", q.URL.Host)
	q.URL.Host = r.Listener.Addr().String()
	return r.Client().Transport.RoundTrip(q)
}

// copied is a folder with the files of the repository that name images.
func copied(t *testing.T) string {
	t.Helper()
	const root = "../.."
	to := t.TempDir()
	for _, pattern := range files {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			there := filepath.Join(to, strings.TrimPrefix(path, root))
			if err := os.MkdirAll(filepath.Dir(there), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(there, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return to
}

func read(t *testing.T, root string) (all string) {
	t.Helper()
	for _, pattern := range files {
		paths, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all += string(text)
		}
	}
	return all
}

func sum(manifest string) string { return fmt.Sprintf("@sha256:%x", sha256.Sum256([]byte(manifest))) }

func TestEveryImageOfTheRepositoryIsPinned(t *testing.T) {
	t.Parallel()
	r, root := newRegistry(t), copied(t)
	before := read(t, root)
	if err := pin(root, r.client(), io.Discard); err != nil {
		t.Fatal(err)
	}
	after := read(t, root)
	for tagged, manifest := range map[string]string{
		"postgres:17": r.manifest("registry-1.docker.io", "/v2/library/postgres/manifests/17"),
		"postgrest/postgrest:v12.0.2": r.manifest("registry-1.docker.io",
			"/v2/postgrest/postgrest/manifests/v12.0.2"),
		"gcr.io/distroless/static-debian12:nonroot": r.manifest("gcr.io", "/v2/distroless/static-debian12/manifests/nonroot"),
	} {
		was := strings.Count(before, tagged)
		if got := strings.Count(after, tagged+sum(manifest)); was == 0 || got != was {
			t.Errorf("%s: pinned %d of %d times", tagged, got, was)
		}
	}
	// Every name with a tag, even where the program does not look for one.
	if left := regexp.MustCompile(`(?m)(_IMAGE=|:-|image: |FROM )([a-z][\w./-]+:[\w.-]+)([^\w.@-].*)?$`).
		FindAllString(after, -1); left != nil {
		t.Errorf("not pinned: %q", left)
	}
	unpinned := regexp.MustCompile(`@sha256:[0-9a-f]{64}`)
	if unpinned.ReplaceAllString(after, "") != unpinned.ReplaceAllString(before, "") {
		t.Error("it changed more than digests")
	}
}

func TestAPinnedImageFollowsItsTag(t *testing.T) {
	t.Parallel()
	r, root := newRegistry(t), copied(t)
	if err := pin(root, r.client(), io.Discard); err != nil {
		t.Fatal(err)
	}
	first := read(t, root)
	if err := pin(root, r.client(), io.Discard); err != nil || read(t, root) != first {
		t.Errorf("the same tags gave other digests (%v)", err)
	}
	r.manifest = func(string, string) string { return "newer" }
	if err := pin(root, r.client(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root); !strings.Contains(got, "postgres:17"+sum("newer")+"}") {
		t.Error("the digest is not that of the tag")
	}
}

func TestWithoutAnAnswerNothingIsChanged(t *testing.T) {
	t.Parallel()
	r, root := newRegistry(t), copied(t)
	before, answer := read(t, root), r.manifest
	r.manifest = func(host, path string) string {
		if host == "gcr.io" {
			return ""
		}
		return answer(host, path)
	}
	if err := pin(root, r.client(), io.Discard); err == nil || !strings.Contains(err.Error(), "gcr.io answers 404") {
		t.Errorf("got the error %v", err)
	}
	if read(t, root) != before {
		t.Error("a file was changed")
	}
}

func TestARegistryThatContradictsItselfIsRefused(t *testing.T) {
	t.Parallel()
	r := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Docker-Content-Digest", "sha256:other")
	}))
	t.Cleanup(r.Close)
	if _, err := digest(r.Client(), r.Listener.Addr().String()+"/a:1"); err == nil ||
		!strings.Contains(err.Error(), "sha256:other") {
		t.Errorf("got the error %v", err)
	}
}
