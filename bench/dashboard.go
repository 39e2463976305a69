package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// looking has the sizes for the measures of gem dashboard.
type looking struct {
	crowd   crowd
	rounds  int // over all pages
	streams int // that browsers hold open
	// settling is the time between opening or closing the streams and measuring their cost.
	settling time.Duration
	held     time.Duration
	starts   int
}

// pages are the pages that browsers request. The id of a failed call replaces FAILED.
var pages = []string{"/", "/calls", "/calls?state=failed", "/calls?state=running", "/calls?state=queued",
	"/calls?state=waiting", "/calls?caller=caller+7", "/calls?session=session+7", "/calls?state=ended",
	"/calls?state=scheduled", "/calls?key=bench.t1/customer/700", "/calls.json",
	"/calls/FAILED", "/calls/" + crowdCall, "/sessions?id=session+7", "/sessions", "/failures", "/tools",
	"/tools/bench.t1", "/workers", "/questions"}

// filteredPages are lists that no index serves.
var filteredPages = []string{"/calls?tool=bench.t1", "/calls?tool=bench.nothing", "/calls?code=timeout",
	"/calls?tool=bench.t3&state=failed"}

const (
	dashboardReads = "bench_monitor" // the login of gem dashboard
	dashboardActs  = "bench_operator"
)

// desk is a crowded database with a worker and a gem dashboard.
type desk struct {
	*stage
	pid      int
	url      string
	client   *http.Client  // signed in
	failed   string        // a call
	through  string        // the Postgres address that gem dashboard uses
	executed *atomic.Int64 // statements that gem dashboard has executed
}

// withDesk fills a database, and starts gem dashboard and an idle worker.
func (b *bench) withDesk(ctx context.Context, c contestant, of crowd, run func(*desk) error) error {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return err
	}
	defer s.drop()
	if err := fillCrowd(ctx, s.db, of); err != nil {
		return fmt.Errorf("fill the database: %w", err)
	}
	for counted := 1; counted > 0; {
		if err := s.db.QueryRow(ctx, "select gem.count_outcomes(10000)").Scan(&counted); err != nil {
			return err
		}
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	d := &desk{stage: s}
	through, executed, stopCounting, err := counted(ctx, s.url)
	if err != nil {
		return err
	}
	defer stopCounting()
	d.through, d.executed = through, executed
	if err := s.db.QueryRow(ctx, "select call_id::text from core_tool_receipts where status = 'failed' order by "+
		"created_at desc limit 1").Scan(&d.failed); err != nil {
		return err
	}
	stop, err := d.serve(ctx, b)
	if err != nil {
		return err
	}
	defer stop()
	return run(d)
}

// serve starts gem dashboard and follows the link that it prints.
func (d *desk) serve(ctx context.Context, b *bench) (stop func(), err error) {
	program, err := b.build(ctx)
	if err != nil {
		return nil, err
	}
	var urls [2]string
	for i, login := range []struct{ name, role string }{{dashboardReads, "gem_monitor"},
		{dashboardActs, "gem_operator, gem_mcp"}} {
		_, err := d.db.Exec(ctx, "do $$ begin if to_regrole('"+login.name+"') is null then create role "+login.name+
			" login password 'bench' in role "+login.role+"; end if; end $$")
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(cmp.Or(d.through, d.stage.url))
		if err != nil {
			return nil, err
		}
		u.User = url.UserPassword(login.name, "bench")
		urls[i] = u.String()
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	cmd, end := command(ctx, b.lab.scratch, program, []string{"dashboard", "--listen", address},
		[]string{"DATABASE_URL=" + urls[0], "GEM_DASHBOARD_ACT_URL=" + urls[1]})
	said, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("start gem dashboard: %w", err)
	}
	stop = func() { end(); _ = cmd.Wait() }
	d.pid, d.url = cmd.Process.Pid, "http://"+address
	link := ""
	for lines := bufio.NewScanner(said); link == "" && lines.Scan(); {
		if at := strings.Index(lines.Text(), d.url); at >= 0 {
			link, _, _ = strings.Cut(lines.Text()[at:], " ")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	jar, err := cookiejar.New(nil)
	if err == nil {
		d.client = &http.Client{Jar: jar, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
		_, err = d.get(ctx, strings.TrimPrefix(link, d.url))
	}
	if err != nil || link == "" {
		stop()
		return nil, fmt.Errorf("follow the link %q of gem dashboard: %w", link, err)
	}
	return stop, nil
}

// get requests a page and returns the number of bytes in the answer.
func (d *desk) get(ctx context.Context, path string) (int, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+path, nil)
	if err != nil {
		return 0, err
	}
	q.Header.Set("Accept-Encoding", "gzip")
	answer, err := d.client.Do(q)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, answer.Status)
	}
	return int(n), err
}

// scanned counts the sequential scans of the large tables so far.
func (d *desk) scanned(ctx context.Context) (n int, err error) {
	err = d.db.QueryRow(ctx, `select coalesce(sum(seq_scan), 0) from pg_stat_user_tables
		where relname in ('core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_llm_requests')`).Scan(&n)
	return n, err
}

// transactions returns the number of transactions in the dashboard's database so far. It includes the bench's own,
// whose number is known.
func (d *desk) transactions(ctx context.Context) (n int, err error) {
	err = d.db.QueryRow(ctx, "select xact_commit + xact_rollback from pg_stat_database where datname = "+
		"current_database()").Scan(&n)
	return n, err
}

// pagesOfMany measures each page in turn on a crowded database, and the cost of browsers with live pages.
func pagesOfMany(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	size := b.sizes.looking
	err = b.withDesk(ctx, c, size.crowd, func(d *desk) error {
		all := slices.Concat(pages, filteredPages)
		took := map[string][]float64{}
		before, err := d.scanned(ctx)
		if err != nil {
			return err
		}
		for round := range size.rounds + 1 {
			for _, page := range all {
				path := strings.ReplaceAll(page, "FAILED", d.failed)
				began := time.Now()
				bytes, err := d.get(ctx, path)
				if err != nil {
					return err
				}
				if round > 0 { // the first round opens the connections
					took[page] = append(took[page], milliseconds(time.Since(began)))
				}
				if round == 1 && page == "/" {
					figures = append(figures, figure{measure: "dashboard-page-size", unit: "kB", value: float64(bytes) / 1000})
				}
			}
		}
		if err := sleepUntil(ctx, time.Now().Add(1500*time.Millisecond)); err != nil { // until the statistics are written
			return err
		}
		after, err := d.scanned(ctx)
		if err != nil {
			return err
		}
		for measure, kind := range map[string][]string{"dashboard-page": pages, "dashboard-filtered": filteredPages} {
			var singles []float64
			for _, page := range kind {
				singles = append(singles, took[page]...)
				say("%8.1f ms at p50, %8.1f at most: %s", median(took[page]), slices.Max(took[page]), page)
			}
			slices.Sort(singles)
			figures = append(figures, figure{measure: measure, unit: "ms", value: median(singles), singles: singles},
				figure{measure: measure + "-p99", unit: "ms", value: singles[len(singles)*99/100]})
		}
		figures = append(figures, figure{measure: "dashboard-scans", unit: "", value: float64(after - before)})
		live, err := d.watched(ctx, size)
		figures = append(figures, live...)
		return err
	})
	return figures, err
}

// watched opens streams of the overview, a list and calls, as browsers do, and measures their cost.
func (d *desk) watched(ctx context.Context, size looking) (figures []figure, err error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	ended := make(chan error, size.streams)
	for i := range size.streams {
		watch := []string{"overview", "calls:state=failed", "call:" + crowdCall, "call:" + d.failed}[i%4]
		q, err := http.NewRequestWithContext(watching, http.MethodGet, d.url+"/live?watch="+url.QueryEscape(watch), nil)
		if err != nil {
			return nil, err
		}
		answer, err := d.client.Do(q) //nolint:bodyclose // the goroutine below closes it
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != http.StatusOK {
			return nil, errors.Join(fmt.Errorf("/live?watch=%s: %s", watch, answer.Status), answer.Body.Close())
		}
		go func() {
			_, err := io.Copy(io.Discard, answer.Body)
			ended <- errors.Join(err, answer.Body.Close())
		}()
	}
	if err := sleepUntil(ctx, time.Now().Add(size.settling)); err != nil {
		return nil, err
	}
	before := d.executed.Load()
	reads, cpu, err := d.during(ctx, size.held)
	statements := float64(d.executed.Load()-before) / size.held.Seconds()
	if err != nil {
		return nil, err
	}
	memory, err := residentMemory(d.pid)
	if err != nil {
		return nil, err
	}
	leave()
	for range size.streams {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return nil, fmt.Errorf("a stream ended by itself: %w", err)
		}
	}
	if err := sleepUntil(ctx, time.Now().Add(size.settling)); err != nil {
		return nil, err
	}
	later, _, err := d.during(ctx, size.held)
	return []figure{
		{measure: "dashboard-live-reads", unit: "/s", value: reads},
		{measure: "dashboard-live-statements", unit: "/s", value: statements},
		{measure: "dashboard-live-cpu", unit: "%", value: cpu},
		{measure: "dashboard-live-memory", unit: "MB", value: float64(memory) / 1e6},
		{measure: "dashboard-left-reads", unit: "/s", value: later},
	}, err
}

// during returns the transactions per second, without the bench's own, and the CPU of gem dashboard in percent of a
// core.
func (d *desk) during(ctx context.Context, held time.Duration) (reads, cpu float64, err error) {
	before, err := d.transactions(ctx)
	if err != nil {
		return 0, 0, err
	}
	cpuBefore, err := cpuTime(d.pid)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := sleepUntil(ctx, began.Add(held)); err != nil {
		return 0, 0, err
	}
	took := time.Since(began).Seconds()
	cpuAfter, err := cpuTime(d.pid)
	if err != nil {
		return 0, 0, err
	}
	after, err := d.transactions(ctx)
	return float64(after-before-1) / took, (cpuAfter - cpuBefore).Seconds() / took * 100, err
}

// startOfDashboard measures the time from the start of the process to the first page.
func startOfDashboard(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	if _, err := b.build(ctx); err != nil {
		return nil, err
	}
	var took []float64
	for range b.sizes.looking.starts {
		d := &desk{stage: s}
		began := time.Now()
		stop, err := d.serve(ctx, b)
		if err != nil {
			return nil, err
		}
		took = append(took, milliseconds(time.Since(began)))
		stop()
	}
	return []figure{{measure: "dashboard-start", unit: "ms", value: median(took), singles: took}}, nil
}
