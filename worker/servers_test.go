package worker_test

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
)

// pair is a primary with an asynchronous standby, both real.
type pair struct {
	*testing.T
	primary, standby *pgserver.Server
	// url leads to the server that can write.
	url string
	// sender is the process of the primary that sends commits to the standby, once it is stopped.
	sender string
}

func newPair(t *testing.T) *pair {
	t.Helper()
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on",
		"synchronous_commit": "on"}
	p := &pair{T: t, primary: testdb.Private(t, pgserver.Options{Settings: settings})}
	if err := migrations.Up(t.Context(), p.primary.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	p.standby = testdb.Standby(t, p.primary, settings)
	one, two := hostOf(t, p.primary), hostOf(t, p.standby)
	p.url = strings.Replace(p.primary.URL("postgres"), one, one+","+two, 1) + "&target_session_attrs=read-write"
	return p
}

func hostOf(t *testing.T, s *pgserver.Server) string {
	t.Helper()
	u, err := url.Parse(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func (p *pair) connect(s *pgserver.Server) *pgx.Conn {
	p.Helper()
	conn, err := pgx.Connect(p.Context(), s.URL("postgres"))
	if err != nil {
		p.Fatal(err)
	}
	return conn
}

// ask returns the value of a query on one server.
func (p *pair) ask(s *pgserver.Server, sql string) (value string) {
	p.Helper()
	conn := p.connect(s)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(p.Context(), sql).Scan(&value); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
	return value
}

func (p *pair) signal(pid string, s syscall.Signal) {
	p.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, s)
	}
	if err != nil {
		p.Fatalf("%s: %v", pid, err)
	}
}

// loseCommits lets the standby fall behind: the primary sends it nothing more.
func (p *pair) loseCommits() {
	p.Helper()
	testdb.CaughtUp(p, p.primary.URL("postgres"), p.standby.URL("postgres"))
	p.sender = p.ask(p.primary, "select pid::text from pg_stat_replication")
	p.signal(p.sender, syscall.SIGSTOP)
	p.Cleanup(func() {
		pid, _ := strconv.Atoi(p.sender)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
}

// failover kills the primary and promotes the standby.
func (p *pair) failover() {
	p.Helper()
	p.killPrimary()
	p.promote()
}

func (p *pair) killPrimary() {
	p.Helper()
	p.signal(strings.TrimSpace(strings.Split(p.ask(p.primary, "select pg_read_file('postmaster.pid')"), "\n")[0]),
		syscall.SIGKILL)
	if p.sender != "" {
		p.signal(p.sender, syscall.SIGKILL)
	}
}

func (p *pair) promote() {
	p.Helper()
	p.ask(p.standby, "select pg_promote(false)::text")
	testdb.Eventually(p, "the standby is promoted", func() bool {
		return p.ask(p.standby, "select pg_is_in_recovery()::text") == "false"
	})
}

// An asynchronous standby lacks the last commits. The worker that lives on puts its ends back: no effect of mode none
// happens twice, and the receipts have their earlier ids.
func TestEndsThatAFailoverLostArePutBack(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	lab := NewLab()
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tool{name: "lab.send"}),
		Domains: []any{lab}, NoWorker: true, Database: p.url})
	env.StartWorker()
	var ids []string
	const calls = 20
	insert := func() {
		for range calls {
			ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})}))
		}
	}
	insert()
	p.loseCommits()
	insert()
	before := map[string]string{}
	for _, id := range ids {
		before[id] = env.Await(id).ID
	}
	p.failover()
	env.DB.Reset()
	testdb.Eventually(t, "every call has its receipt again", func() bool {
		var n int
		err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_receipts").Scan(&n)
		return err == nil && n == 2*calls
	})
	for _, id := range ids {
		if got := env.Await(id); got.ID != before[id] {
			t.Errorf("the receipt of %s was %s, and is %s", id, before[id], got.ID)
		}
	}
	if sent := lab.sentSoFar(); len(sent) != 2*calls {
		t.Errorf("%d calls had %d effects", 2*calls, len(sent))
	}
}

// The new server then has no epoch, and would be mistaken for the first server that any worker met.
func TestAFailoverThatLosesTheFirstWorkerItselfIsNoticed(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	lab := NewLab()
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tool{name: "lab.send"}),
		Domains: []any{lab}, NoWorker: true, Database: p.url})
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	p.loseCommits()
	env.StartWorker(func(o *worker.Options) {
		var once sync.Once
		worker.SetHook(o, func(point string) {
			if point == "before meet" { // several polls: what the server lacks must not be claimed meanwhile
				once.Do(func() { time.Sleep(2 * time.Second) })
			}
		})
	})
	before := env.Await(id)
	p.failover()
	env.DB.Reset()
	testdb.Eventually(t, "the receipt is there again", func() bool {
		var n int
		err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_receipts").Scan(&n)
		return err == nil && n == 1
	})
	if got := env.Await(id); got.ID != before.ID {
		t.Errorf("the receipt was %s, and is %s", before.ID, got.ID)
	}
	if sent := lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("the call had %d effects", len(sent))
	}
}
