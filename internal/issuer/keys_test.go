package issuer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/issuertest"
	"github.com/gemworker/gem/internal/testing/switching"
	"github.com/golang-jwt/jwt/v5"
)

const (
	testIssuer   = "https://issuer.example"
	testAudience = "https://tools.example.com/mcp"
)

func sign(t *testing.T, i *issuertest.Issuer, kid string) string {
	t.Helper()
	return issuertest.Sign(t, jwt.SigningMethodES256, i.EC, kid, map[string]any{
		"iss": testIssuer, "aud": testAudience, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()})
}

func TestAnIssuerThatSwitchesProtocolsHoldsNobody(t *testing.T) {
	t.Parallel()
	url, closed := switching.New(t)
	keys := NewKeys(url, time.Now)
	if _, err := keys.key(t.Context(), "a", "ES256"); err == nil {
		t.Error("there is a key")
	}
	<-closed
}

// slowIssuer returns the keys of an issuer that reports the only fetch on asked, and answers it once answer is closed.
func slowIssuer(t *testing.T) (keys *Keys, asked, answer chan struct{}) {
	i := issuertest.New(t)
	asked, answer = make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-answer
		http.Redirect(w, r, i.URL, http.StatusFound)
	}))
	t.Cleanup(s.Close)
	keys = NewKeys(s.URL, time.Now)
	keys.client.CheckRedirect = nil
	return keys, asked, answer
}

func TestAnIssuerThatDoesNotAnswerHoldsNobodyBeyondTheirContext(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-answer
		http.Redirect(w, r, "/", http.StatusFound)
	}))
	t.Cleanup(s.Close)
	keys := NewKeys(s.URL, time.Now)
	waits := make(chan error, 1)
	go func() {
		_, err := keys.key(t.Context(), "a", "ES256")
		waits <- err
	}()
	<-asked
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := keys.key(hurried, "a", "ES256"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who cannot wait: %v", err)
	}
	close(answer)
	if err := <-waits; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the caller who waits: %v", err)
	}
	if n := len(asked); n > 0 {
		t.Errorf("%d more fetches", n)
	}

	// The caller who began the fetch may leave it to the others.
	keys, began, answered := slowIssuer(t)
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := keys.key(first, "ec", "ES256")
		left <- err
	}()
	<-began
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who left: %v", err)
	}
	close(answered)
	if _, err := keys.key(t.Context(), "ec", "ES256"); err != nil {
		t.Errorf("the next caller: %v", err)
	}
}

// A token with a new key is not refused for good while the new keys cannot be had.
func TestANewKeyIsUnknownAndNotRefusedWhileTheIssuerIsAway(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	var gone atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gone.Load() {
			http.Error(w, "", http.StatusBadGateway)
			return
		}
		http.Redirect(w, r, i.URL, http.StatusFound)
	}))
	t.Cleanup(s.Close)
	now := time.Now()
	keys := NewKeys(s.URL, func() time.Time { return now })
	keys.client.CheckRedirect = nil
	if _, err := keys.key(t.Context(), "ec", "ES256"); err != nil {
		t.Fatal(err)
	}
	var refused *RefusedError
	if _, err := keys.key(t.Context(), "new", "ES256"); !errors.As(err, &refused) {
		t.Errorf("less than a minute after an answer without the key: %v", err)
	}
	gone.Store(true)
	now = now.Add(2 * keysPause)
	for _, when := range []string{"the fetch failed", "the fetch failed less than a minute ago"} {
		if _, err := keys.key(t.Context(), "new", "ES256"); err == nil || errors.As(err, &refused) {
			t.Errorf("%s: %v", when, err)
		}
		if _, err := keys.key(t.Context(), "ec", "ES256"); err != nil {
			t.Errorf("%s, a known key: %v", when, err)
		}
	}
}

func TestAFetchHasALimitOfCallersThatWait(t *testing.T) {
	t.Parallel()
	keys, asked, answer := slowIssuer(t)
	var waiting sync.WaitGroup
	var found atomic.Int64
	wait := func() {
		if _, err := keys.key(t.Context(), "ec", "ES256"); err == nil {
			found.Add(1)
		}
	}
	waiting.Go(wait)
	<-asked
	counted := func() int {
		keys.mu.Lock()
		defer keys.mu.Unlock()
		return keys.fetching.waiting
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := keys.key(ctx, "ec", "ES256")
		left <- err
	}()
	for counted() < 2 {
		runtime.Gosched()
	}
	for n := 2; n < maxWaiting; n++ {
		waiting.Go(wait)
		for counted() == n {
			runtime.Gosched()
		}
	}
	if _, err := keys.key(t.Context(), "ec", "ES256"); !errors.Is(err, ErrKeysAway) {
		t.Errorf("one too many: %v", err)
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who leaves: %v", err)
	}
	waiting.Go(wait) // in the place of the one who left
	for counted() < maxWaiting {
		runtime.Gosched()
	}
	close(answer)
	waiting.Wait()
	if n := found.Load(); n != maxWaiting {
		t.Errorf("%d of %d got the key", n, maxWaiting)
	}
}

func TestUnknownKeysAreFetchedOnceAMinute(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	clock := atomic.Pointer[time.Time]{}
	start := time.Now()
	clock.Store(&start)
	later := func(d time.Duration) { at := clock.Load().Add(d); clock.Store(&at) }
	v := NewVerifier(testIssuer, testAudience, NewKeys(i.URL, func() time.Time { return *clock.Load() }), "", time.Now)
	var flood sync.WaitGroup
	for n := range 100 {
		token := sign(t, i, fmt.Sprint("unknown ", n))
		flood.Go(func() {
			var refused *RefusedError
			if _, err := v.Verify(t.Context(), token); !errors.As(err, &refused) {
				t.Errorf("error %v", err)
			}
		})
	}
	flood.Wait()
	if n := i.Fetches.Load(); n != 1 {
		t.Errorf("%d fetches for a hundred unknown keys", n)
	}
	i.Rename("ec", "new")
	rotated, before := sign(t, i, "new"), sign(t, i, "ec")
	if _, err := v.Verify(t.Context(), rotated); err == nil {
		t.Error("a key was fetched within the minute")
	}
	later(keysPause)
	if _, err := v.Verify(t.Context(), rotated); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	if _, err := v.Verify(t.Context(), before); err == nil {
		t.Error("a key that the issuer took away is still good")
	}
	i.Answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) })
	later(keysAge + time.Second)
	if _, err := v.Verify(t.Context(), rotated); err != nil {
		t.Errorf("while the issuer is away: %v", err)
	}
	if n := i.Fetches.Load(); n != 3 {
		t.Errorf("%d fetches in all", n)
	}
}

func TestATokenIsNotRefusedWhileNobodyKnowsTheKeys(t *testing.T) {
	t.Parallel()
	i := issuertest.New(t)
	elsewhere := issuertest.New(t)
	for name, answer := range map[string]http.HandlerFunc{
		"away":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusServiceUnavailable) },
		"no keys":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`<html>`)) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		},
		"without an end": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*maxAnswer)) },
	} {
		i.Answers(answer)
		v := NewVerifier(testIssuer, testAudience, NewKeys(i.URL, time.Now), "", time.Now)
		for range 2 {
			_, err := v.Verify(t.Context(), sign(t, i, "ec"))
			var refused *RefusedError
			if err == nil || errors.As(err, &refused) {
				t.Errorf("%s: error %v", name, err)
			}
		}
	}
	if n := i.Fetches.Load(); n != 5 {
		t.Errorf("%d fetches", n)
	}
	if n := elsewhere.Fetches.Load(); n != 0 {
		t.Errorf("keys were fetched from another host")
	}
}
