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

// forms remember what came of each form for ten minutes, so that a form that is sent twice acts once, and the page that follows says what came of it.
type forms struct {
	mu   sync.Mutex
	sent map[string]*outcome // by user and form
}

type outcome struct {
	at   time.Time
	over chan struct{} // closed when to and done, or err, are there
	to   string
	done string
	kept any // what the page that follows shows of it
	err  error
}

const (
	formsKept = 10 * time.Minute
	mostForms = 10000 // of all users: beyond that the oldest are forgotten early
)

func newForms() *forms { return &forms{sent: map[string]*outcome{}} }

// newForm is the id of a form, which its hidden field `form` carries.
func newForm() string { return rand.Text() }

// once runs do for a form, or waits for the run that is under way, and returns where to go. A form that failed may be sent again.
func (f *forms) once(ctx context.Context, r *request, do func(context.Context, *request) (to, done string, err error)) (string, error) {
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

// run runs an act to its end, be it a panic: whoever waits for it goes on.
func (f *forms) run(key string, o *outcome, act func()) {
	o.err = errors.New("the act did not come to its end")
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

// forget removes what is old. The caller holds mu.
func (f *forms) forget() {
	for key, o := range f.sent {
		if time.Since(o.at) > formsKept || len(f.sent) > mostForms {
			delete(f.sent, key)
		}
	}
}

// done is what came of the form that a page's URL names, in a sentence.
func (f *forms) done(r *request) string {
	if o := f.outcome(r); o != nil {
		return o.done
	}
	return ""
}

// kept is what the act on the form that a page's URL names left in [request.kept] for that page; nil for nothing.
func (f *forms) kept(r *request) any {
	if o := f.outcome(r); o != nil {
		return o.kept
	}
	return nil
}

// outcome is that of the form that a page's URL names; nil if it is not over, or not known.
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
