package chromium

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
)

func TestMain(m *testing.M) {
	if os.Getenv(playProgram) != "" {
		gem.Main(gem.Program{Domains: append(builtin.Domains(), newShop()), Registry: shopRegistry()})
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // tests wait for the browser and for workers more than they compute
	code := 0
	defer func() { os.Exit(code) }()
	defer stopBrowser()
	code = m.Run()
}

// scene is a database of its own with the shop's worker, a scripted model, and the logins of the dashboard.
type scene struct {
	*handlertest.Env
	t       *testing.T
	shop    Shop
	monitor string // the connection string of viewers
	operate string // the connection string of operators
	mode    pgpool.PoolMode
}

// newScene starts a worker on a database, unless change disables it.
func newScene(t *testing.T, change ...func(*handlertest.Options)) *scene {
	t.Helper()
	theBrowser(t) // first, so that nothing is started in vain without a browser
	models := llmtest.Start(t, llmtest.Options{Answer: says})
	routes, err := json.Marshal(map[string]any{"version": "1",
		"providers": map[string]any{"scripted": map[string]any{"dialect": llmtest.OpenAI,
			"base_url": models.BaseURL(llmtest.OpenAI), "local": true}},
		"targets": map[string]any{"scripted": map[string]any{"provider": "scripted", "model": "model-a", "context": 100_000,
			"max_output":   10_000,
			"capabilities": []string{"tools", "structured"},
			"usd_per_mtok": []any{map[string]any{"input": "3", "output": "15"}}}},
		"routes": map[string]any{"default": map[string]any{"targets": []string{"scripted"}}}})
	if err != nil {
		t.Fatal(err)
	}
	shop := newShop()
	o := handlertest.Options{Registry: shopRegistry(), Domains: append(builtin.Domains(), shop),
		Environment: map[string]string{"LLM_ROUTES": string(routes)},
		Worker:      func(o *worker.Options) { o.Concurrency, o.Rules, o.Version = 8, shopRules(), "v0.1.0" }}
	for _, c := range change {
		c(&o)
	}
	s := &scene{Env: handlertest.Start(t, o), t: t, shop: shop, mode: pgpool.Direct}
	s.monitor, s.operate = s.logins()
	s.exec("insert into gem.roles values ('grace', 'boss'), (session_user, 'boss')")
	return s
}

// withoutWorker lets a test start its own workers.
func withoutWorker(o *handlertest.Options) { o.NoWorker = true }

// made has a [sync.Once] for each server address, which creates the logins there.
var made sync.Map

// logins returns the connection strings of gem dashboard. deploy/roles.sql creates the roles.
func (s *scene) logins() (monitor, operate string) {
	u, err := url.Parse(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	once, _ := made.LoadOrStore(u.Host, new(sync.Once))
	once.(*sync.Once).Do(func() {
		s.exec(`do $$ begin
			if to_regrole('dashboard_monitor') is null then
				create role dashboard_monitor login password 'secret' in role gem_monitor; end if;
			if to_regrole('dashboard_operator') is null then
				create role dashboard_operator login password 'secret' in role gem_operator, gem_mcp; end if;
		end $$`)
	})
	as := func(login string) string {
		other := *u
		other.User = url.UserPassword(login, "secret")
		return other.String()
	}
	return as("dashboard_monitor"), as("dashboard_operator")
}

func (s *scene) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.DB.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// value returns the first column of the first row as text. It returns "" for null and for no rows.
func (s *scene) value(sql string, args ...any) (v string) {
	s.t.Helper()
	if err := s.DB.QueryRow(context.Background(), "select coalesce(("+sql+")::text, '')", args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// The people of the tests. Ada made the calls, Grace may approve them, and Vera is a viewer.
var (
	ada   = dashboard.User{Name: "ada", Subject: "ada", Operator: true}
	grace = dashboard.User{Name: "grace", Subject: "grace", Operator: true}
	vera  = dashboard.User{Name: "vera"}
)

// readOnly removes the connection of operators.
func readOnly(o *dashboard.Options) { o.Act = nil }

// serve serves the dashboard to one user and returns its origin. change may modify its options.
func (s *scene) serve(user dashboard.User, change ...func(*dashboard.Options)) string {
	s.t.Helper()
	return serve(s.t, s.handler(user, change...))
}

// handler returns the handler that [scene.serve] serves.
func (s *scene) handler(user dashboard.User, change ...func(*dashboard.Options)) http.Handler {
	s.t.Helper()
	o := dashboard.Options{Read: s.pool(s.monitor), Act: s.pool(s.operate),
		User: func(*http.Request) (dashboard.User, error) { return user, nil }}
	for _, c := range change {
		c(&o)
	}
	if o.Log == nil {
		o.Log = zaptest.NewLogger(s.t, zaptest.Level(zap.WarnLevel))
	}
	pages, err := dashboard.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return pages
}

// serve serves a handler on 127.0.0.1 until the end of the test.
func serve(t *testing.T, h http.Handler) (origin string) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	ctx, cancel := context.WithCancel(context.Background())
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	server.Start()
	t.Cleanup(func() {
		cancel() // ends the streams
		server.Close()
	})
	return server.URL
}

// fetch gets a URL without a browser.
func fetch(t *testing.T, url string) (status int, text string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// pool returns a pool with the settings of the command.
func (s *scene) pool(url string) *pgxpool.Pool {
	s.t.Helper()
	pool, err := pgpool.Open(context.Background(), url, pgpool.Options{MaxConns: 4, Mode: s.mode})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// marked matches a document in a prompt of extract.run.
var marked = regexp.MustCompile(`(?s)<<<TEXT ([0-9a-f]{16})>>>\n(.*)\n<<<END`)

// says plays the model. It finds sums in documents, and plays an agent that solves a task in three turns.
func says(r *llmtest.Request) llmtest.Script {
	asked, turn := "", 0
	for _, m := range r.Asked.Messages {
		if m.Role == "assistant" {
			turn++
		}
		for _, p := range m.Content {
			asked += p.Text
		}
	}
	if document := marked.FindStringSubmatch(asked); document != nil {
		type object = map[string]any
		items := []object{}
		for _, quote := range regexp.MustCompile(`\$\d+`).FindAllString(document[2], -1) {
			items = append(items, object{"class": "sum", "quote": quote})
		}
		if strings.Contains(document[2], "nowhere") {
			items = append(items, object{"class": "sum", "quote": "$9999 which is not there"})
		}
		encoded, _ := json.Marshal(object{"extractions": items})
		return llmtest.Say(string(encoded))
	}
	switch turn {
	case 0:
		return llmtest.Call("call_1", "os_search_notes", `{"query": "tiles"}`)
	case 1:
		return llmtest.Call("call_2", "leads_create", `{"name": "nobody"}`)
	case 2:
		return llmtest.Call("call_3", "os_create_task", `{"domain": "business", "title": "Look at the tiles"}`)
	}
	return llmtest.Say("Two tiles are broken, and there is a task to look at them.")
}

// of returns a call to a tool by ada, with an input in JSON.
func of(tool, input string) handlertest.Call {
	return handlertest.Call{Tool: tool, Input: input, CreatedBy: "ada"}
}

// runs waits until the handler of a slow order runs. A worker that stops earlier would hand the call over as not
// started.
func (s *scene) runs(id string) {
	s.t.Helper()
	select {
	case got := <-s.shop.slow:
		if got != id {
			s.t.Fatalf("call %s runs, and not %s", got, id)
		}
	case <-time.After(patience):
		s.t.Fatalf("call %s does not run", id)
	}
}

// note is an input of os.create_note.
const note = `{"domain": "business", "title": "A note", "content": "It is a note."}`

func inSession(c handlertest.Call, session string) handlertest.Call {
	c.Session = session
	return c
}

// day is the data of a day at the shop: a call in each state, and everything else that the pages need.
type day struct {
	*scene
	ok, hit, invalid, missing, declined, unknown, fulfil, refund, running, scheduled, cancelled, agent, extraction,
	noTool string
	question, approval string
}

// newDay creates the data of the day. Its first calls are three hours old.
func newDay(t *testing.T) *day {
	t.Helper()
	d := &day{scene: newScene(t, withoutWorker)}
	d.Pass(-3 * time.Hour)
	d.exec("update gem.outcomes_counted set upto = gem.first_id_at(gem.now())")
	lost := d.StartWorker(func(o *worker.Options) { o.Name = "cellar" })
	d.unknown = d.Insert(of("shop.charge", `{"order": "slow-7", "cents": 4900}`))
	d.runs(d.unknown)
	lost.Kill()
	d.StartWorker(func(o *worker.Options) { o.Name = "office" })
	d.Await(d.unknown)
	d.hit = d.Insert(of("shop.ship", `{"order": "A-1"}`))
	d.Await(d.hit)
	for i, step := range []time.Duration{20 * time.Minute, 40 * time.Minute, 50 * time.Minute, 30 * time.Minute,
		20 * time.Minute} {
		var ids []string
		for n := range 4 + 3*i {
			ids = append(ids, d.Insert(inSession(of("os.create_note",
				fmt.Sprintf(`{"domain": "business", "title": "Tiles, house %d", "content": "Two tiles are broken."}`, n)),
				"s-morning")))
		}
		ids = append(ids, d.Insert(of("shop.charge", fmt.Sprintf(`{"order": "declined-%d", "cents": 1900}`, i))),
			d.Insert(of("shop.charge", `{"order": "B-2", "cents": 1900}`)))
		for _, id := range ids {
			d.Await(id)
		}
		d.Pass(step)
	}
	d.Pass(19 * time.Minute)
	d.ok = d.Insert(handlertest.Call{Tool: "os.create_note",
		Input:     `{"domain": "business", "title": "Tiles", "content": "Two tiles of the roof are broken, and one is loose."}`,
		CreatedBy: "ada", Session: "s-agent", Key: "note-1"})
	d.Await(d.ok)
	d.agent = d.Insert(
		inSession(of("agent.run",
			`{"task": "Read the notes about tiles, and plan what has to be done.", "tools": ["os.search_notes", "os.create_task", "leads.create"]}`), "s-agent"))
	d.extraction = d.Insert(inSession(of("extract.run",
		`{"text": "The roof costs $1200.\n\nThe door costs $300, and the window nowhere less than $450.", "program": {"instructions": "Extract sums of money.", "classes": [{"name": "sum"}]}}`), "s-agent"))
	d.hit = d.Insert(of("shop.ship", `{"order": "A-1"}`))
	d.invalid = d.Insert(of("os.create_note", `{"titel": "a typing error"}`))
	d.missing = d.Insert(
		of("comms.send_sms", `{"to": "+61400000001", "message": "Hello", "context_ref": {"type": "lead", "id": "1"}}`))
	d.declined = d.Insert(handlertest.Call{Tool: "shop.charge", Input: `{"order": "declined-9", "cents": 123450}`,
		CreatedBy: "ada", Key: "order-9"})
	d.noTool = d.Insert(of("shop.teleport", `{"order": "C-3"}`))
	for _, id := range []string{d.agent, d.extraction, d.hit, d.invalid, d.missing, d.declined, d.noTool} {
		d.Await(id)
	}
	d.fulfil = d.Insert(inSession(of("shop.fulfil", `{"order": "A-1"}`), "s-evening"))
	d.refund = d.Insert(inSession(of("shop.refund", `{"order": "A-1", "cents": 12000}`), "s-evening"))
	d.question, d.approval = d.Question(d.fulfil).ID, d.Question(d.refund).ID
	d.running = d.Insert(of("shop.charge", `{"order": "slow-8"}`))
	d.runs(d.running)
	d.scheduled = d.Insert(handlertest.Call{Tool: "shop.charge", Input: `{"order": "tomorrow"}`,
		RunAt: time.Now().Add(24 * time.Hour), CreatedBy: "ada"})
	d.cancelled = d.Insert(handlertest.Call{Tool: "shop.charge", Input: `{"order": "never"}`,
		RunAt: time.Now().Add(24 * time.Hour), CreatedBy: "ada"})
	d.exec("select public.cancel_tool_call($1)", d.cancelled)
	d.exec("select gem.save_schedule('cleanup', '@weekly', 'os.health_check')")
	d.exec("select gem.save_schedule('report', '0 9 * * 1-5', 'os.create_note', " +
		`'{"domain": "business", "title": "Report", "content": "For {due_at}"}', 'Europe/Berlin', p_of => 'ada')`)
	d.exec("insert into gem.occurrences (schedule_id, due_at, upto, count, call_id, skipped, detail, at) "+
		"select id, now() - early, now() - late, times, call_id, skipped, detail, gem.now() from gem.schedules, "+
		"(values (interval '5 days', interval '5 days', 1, $1::uuid, null, null), "+
		"('4 days', '2 days', 3, null, 'missed', 'no worker ran at the time'), "+
		"('1 day', '1 day', 1, null, 'overlap', 'call ' || $1::text || ' has not ended')) "+
		"o (early, late, times, call_id, skipped, detail) where name = 'report'", d.ok)
	d.Pass(time.Minute)
	d.exec("select gem.count_outcomes(100000)") // as a worker does every 15 s
	return d
}
