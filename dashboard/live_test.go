package dashboard

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// shown is a test page: it shows a number, and counts its reads.
type shown struct {
	number, reads atomic.Int64
	fail          atomic.Pointer[error]
	watch         string
}

func (p *shown) show(_ context.Context, r *request) (*content, error) {
	p.reads.Add(1)
	if err := p.fail.Load(); err != nil {
		return nil, *err
	}
	data := workersData{Alive: int(p.number.Load())}
	if r.operates() {
		data.Registries = []string{"for operators"}
		data.Registries = append(data.Registries, "and nobody else")
	}
	return &content{Title: "A page", Template: "workers", Data: data, Watch: p.watch}, nil
}

type showing map[string]func(context.Context, *request) (*content, error)

// testSite serves pages by their paths.
func testSite(t *testing.T, o Options, pages showing, base ...context.Context) (*site, *httptest.Server) {
	t.Helper()
	if o.User == nil {
		o.User = func(*http.Request) (User, error) { return User{Name: "ada"}, nil }
	}
	o.Log = zap.NewNop()
	s := &site{Options: o, forms: newForms()}
	s.live = newLive(s)
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", s.stream)
	for path, show := range pages {
		s.page(mux, path, show)
	}
	ctx, stop := context.WithCancel(append(base, context.Background())[0])
	server := httptest.NewUnstartedServer(mux)
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	server.Start()
	t.Cleanup(func() {
		stop()
		server.Close()
	})
	return s, server
}

// browser reads a stream.
type browser struct {
	t      *testing.T
	lines  *bufio.Scanner
	status int
	close  func()
}

func watchPage(t *testing.T, server *httptest.Server, watch string, header ...string) *browser {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live?watch="+watch, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		q.Header.Set("Test-User", h)
	}
	answer, err := server.Client().Do(q) //nolint:bodyclose // close does
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, lines: bufio.NewScanner(answer.Body), status: answer.StatusCode,
		close: func() { stop(); _ = answer.Body.Close() }}
	t.Cleanup(b.close)
	return b
}

// next returns the next event: its name, and its data without the tags. It is empty when the stream has ended.
func (b *browser) next() (name, data string) {
	for b.lines.Scan() {
		line := b.lines.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data += line[len("data: "):] + "\n"
		case line == "" && data != "":
			return name, data
		}
	}
	return "", ""
}

// number returns the number of the next page.
func (b *browser) number() int {
	b.t.Helper()
	name, data := b.next()
	if name != "" || data == "" {
		b.t.Fatalf("event %q: %s", name, data)
	}
	return numberIn(data)
}

func numberIn(data string) int {
	_, rest, _ := strings.Cut(data, `data-title="Workers: `)
	number, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(number)
	return n
}

func (l *live) isIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop == nil && l.all == 0 && len(l.groups) == 0 && len(l.users) == 0
}

func TestAPartIsSentWhenItHasChanged(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	_, server := testSite(t, Options{}, showing{"/page": p.show})
	b := watchPage(t, server, "/page")
	if n := b.number(); n != 0 {
		t.Fatalf("at first %d", n)
	}
	reads := p.reads.Load()
	testdb.Eventually(t, "the page is not read again", func() bool { return p.reads.Load() > reads+3 })
	p.number.Store(7)
	if n := b.number(); n != 7 { // a part that had not changed would have come before
		t.Fatalf("then %d", n)
	}
}

func TestOneReadingServesAllBrowsersOfAPage(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	s, server := testSite(t, Options{}, showing{
		"/page": func(ctx context.Context, r *request) (*content, error) {
			p.number.Add(1)
			return p.show(ctx, r)
		}})
	var mu sync.Mutex
	var most int
	var all sync.WaitGroup
	for range 100 {
		b := watchPage(t, server, "/page")
		all.Go(func() {
			for range 4 {
				_, data := b.next()
				mu.Lock()
				most = max(most, numberIn(data))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	// Each read shows another number: with one read for all, the numbers do not run ahead of the browsers.
	if reads := p.reads.Load(); reads > int64(most)+50 {
		t.Errorf("%d readings, of which 100 browsers saw the %d first", reads, most)
	}
	server.CloseClientConnections()
	testdb.Eventually(t, "streams are left", s.live.isIdle)
	reads := p.reads.Load()
	time.Sleep(10 * pace.page)
	if now := p.reads.Load(); now != reads {
		t.Errorf("nobody watches, and the page was read %d times", now-reads)
	}
}

func TestWhatOperatorsSeeIsNotSentToViewers(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	_, server := testSite(t, Options{Act: &pgxpool.Pool{}, User: func(q *http.Request) (User, error) {
		return User{Name: "ada", Operator: q.Header.Get("Test-User") == "operator"}, nil
	}}, showing{"/page": p.show})
	operator, viewer := watchPage(t, server, "/page", "operator"), watchPage(t, server, "/page")
	if _, data := operator.next(); !strings.Contains(data, "for operators") {
		t.Errorf("an operator gets %s", data)
	}
	if _, data := viewer.next(); data == "" || strings.Contains(data, "for operators") {
		t.Errorf("a viewer gets %s", data)
	}
}

func TestTheDatabaseIsAwayAndComesBack(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	_, server := testSite(t, Options{}, showing{"/page": p.show})
	b := watchPage(t, server, "/page")
	b.number()
	away := context.DeadlineExceeded
	p.fail.Store(&away)
	if name, _ := b.next(); name != "away" {
		t.Fatalf("event %q", name)
	}
	late := watchPage(t, server, "/page")
	if name, _ := late.next(); name != "away" {
		t.Fatalf("one that comes meanwhile gets %q", name)
	}
	p.number.Store(3)
	p.fail.Store(nil)
	for _, b := range []*browser{b, late} {
		if name, _ := b.next(); name != "back" {
			t.Fatalf("event %q", name)
		}
	}
	if n := b.number(); n != 3 {
		t.Errorf("after that %d", n)
	}
}

func TestASchemaThatIsMigratedAwayComesBack(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	var id string
	if err := db.QueryRow(t.Context(), "insert into core_tool_calls (tool_name) values ('a.tool') returning id::text").
		Scan(&id); err != nil {
		t.Fatal(err)
	}
	other := &shown{watch: "list"}
	s, server := testSite(t, Options{Read: db}, showing{"/page": other.show})
	s.live.page("/{$}", s.overview)
	s.live.page("/calls/{id}", s.call)
	all := []*browser{watchPage(t, server, "overview"), watchPage(t, server, "call:"+id), watchPage(t, server, "/page")}
	for _, b := range all {
		if name, data := b.next(); name != "" || data == "" {
			t.Fatalf("event %q %q", name, data)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), "alter schema "+from+" rename to "+to); err != nil {
			t.Fatal(err)
		}
	}
	said := func(b *browser, event, part string) {
		t.Helper()
		for { // a page has several parts, and its last ones may still come
			if name, data := b.next(); name == event && strings.Contains(data, part) {
				return
			} else if name != "" || data == "" {
				t.Fatalf("event %q %q", name, data)
			}
		}
	}
	rename("gem", "gone")
	said(all[0], "away", "gem migrate")
	said(all[1], "away", "gem migrate")
	other.number.Store(5)
	if n := all[2].number(); n != 5 {
		t.Errorf("a page that needs nothing of it is at %d", n)
	}
	rename("gone", "gem")
	said(all[0], "back", "")
	said(all[1], "back", "")
	if _, err := db.Exec(t.Context(), "select public.cancel_tool_call($1)", id); err != nil {
		t.Fatal(err)
	}
	said(all[1], "", "cancelled")
}

func TestAPageThatBreaksEndsItsOwnStreamsAlone(t *testing.T) {
	t.Parallel()
	p, gone := &shown{watch: "list"}, &shown{watch: "list"}
	_, server := testSite(t, Options{}, showing{
		"/page": p.show, "/gone": gone.show,
		"/panics": func(context.Context, *request) (*content, error) { panic("a bug") },
		"/still": func(context.Context, *request) (*content, error) {
			return &content{Title: "Still", Template: "workers"}, nil
		},
	})
	b, other := watchPage(t, server, "/page"), watchPage(t, server, "/gone")
	b.number()
	other.number()
	for path, status := range map[string]int{"/panics": 500, "/still": 404, "/nothing": 404, "//evil": 400,
		"http://evil/": 400, "": 400} {
		if got := watchPage(t, server, path).status; got != status {
			t.Errorf("%s: %d, not %d", path, got, status)
		}
	}
	pruned := error(&client.NotFoundError{})
	gone.fail.Store(&pruned)
	if name, _ := other.next(); name != "over" {
		t.Errorf("event %q", name)
	}
	if name, data := other.next(); name+data != "" {
		t.Errorf("the stream goes on with %q %q", name, data)
	}
	p.number.Store(5)
	if n := b.number(); n != 5 {
		t.Errorf("another page is at %d", n)
	}
}

func TestAStreamEndsWhenItsUserHasNoRightsAnyMore(t *testing.T) {
	t.Parallel()
	var out atomic.Bool
	p := &shown{watch: "list"}
	s, server := testSite(t, Options{User: func(*http.Request) (User, error) {
		if out.Load() {
			return User{}, ErrNoUser
		}
		return User{Name: "ada"}, nil
	}}, showing{"/page": p.show})
	b := watchPage(t, server, "/page")
	b.number()
	out.Store(true)
	if name, data := b.next(); name != "over" || !strings.Contains(data, "no longer signed in") {
		t.Errorf("event %q %q", name, data)
	}
	testdb.Eventually(t, "the stream is left", s.live.isIdle)
	if status := watchPage(t, server, "/page").status; status != 401 {
		t.Errorf("another stream: %d", status)
	}
}

// A proxy that signs people in sees a request when it begins.
func TestAStreamHasItsTime(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	s, server := testSite(t, Options{}, showing{"/page": p.show})
	s.live.time = 200 * time.Millisecond
	b := watchPage(t, server, "/page")
	b.number()
	if name, _ := b.next(); name != "renew" {
		t.Errorf("event %q", name)
	}
	if name, data := b.next(); name+data != "" {
		t.Errorf("the stream goes on with %q %q", name, data)
	}
}

func TestAnActThatPanicsCanBeSentAgain(t *testing.T) {
	t.Parallel()
	f := newForms()
	r := &request{Request: &http.Request{PostForm: url.Values{"form": {newForm()}}}}
	func() {
		defer func() { _ = recover() }()
		_, _ = f.once(t.Context(), r, func(context.Context, *request) (string, string, error) { panic("a fault") })
	}()
	if to, err := f.once(t.Context(), r, func(context.Context, *request) (string, string, error) {
		return "/there", "", nil
	}); to != "/there" || err != nil {
		t.Errorf("%q %v", to, err)
	}
}

func TestStreamsEndWithTheContextOfTheServer(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	ctx, stop := context.WithCancel(t.Context())
	s, server := testSite(t, Options{}, showing{"/page": p.show}, ctx)
	var all []*browser
	for range 20 {
		b := watchPage(t, server, "/page")
		b.number()
		all = append(all, b)
	}
	stop()
	for _, b := range all {
		if name, data := b.next(); name+data != "" {
			t.Errorf("a stream goes on with %q %q", name, data)
		}
	}
	testdb.Eventually(t, "streams are left", s.live.isIdle)
}

// The overview and the workers are read however many browsers watch: no other page may count as one of them, nor a
// slow page as a new one.
func TestWhatIsAlwaysReadIsFewPages(t *testing.T) {
	t.Parallel()
	s, _ := testSite(t, Options{}, nil)
	pages := map[pageKey]bool{}
	for _, page := range []string{"overview", "/", "/?a=1", "/?range=day&a=2", "/?range=day", "/?range=year", "workers",
		"/workers?a=1"} {
		q := httptest.NewRequest(http.MethodGet, "/live?watch="+url.QueryEscape(page), nil)
		key, err := watched(&request{Request: q, site: s})
		if err != nil {
			t.Fatal(err)
		}
		pages[key] = true
	}
	if len(pages) != 3 {
		t.Errorf("%v", pages)
	}
	g := &group{}
	if s.live.failed(t.Context(), g, view.ErrTooSlow); g.watch == "" || !g.due.After(time.Now()) {
		t.Errorf("a slow page: %+v", g)
	}
}

func TestAUserHasABoundedNumberOfStreams(t *testing.T) {
	t.Parallel()
	p := &shown{watch: "list"}
	s, server := testSite(t, Options{}, showing{"/page": p.show})
	s.live.users["ada"] = mostStreamsOfUser
	if status := watchPage(t, server, "/page").status; status != 503 {
		t.Errorf("one stream too many: %d", status)
	}
	s.live.users["ada"]--
	watchPage(t, server, "/page").number()
}

// Among many watched calls, one statement finds those with changes, and only their pages are read.
func TestTheCallsThatMovedAreFoundInOneStatement(t *testing.T) {
	t.Parallel()
	address := testdb.New(t)
	db := testdb.Pool(t, address)
	seen := &statements{}
	read := traced(t, address, seen)
	counted := map[string]*shown{}
	var ids []string
	pages := showing{}
	for range 10 {
		id, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order"})
		if err != nil {
			t.Fatal(err)
		}
		p := &shown{watch: "call:" + id}
		ids, counted[id], pages["/calls/"+id] = append(ids, id), p, p.show
	}
	_, server := testSite(t, Options{Read: read}, pages)
	browsers := map[string]*browser{}
	for _, id := range ids {
		browsers[id] = watchPage(t, server, "call:"+id)
		browsers[id].number()
	}
	looks := func() int64 { return seen.like("gem.calls") }
	settled := func() { // each is read a second time, when it is looked at first
		testdb.Eventually(t, "no page is read again", func() bool {
			for _, p := range counted {
				if p.reads.Load() < 2 {
					return false
				}
			}
			return true
		})
		before := looks()
		testdb.Eventually(t, "nobody looks", func() bool { return looks() > before+3 })
	}
	settled()
	for _, id := range ids {
		if n := counted[id].reads.Load(); n != 2 {
			t.Errorf("a call that did not move was read %d times", n)
		}
	}
	counted[ids[3]].number.Store(9)
	if _, err := client.Cancel(t.Context(), db, ids[3]); err != nil {
		t.Fatal(err)
	}
	if n := browsers[ids[3]].number(); n != 9 {
		t.Errorf("the page is at %d", n)
	}
	if n := counted[ids[4]].reads.Load(); n != 2 {
		t.Errorf("another was read %d times", n)
	}
}

// statements counts the statements of a pool.
type statements struct {
	mu  sync.Mutex
	all []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, data.SQL)
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (s *statements) TraceBatchQuery(ctx context.Context, c *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.TraceQueryStart(ctx, c, pgx.TraceQueryStartData{SQL: data.SQL})
}
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// reading counts the statements that read. The others begin or end a transaction, or change its settings.
func (s *statements) reading() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.all {
		if word, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " "); word != "begin" && word != "commit" &&
			word != "rollback" && word != "set" {
			n++
		}
	}
	return n
}

// copy returns the statements so far: later statements do not change its counts.
func (s *statements) copy() *statements {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &statements{all: slices.Clone(s.all)}
}

func (s *statements) like(part string) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.all {
		if strings.Contains(sql, part) {
			n++
		}
	}
	return n
}

func traced(t *testing.T, url string, by pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = by
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// The reader knows the number of statements for each read of a watched page.
func TestAReadingTakesFewStatements(t *testing.T) {
	t.Parallel()
	address := testdb.New(t)
	db := testdb.Pool(t, address)
	open, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order"})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order"})
	if err == nil {
		_, err = client.Cancel(t.Context(), db, ended)
	}
	if err != nil {
		t.Fatal(err)
	}
	seen := &statements{}
	pool := traced(t, address, seen)
	s, _ := testSite(t, Options{Read: pool, Act: pool}, nil)
	for path, show := range (showing{"/{$}": s.overview, "/calls": s.calls, "/calls/{id}": s.call, "/failures": s.failures,
		"/questions": s.questions, "/workers": s.workers}) {
		s.live.page(path, show)
	}
	for _, one := range []struct {
		path             string
		viewer, operator int64
	}{
		{"/", 5, 1}, // the first of 20 s reads what ended too
		{"/calls", 1, 1},
		{"/calls?state=cancelled", 2, 2}, // fewer than a page: are there more after the calls that were read?
		{"/calls?state=ended", 1, 1},
		{"/calls?state=queued", 1, 1},
		{"/calls?state=open", 2, 2},
		{"/calls?caller=nobody", 2, 2}, // no row brings the time
		{"/calls/" + ended, 2, 4},
		{"/calls/" + open, 2, 9},
		{"/failures", 1, 1},
		{"/questions", 1, 3},
		{"/workers", 2, 2},
	} {
		for i, want := range []int64{one.viewer, one.operator} {
			var counted atomic.Int64
			before := seen.reading()
			_, _, err := s.live.render(view.Counted(t.Context(), &counted),
				&group{pageKey: pageKey{path: one.path, user: User{Name: "ada", Operator: i == 1}}})
			if n := seen.reading() - before; err != nil || n != want || counted.Load() != n {
				t.Errorf("%s takes %d statements, %d by the reader's count, not %d: %v", one.path, n, counted.Load(), want, err)
			}
		}
	}
}

// The overview is read once for all, with as many statements for a hundred browsers as for one.
func TestAHundredBrowsersOfTheOverviewCostAsMuchAsOne(t *testing.T) {
	t.Parallel()
	seen := &statements{}
	s, server := testSite(t, Options{Read: traced(t, testdb.New(t), seen)}, nil)
	s.ended.keep = time.Hour // otherwise a slow machine reads the ended calls more than once
	s.live.page("/{$}", s.overview)
	for range 100 {
		b := watchPage(t, server, "overview")
		if _, data := b.next(); !strings.Contains(data, "data-say") {
			t.Fatal(data)
		}
	}
	// The test makes the page due: a slow machine waits longer and longer between its reads.
	first := seen.like("gem.queue")
	testdb.Eventually(t, "the overview is not read again", func() bool {
		s.live.mu.Lock()
		defer s.live.mu.Unlock()
		for _, g := range s.live.groups {
			g.due = time.Time{}
		}
		return seen.like("gem.queue") > first+10
	})
	// The first read also reads the ended calls, with four statements; each later read is a single statement.
	sent := seen.copy()
	if all, readings := sent.reading(), sent.like("gem.queue"); all != readings+4 ||
		sent.like("gem.throughput where minute >=") != 1 {
		t.Errorf("%d readings took %d statements:\n%s", readings, all, strings.Join(sent.all[:min(len(sent.all), 40)], "\n"))
	}
}

// A changed call is read at once; the page of an unchanged one is read less and less often.
func TestThePageOfARunningCallIsReadLessOftenUntilItMoves(t *testing.T) {
	t.Parallel()
	l := newLive(&site{})
	g := &group{pageKey: pageKey{path: "/calls/1"}, mark: view.Mark{Status: "running"}}
	var waits []time.Duration
	for range 6 {
		l.done(g, "call:1", nil, 0)
		waits = append(waits, (g.due.Sub(g.read)+pace.beat/2)/pace.page)
	}
	if want := []time.Duration{1, 2, 4, 8, 8, 8}; !slices.Equal(waits, want) {
		t.Errorf("it is read again after %v pages' time", waits)
	}
	g.patient = 0 // as when it has moved
	if l.done(g, "call:1", nil, 0); g.patient != 1 {
		t.Errorf("then after %d", g.patient)
	}
	if l.done(g, "list", nil, 0); g.due.Sub(g.read) > pace.page {
		t.Error("a list waits")
	}
}

func TestAUserReadsAFewPagesAtOnce(t *testing.T) {
	t.Parallel()
	read, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?pool_max_conns=4") // which connects when it has to
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	s := &site{Options: Options{Read: read}, shareWait: 50 * time.Millisecond}
	ada, ben := &request{site: s, user: User{Name: "ada"}}, &request{site: s, user: User{Name: "ben"}}
	proceed, reading := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			_, err := s.read(t.Context(), ada, func(context.Context, *request) (*content, error) {
				reading <- struct{}{}
				<-proceed
				return nil, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-reading
	}
	quick := func(context.Context, *request) (*content, error) { return nil, nil }
	_, err = s.read(t.Context(), ada, quick)
	if refused, is := errors.AsType[*pageError](err); !is || refused.status != http.StatusServiceUnavailable {
		t.Errorf("one more: %v", err)
	}
	if _, err := s.read(t.Context(), ben, quick); err != nil {
		t.Errorf("another user: %v", err)
	}
	close(proceed)
	all.Wait()
	if _, err := s.read(t.Context(), ada, quick); err != nil || len(s.shares.In()) != 0 {
		t.Errorf("later: %v, %v", err, s.shares.In())
	}
}

func TestACallThatMovesAllTheTimeKeepsItsPlaceAmongThoseThatAreDue(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	var id string
	if err := db.QueryRow(t.Context(), "insert into core_tool_calls (tool_name) values ('a.tool') returning id::text").
		Scan(&id); err != nil {
		t.Fatal(err)
	}
	s, _ := testSite(t, Options{Read: db}, nil)
	now := time.Now()
	for _, due := range []time.Time{now.Add(-time.Minute), now.Add(time.Hour)} {
		g := &group{pageKey: pageKey{path: "/calls/" + id}, watch: "call:" + id, due: due, read: now.Add(-2 * time.Minute),
			mark: view.Mark{Status: "running"}}
		s.live.groups[g.pageKey] = g
		if s.live.findMoved(t.Context()); g.mark.Status != "queued" || g.due.After(time.Now()) || due.Before(now) &&
			g.due != due {
			t.Errorf("it was due at %s, and then at %s: %+v", due, g.due, g.mark)
		}
	}
}

func TestThoseWhoWaitForWhatEndedAreToldTogetherThatItCannotBeRead(t *testing.T) {
	t.Parallel()
	url, seen := testdb.New(t), &statements{}
	s, _ := testSite(t, Options{Read: traced(t, url, seen)}, nil)
	if _, err := testdb.Pool(t, url).Exec(t.Context(),
		"alter view gem.throughput rename column minute to hour"); err != nil {
		t.Fatal(err)
	}
	s.ended.mu.Lock()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if _, err := s.ended.read(t.Context(), &request{site: s}, "hour"); err == nil {
				t.Error("a view that is not as expected is read")
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	s.ended.mu.Unlock()
	all.Wait()
	if n := seen.like("gem.throughput"); n != 1 {
		t.Errorf("they were read %d times", n)
	}
	if _, err := testdb.Pool(t, url).Exec(t.Context(),
		"alter view gem.throughput rename column hour to minute"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ended.read(t.Context(), &request{site: s}, "hour"); err != nil {
		t.Errorf("who comes later gets %v", err)
	}
}

func TestARequestThatIsGivenUpIsNoFault(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	s := &site{Options: Options{Log: zap.New(core)}}
	ctx, giveUp := context.WithCancel(t.Context())
	q := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	cancelled := &pgconn.PgError{Code: "57014", Message: "canceling statement due to user request"}
	if got := s.describe(q, cancelled); got.Status != http.StatusServiceUnavailable || logged.Len() != 1 {
		t.Errorf("%+v, %d lines", got, logged.Len())
	}
	giveUp()
	if got := s.describe(q, cancelled); got.Status != 499 || logged.Len() != 1 {
		t.Errorf("given up: %+v, %d lines", got, logged.Len())
	}
}
