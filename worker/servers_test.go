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
	"github.com/gemworker/gem/internal/testing/clusters"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
)

// pair is a primary with an asynchronous standby, both real.
type pair struct {
	*testing.T
	primary, standby string // URLs of the database postgres, for its owner
	// url leads to the server that can write.
	url string
	// killPrimary ends the primary, and promote makes the standby the primary or waits until its manager does so.
	killPrimary, promote func()
	// server is the standby's process, unless the two are managed.
	server *pgserver.Server
	// sender is the process of the primary that sends commits to the standby, once it is stopped.
	sender string
}

// newPair starts a primary and a standby, which promote promotes.
func newPair(t *testing.T) *pair {
	t.Helper()
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on",
		"synchronous_commit": "on"}
	primary := testdb.Private(t, pgserver.Options{Settings: settings})
	if err := migrations.Up(t.Context(), primary.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	server := testdb.Standby(t, primary, settings)
	p := &pair{T: t, primary: primary.URL("postgres"), standby: server.URL("postgres"), server: server}
	p.url = either(t, p.primary, p.standby)
	p.killPrimary = func() {
		p.Helper()
		p.signal(strings.TrimSpace(strings.Split(p.ask(p.primary, "select pg_read_file('postmaster.pid')"), "\n")[0]),
			syscall.SIGKILL)
	}
	p.promote = func() {
		p.Helper()
		p.ask(p.standby, "select pg_promote(false)::text")
		p.promoted()
	}
	return p
}

// managedPair returns the servers of a cluster as a pair. Its manager promotes the standby once the primary is gone.
func managedPair(t *testing.T, c *clusters.Cluster) *pair {
	t.Helper()
	if err := migrations.Up(t.Context(), c.Primary); err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, primary: c.Primary, standby: c.Standby, url: either(t, c.Primary, c.Standby)}
	p.killPrimary, p.promote = c.KillPrimary, p.promoted
	return p
}

// either returns a URL that leads to whichever of two servers can write.
func either(t *testing.T, a, b string) string {
	t.Helper()
	one, two := hostOf(t, a), hostOf(t, b)
	return strings.Replace(a, one, one+","+two, 1) + "&target_session_attrs=read-write"
}

func hostOf(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func (p *pair) connect(server string) *pgx.Conn {
	p.Helper()
	conn, err := pgx.Connect(p.Context(), server)
	if err != nil {
		p.Fatal(err)
	}
	return conn
}

// ask returns the value of a query on one server.
func (p *pair) ask(server, sql string) (value string) {
	p.Helper()
	conn := p.connect(server)
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
	testdb.CaughtUp(p, p.primary, p.standby)
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
	if p.sender != "" {
		p.signal(p.sender, syscall.SIGKILL)
	}
	p.promote()
}

// promoted waits until the standby is the primary.
func (p *pair) promoted() {
	p.Helper()
	testdb.Eventually(p, "the standby is promoted", func() bool {
		return p.ask(p.standby, "show transaction_read_only") == "off"
	})
}

// An asynchronous standby lacks the last commits. The worker that lives on puts its ends back: no effect of mode none
// happens twice, and the receipts have their earlier ids.
func TestEndsThatAFailoverLostArePutBack(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
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
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
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
	sound(t, env)
}
