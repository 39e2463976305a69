package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"go.uber.org/zap"
)

// live rereads pages for all browsers that watch them: each page once for all users with the same rights, one after
// the other. It reads nothing while nobody watches.
type live struct {
	site  *site
	pages *http.ServeMux // their show functions, called with a *rendered
	wake  chan struct{}  // somebody watches a page that has not been read
	time  time.Duration  // limit of a stream

	mu     sync.Mutex
	groups map[pageKey]*group
	users  map[string]int // streams
	all    int            // streams
	stop   context.CancelFunc
	away   bool // the last read failed
}

const (
	mostStreams       = 500
	mostStreamsOfUser = 200
)

// The statements per second that all pages may use together, and how many unused ones are saved.
const (
	allowance     = 6
	mostAllowance = 30
)

// mostPatience is the largest number of intervals of pace.page after which the page of a running call is reread
// although its mark did not change.
const mostPatience = 8

// pageKey identifies a page for one read: it is shown to everybody with the same rights, except for one user's
// questions.
type pageKey struct {
	path, base string
	user       User
}

// group holds the streams of one page.
type group struct {
	pageKey
	// The fields below are guarded by live.mu.
	streams map[chan struct{}]bool // each has room for one message: there are changes
	watch   string                 // of the page's view; empty before the first read
	parts   []*part
	over    *pageError // the page is gone
	unready bool       // the database lacks a table or function of the page
	due     time.Time  // when it is read again
	mark    view.Mark  // of the call whose page it is
	read    time.Time  // when it was last read
	patient int        // the number of intervals of pace.page until the page of a running call is reread
}

// part is a piece of a page, as an event.
type part struct {
	id      string
	version int
	frame   string
}

// news are the changes that a stream does not have yet.
type news struct {
	away   string // why the page cannot be read now; may be empty
	over   *pageError
	frames []string
}

func newLive(s *site) *live {
	return &live{site: s, pages: http.NewServeMux(), wake: make(chan struct{}, 1), time: streamTime,
		groups: map[pageKey]*group{}, users: map[string]int{}}
}

// join adds a user's stream to a page, and starts reading the page if it is the first.
func (l *live) join(key pageKey, user string) (*group, chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= mostStreams || l.users[user] >= mostStreamsOfUser {
		return nil, nil, errors.New("too many live pages are open: close some, or reload this page yourself")
	}
	l.all++
	l.users[user]++
	g := l.groups[key]
	if g == nil {
		g = &group{pageKey: key, streams: map[chan struct{}]bool{}}
		l.groups[key] = g
	}
	news := make(chan struct{}, 1)
	g.streams[news] = true
	if g.watch != "" || g.over != nil || g.unready || l.away {
		news <- struct{}{}
	}
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		l.stop, l.away = stop, false
		go l.run(ctx)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return g, news, nil
}

func (l *live) leave(g *group, news chan struct{}, user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.users[user]--; l.users[user] == 0 {
		delete(l.users, user)
	}
	if delete(g.streams, news); len(g.streams) == 0 {
		delete(l.groups, g.pageKey)
	}
	if len(l.groups) == 0 {
		l.stop()
		l.stop = nil
	}
}

// state returns the changes that a stream with these versions does not have yet. It gets a part that has changed
// twice only once.
func (l *live) state(g *group, sent map[string]int) news {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := news{over: g.over}
	if l.away {
		n.away = "The database cannot be reached. The page reconnects automatically."
	} else if g.unready {
		n.away = otherSchema + " The page reconnects automatically."
	}
	for _, p := range g.parts {
		if n.away == "" && sent[p.id] != p.version {
			sent[p.id] = p.version
			n.frames = append(n.frames, p.frame)
		}
	}
	return n
}

// notify wakes the streams of a group. The caller holds mu.
func (g *group) notify() {
	for news := range g.streams {
		select {
		case news <- struct{}{}:
		default: // it has not read the last message yet
		}
	}
}

func (l *live) run(ctx context.Context) {
	beat := time.NewTicker(pace.beat)
	defer beat.Stop()
	var spent atomic.Int64
	ctx = view.Counted(ctx, &spent)
	for may := mostAllowance; ctx.Err() == nil; may = max(may-int(spent.Swap(0)), -mostAllowance) {
		l.read(ctx, func() bool { return int(spent.Load()) < may })
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-beat.C:
			may = min(may+allowance, mostAllowance)
			l.findMoved(ctx)
		}
	}
}

// findMoved finds the watched calls that have changed, in one statement, and makes their pages due.
func (l *live) findMoved(ctx context.Context) {
	of := map[string][]*group{}
	l.mu.Lock()
	away := l.away
	for _, g := range l.groups {
		if id, ok := strings.CutPrefix(g.watch, "call:"); ok && g.over == nil {
			of[id] = append(of[id], g)
		}
	}
	l.mu.Unlock()
	if len(of) == 0 || away {
		return
	}
	ids := make([]string, 0, len(of))
	for id := range of {
		ids = append(ids, id)
	}
	var marks map[string]view.Mark
	err := view.Read(ctx, l.site.Read, func(ctx context.Context, db view.DB) (err error) {
		marks, err = view.Moved(ctx, db, ids)
		return err
	})
	if err != nil {
		l.failed(ctx, nil, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, groups := range of {
		for _, g := range groups {
			if m := marks[id]; g.mark != m {
				due := time.Now()
				if g.mark.Status == m.Status { // progress and steps may change constantly
					due = g.read.Add(pace.page - pace.beat/2)
				}
				// A page that changes constantly would otherwise always follow pages that have been due for longer.
				if due.Before(g.due) {
					g.due = due
				}
				g.mark, g.patient = m, 0
			}
		}
	}
}

// read reads the pages that are due while the allowance lasts, in the order in which they became due. It always reads
// new pages, the overview and the workers: those are one page each, or a browser has just opened them.
func (l *live) read(ctx context.Context, may func() bool) {
	for _, g := range l.due(ctx) {
		if ctx.Err() != nil {
			break
		}
		if g.watch != "" && g.watch != "overview" && g.watch != "workers" && !may() {
			continue
		}
		began := time.Now()
		name, html, err := l.render(ctx, g)
		if err != nil {
			if l.failed(ctx, g, err) {
				break // the others would fail too
			}
			continue
		}
		l.done(g, name, html, time.Since(began))
	}
}

func (l *live) due(ctx context.Context) (due []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil // these belong to the next reader
	}
	now := time.Now()
	for _, g := range l.groups {
		if g.over == nil && !g.due.After(now) {
			due = append(due, g)
		}
	}
	slices.SortFunc(due, func(a, b *group) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.path, b.path)) })
	return due
}

// pageRequest is the request of a page for live, and receives the page's view.
type pageRequest struct {
	http.ResponseWriter // for the mux's own answers, which are not pages: nil, and never called
	key                 pageKey
	r                   *request
	view                *content
	err                 error
}

func (*pageRequest) Header() http.Header         { return http.Header{} }
func (*pageRequest) Write(b []byte) (int, error) { return len(b), nil }
func (*pageRequest) WriteHeader(int)             {}

// page registers a page that can be watched.
func (l *live) page(path string, show func(context.Context, *request) (*content, error)) {
	l.pages.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) {
		p := w.(*pageRequest)
		p.r = &request{Request: q, site: l.site, base: p.key.base, user: p.key.user, live: true}
		p.view, p.err = show(q.Context(), p.r)
	})
}

// piece is an element's new content.
type piece struct {
	id   string
	html []byte
}

// render reads a page and renders its parts. watch is the page's own setting.
func (l *live) render(ctx context.Context, g *group) (watch string, pieces []piece, err error) {
	// A panic in a request ends only the request; here it would end the process.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, g.path, nil)
	if err != nil {
		return "", nil, notFound("This page does not exist.")
	}
	p := &pageRequest{key: g.pageKey}
	l.pages.ServeHTTP(p, q)
	switch {
	case p.err != nil:
		return "", nil, p.err
	case p.view == nil || p.view.Watch == "":
		return "", nil, notFound("This page does not exist, or it has no live updates.")
	}
	names := p.view.Live
	if names == nil {
		names = []string{"live"}
	}
	shell := l.site.shell(p.r, p.view)
	for _, name := range names {
		var html bytes.Buffer
		if err := l.site.write(&html, name, shell); err != nil {
			return "", nil, err
		}
		pieces = append(pieces, piece{name, html.Bytes()})
	}
	return p.view.Watch, pieces, nil
}

// done stores the result of a read, and notifies the streams if it has changed. A page that is slow to read is read
// less often: for a twentieth of the time at most. The same applies to the page of a running call, until the call
// changes.
func (l *live) done(g *group, name string, pieces []piece, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.unready {
		g.unready = false
		g.notify()
	}
	if l.away {
		l.away = false
		for _, other := range l.groups {
			other.due = time.Time{}
			other.notify()
		}
	}
	first := g.watch == ""
	g.watch, g.read = name, time.Now()
	wait := pace.page
	if strings.HasPrefix(name, "call:") {
		g.patient = min(max(2*g.patient, 1), mostPatience)
		if wait *= time.Duration(g.patient); !g.mark.Runs() {
			wait = 24 * time.Hour // until the call changes
		}
	}
	g.due = g.read.Add(max(wait-pace.beat/2, 20*took)) // at the nearest beat
	for len(g.parts) < len(pieces) {
		g.parts = append(g.parts, &part{})
	}
	changed := first
	for i, p := range pieces {
		changed = g.parts[i].set(p) || changed
	}
	if changed {
		g.notify()
	}
}

var (
	times   = regexp.MustCompile(`(<time [^>]*>)[^<]*</time>`)
	formIDs = regexp.MustCompile(`(name="form" value=")[^"]*"`)
)

// set makes an event of an element's content, and reports whether it differs from the last. Times are compared as
// points in time, not by their distance from now, and forms without their ids. The browser fills in both.
func (p *part) set(of piece) bool {
	html := formIDs.ReplaceAll(times.ReplaceAll(of.html, []byte("$1</time>")), []byte(`$1"`))
	var frame strings.Builder
	frame.WriteString("data: " + of.id + "\n")
	for line := range bytes.Lines(html) {
		frame.WriteString("data: ")
		frame.Write(bytes.TrimRight(line, "\r\n"))
		frame.WriteString("\n")
	}
	frame.WriteString("\n")
	if frame.String() == p.frame {
		return false
	}
	p.id, p.frame, p.version = of.id, frame.String(), p.version+1
	return true
}

// failed stores the error of a read and ends its streams, unless the database is unreachable or too slow: then the
// page is reread later. It returns true if reading other pages makes no sense.
func (l *live) failed(ctx context.Context, g *group, err error) bool {
	if ctx.Err() != nil {
		return true // nobody is watching
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var page *pageError
	var none *client.NotFoundError
	switch {
	case isAway(err):
		if !l.away {
			l.site.Log.Warn("the watched pages cannot be read; retrying every second", zap.Error(err))
		}
		l.away = true
		for _, other := range l.groups {
			other.notify()
		}
		return true
	case lacksSchema(err):
		for _, other := range l.groups {
			if g == nil && strings.HasPrefix(other.watch, "call:") {
				other.due = time.Time{} // each is read, and reports its own error
			}
		}
		if g == nil {
			return false
		}
		if !g.unready {
			l.site.Log.Warn("the database lacks a table or function of a watched page; retrying",
				zap.String("page", cut(300, g.path)), zap.Error(err))
		}
		g.unready, g.due = true, time.Now().Add(pace.page)
	case errors.Is(err, view.ErrTooSlow):
		if g != nil {
			// It is not new any more, and is read within the allowance.
			g.due, g.watch = time.Now().Add(5*pace.page), cmp.Or(g.watch, "list")
		}
	case g == nil:
		l.site.Log.Error("the watched calls cannot be read", zap.Error(err))
	case errors.As(err, &page):
		g.over = page
	case errors.As(err, &none):
		g.over = &pageError{http.StatusNotFound, "The call no longer exists. It may have been pruned."}
	default:
		l.site.Log.Error("a watched page cannot be shown", zap.Error(err))
		g.over = &pageError{http.StatusInternalServerError, "Something went wrong on this page. It no longer updates."}
	}
	if g != nil {
		g.notify()
	}
	return false
}
