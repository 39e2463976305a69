package dashboard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// pace sets how often work is done while somebody watches. Tests shorten it.
var pace = struct{ beat, page, comment time.Duration }{
	beat:    time.Second,     // looks for changed calls
	page:    2 * time.Second, // rereads a page whose changes no row shows
	comment: 15 * time.Second,
}

// streamTime limits a stream. Each new one is a new request, which a proxy can reject: a proxy that signs people in
// does not report lost rights on an open stream.
const streamTime = 10 * time.Minute

// slowReader is how long a browser may take to receive an event.
const slowReader = 10 * time.Second

// stream answers /live?watch=PAGE with Server-Sent Events. Each is a changed part of the page: the first line is the
// id of its element, and the rest its content. Named events are `away` and `back`, for the database, `renew`, which
// asks for the next stream, and `over`, which says why the stream ends for good.
func (s *site) stream(w http.ResponseWriter, q *http.Request) {
	r, err := s.request(q)
	if err != nil {
		t := s.describe(q, err)
		plainError(w, t.Text, t.Status)
		return
	}
	page, err := watched(r)
	if err != nil {
		plainError(w, err.Error(), http.StatusBadRequest)
		return
	}
	g, news, err := s.live.join(page, r.user.Name)
	if err != nil {
		w.Header().Set("Retry-After", "30")
		plainError(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.live.leave(g, news, r.user.Name)

	out := &sse{w: w, control: http.NewResponseController(w), sent: map[string]int{}}
	comment := time.NewTicker(pace.comment)
	defer comment.Stop()
	renew := time.NewTimer(s.live.time)
	defer renew.Stop()
	for !out.over {
		select {
		case <-q.Context().Done():
			if !out.begun { // browsers do not reconnect after an empty answer
				http.Error(w, "This dashboard is stopping.", http.StatusServiceUnavailable)
			}
			return
		case <-news:
			out.send(s.live.state(g, out.sent))
		case <-renew.C:
			out.event("renew", "This stream has reached its time limit.")
			return
		case <-comment.C:
			if user, err := s.User(q); err != nil || user != r.user {
				out.event("over", "You are no longer signed in as before. Load this page again.")
				return
			}
			out.write(": here\n\n")
		}
	}
}

// watched returns the page that a request watches: its path and query below Base, or one of the short names for
// scripts.
func watched(r *request) (pageKey, error) {
	path := r.URL.Query().Get("watch")
	switch kind, rest, _ := strings.Cut(path, ":"); kind {
	case "overview":
		path = "/"
	case "workers":
		path = "/workers"
	case "calls":
		path = "/calls?" + rest
	case "call":
		path = "/calls/" + url.PathEscape(rest)
	}
	u, err := url.Parse(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || len(path) > 4000 {
		return pageKey{}, errors.New("watch must be the path of a page, or overview, workers, calls:FILTER or call:ID")
	}
	query := u.Query()
	query.Del("done")                          // the outcome of a form is shown once
	if u.Path == "/" || u.Path == "/workers" { // pages that are always read have only these names
		span := query.Get("range")
		if query = (url.Values{}); u.Path == "/" && span == "day" {
			query.Set("range", span)
		}
	}
	u = &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: query.Encode()}
	key := pageKey{path: u.RequestURI(), base: r.base, user: User{Operator: r.operates()}}
	switch {
	case u.Path == "/workers", u.Path == "/" && !r.mayAnswer(): // show the same to everybody
		key.user = User{}
	case u.Path == "/", strings.HasPrefix(u.Path, "/questions"), strings.HasPrefix(u.Path, "/calls/") && r.mayAnswer():
		// These pages show one user's questions.
		key.user = r.user
	}
	return key, nil
}

// sse writes events to one browser.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sent    map[string]int // the version of each sent part
	begun   bool
	away    string
	over    bool // the stream has ended, or its browser is gone or too slow
}

func (o *sse) write(text string) {
	if !o.begun {
		o.begun = true
		h := o.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // nginx passes events on at once
		// Spread out the reconnections of browsers that lost a server.
		text = fmt.Sprintf("retry: %d\n\n", 1000+rand.IntN(2000)) + text
	}
	_ = o.control.SetWriteDeadline(time.Now().Add(slowReader)) // otherwise the server's own deadline applies
	_, err := o.w.Write([]byte(text))
	if err == nil {
		err = o.control.Flush()
	}
	o.over = o.over || err != nil
}

func (o *sse) event(name, text string) {
	o.write("event: " + name + "\ndata: " + visible(strings.ReplaceAll(text, "\n", " ")) + "\n\n")
}

// send sends the changes that a stream does not have yet.
func (o *sse) send(n news) {
	switch {
	case n.over != nil && !o.begun:
		plainError(o.w, n.over.text, n.over.status)
		o.over = true
	case n.over != nil:
		o.event("over", n.over.text)
		o.over = true
	case n.away != "" && n.away != o.away:
		o.event("away", n.away)
	case n.away == "" && o.away != "":
		o.event("back", "The database answers again.")
	}
	o.away = n.away
	for _, frame := range n.frames {
		if !o.over {
			o.write(frame)
		}
	}
}
