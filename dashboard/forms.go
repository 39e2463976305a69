package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"
)

// forms keeps the outcome of each form for ten minutes, so that a form that is sent twice acts once, and the next
// page can show the outcome.
type forms struct {
	mu   sync.Mutex
	sent map[string]*outcome // by user and form
}

type outcome struct {
	at   time.Time
	over chan struct{} // closed when to and done, or err, are set
	to   string
	done string
	kept any // data for the next page
	err  error
}

const (
	formsKept = 10 * time.Minute
	mostForms = 10000 // of all users: above this the oldest are removed early
)

func newForms() *forms { return &forms{sent: map[string]*outcome{}} }

// newForm returns the id of a form, for its hidden field `form`.
func newForm() string { return rand.Text() }

// once calls do for a form, or waits for the running call of do, and returns where to go. A form that failed may be
// sent again.
func (f *forms) once(ctx context.Context, r *request,
	do func(context.Context, *request) (to, done string, err error)) (string, error) {
	id := r.PostForm.Get("form")
	if len(id) < 20 || len(id) > 64 {
		return "", badRequest("The form has no id. Reload the page.")
	}
	key := r.user.Name + "\x00" + id
	f.mu.Lock()
	o, again := f.sent[key]
	if !again {
		o = &outcome{at: time.Now(), over: make(chan struct{})}
		f.forget()
		f.sent[key] = o
	}
	f.mu.Unlock()
	if again {
		select {
		case <-o.over:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	} else {
		f.run(key, o, func() { o.to, o.done, o.err = do(ctx, r); o.kept = r.kept })
	}
	if o.err != nil || o.done == "" {
		return o.to, o.err
	}
	sep := "?"
	if strings.Contains(o.to, "?") {
		sep = "&"
	}
	return o.to + sep + "done=" + url.QueryEscape(id), nil
}

// run calls act, and closes the outcome even after a panic, so that nobody waits forever.
func (f *forms) run(key string, o *outcome, act func()) {
	o.err = errors.New("the action did not finish")
	defer func() {
		if o.err != nil {
			f.mu.Lock()
			delete(f.sent, key)
			f.mu.Unlock()
		}
		close(o.over)
	}()
	act()
}

// forget removes expired forms, and the oldest form if the limit is reached. The caller holds mu.
func (f *forms) forget() {
	oldest := ""
	for key, o := range f.sent {
		if time.Since(o.at) > formsKept {
			delete(f.sent, key)
		} else if oldest == "" || o.at.Before(f.sent[oldest].at) {
			oldest = key
		}
	}
	if len(f.sent) >= mostForms {
		delete(f.sent, oldest)
	}
}

// done returns the sentence about the form in the page's URL.
func (f *forms) done(r *request) string {
	if o := f.outcome(r); o != nil {
		return o.done
	}
	return ""
}

// kept returns the data that the form in the page's URL left in [request.kept], or nil.
func (f *forms) kept(r *request) any {
	if o := f.outcome(r); o != nil {
		return o.kept
	}
	return nil
}

// outcome returns the outcome of the form in the page's URL, or nil if it is unfinished or unknown.
func (f *forms) outcome(r *request) *outcome {
	id := r.URL.Query().Get("done")
	if id == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.sent[r.user.Name+"\x00"+id]
	if o == nil {
		return nil
	}
	select {
	case <-o.over:
		return o
	default:
		return nil
	}
}
