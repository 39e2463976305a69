package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestWorkerHelpListsTheEnvironment(t *testing.T) {
	t.Parallel()
	got := inProcess(t.Context(), "worker", "--help")
	wants(t, got.stdout, "\n  DATABASE_URL ", "\n  DIRECT_URL ", "\n  WORKER_CONCURRENCY ", "\n  TOOLS_POLL_INTERVAL_MS ",
		"\n  SMTP_HOST ", "\n  TWILIO_AUTH_TOKEN ",
		"\n  HTTP_ALLOWED_HOSTS ", "(default 10)", "WORKER_CONNECTIONS + 3")
}

func TestWorkerStopsInOrder(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			p := startWorker(t, url, "WORKER_ID=mine")
			p.signal(t, s)
			if code := p.wait(t); code != 0 {
				t.Errorf("exit code: got %d, want 0", code)
			}
			wants(t, p.stderr.String(), "registry loaded", "built in", "worker stopped")
			stopped := testdb.Value[string](t, testdb.Pool(t, url),
				"select string_agg(worker_id, ',') from core_workers where stopped_at is not null")
			if !strings.HasPrefix(stopped, "mine-") {
				t.Errorf("the stopped workers: got %q, want one that begins with mine-", stopped)
			}
			if p.stdout.String() != "" {
				t.Errorf("stdout: got %q, want nothing: logs go to stderr", &p.stdout)
			}
		})
	}
}

func TestWorkerOpensNoMoreConnectionsThanItSays(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url, "WORKER_CONCURRENCY=50", "WORKER_CONNECTIONS=2")
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, input) select 'os.create_note',
		'{"domain": "both", "title": "a", "content": "b"}' from generate_series(1, 200)`)
	for most := 0; ; {
		now := testdb.Value[int](t, db, "select count(*)::int from pg_stat_activity where datname = current_database() and "+
			"application_name like 'gem%'")
		if most = max(most, now); most > 5 {
			t.Fatalf("connections: got %d, want at most WORKER_CONNECTIONS + 3 = 5", most)
		}
		if testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts") == 200 {
			break
		}
	}
}

func TestSecondSignalEndsTheWorkerAtOnce(t *testing.T) {
	t.Parallel()
	arrived, answer := make(chan struct{}), make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-answer
	}))
	defer service.Close()
	defer close(answer)
	url := newDatabase(t)
	p := startWorker(t, url, "HTTP_ALLOWED_HOSTS="+strings.TrimPrefix(service.URL, "http://"), "WORKER_SHUTDOWN_GRACE=60s")
	testdb.Exec(t, testdb.Pool(t, url), "insert into core_tool_calls (tool_name, input) values ('http.request', "+
		"jsonb_build_object('method', 'GET', 'url', $1::text))", service.URL)
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Fatal("the handler did not run")
	}

	p.signal(t, syscall.SIGTERM)
	p.stderr.waitFor(t, "waiting for running calls")
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 143 {
		t.Errorf("exit code: got %d, want 143", code)
	}
	wants(t, p.stderr.String(), "a second signal: ending")
}

func TestWorkerWantsItsSchemaAndTakesANewerOne(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)

	testdb.Exec(t, db, "update gem.migrations set version = 0 where source = 'functions'")
	older := gemWith(t, []string{"DATABASE_URL=" + url}, "worker")
	older.wantCode(t, exitFailed)
	wants(t, older.stderr, "the database lacks the migration functions/functions: run `gem migrate`")

	testdb.Exec(t, db, "update gem.migrations set version = 99, sha256 = 'newer' where source = 'functions'")
	startWorker(t, url)
}

func TestWorkerTakesTheRegistryOfItsFolder(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	p := prepare(t, []string{"DATABASE_URL=" + url}, "worker")
	if err := os.WriteFile(filepath.Join(p.cmd.Dir, "tools.registry.json"), []byte(oneTool), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	p.stderr.waitFor(t, "worker started")
	wants(t, p.stderr.String(), "tools.registry.json")
	p.stop(t)

	// The same version with other contents is refused, with the tools that changed.
	other := gemWith(t, []string{"DATABASE_URL=" + url,
		"TOOLS_REGISTRY=" + writeFile(t, strings.ReplaceAll(oneTool, "1000", "2000"))}, "worker")
	other.wantCode(t, exitFailed)
	wants(t, other.stderr, "demo.echo was changed (timeout_ms)")

	faulty := gemWith(t, []string{"DATABASE_URL=" + url,
		"TOOLS_REGISTRY=" + writeFile(t, `{"version": "1", "tools": [{}]}`)}, "worker")
	faulty.wantCode(t, exitUsage)
	wants(t, faulty.stderr, "tools[0]: name: is missing", "tools[0]: timeout_ms: is missing")
}

func TestWorkerBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	// A DIRECT_URL next to DATABASE_URL means that the latter is pooled; notifications arrive through the former.
	startWorker(t, url+"&application_name=pooled", "DIRECT_URL="+url)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.health_check", "--wait", "--timeout", "1m")
	got.wantCode(t, 0)
}

func TestNoSecretReachesTheLog(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	p := startWorker(t, url, "LOG_LEVEL=debug", "SMTP_HOST=mail.invalid", "SMTP_FROM=a@example.com", "SMTP_USERNAME=me",
		"SMTP_PASSWORD=s3cret-1",
		"TWILIO_ACCOUNT_SID=AC1", "TWILIO_AUTH_TOKEN=s3cret-2", "TWILIO_FROM=+15550001111",
		"TWILIO_BASE_URL=http://"+closedAddress(t))
	sms := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "comms.send_sms",
		`{"to": "+15550002222", "message": "hello", "context_ref": {"type": "lead", "id": "1"}}`)
	sms.wantCode(t, 0)
	p.stderr.waitFor(t, "could not reach Twilio") // it retries for minutes, so this test does not wait for the end
	explained := gemWith(t, []string{"DATABASE_URL=" + url}, "explain", strings.TrimSpace(sms.stdout))
	p.stop(t)
	if out := p.stderr.String() + sms.stdout + sms.stderr + explained.stdout +
		explained.stderr; strings.Contains(out, "s3cret") {
		t.Errorf("a secret is in:\n%s", out)
	}
}

// A worker comes up together with its database, which may take no writes yet.
func TestWorkerWaitsForAServerThatTakesWrites(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	database := testdb.Value[string](t, db, "select current_database()")
	testdb.Exec(t, db, "alter database "+database+" set default_transaction_read_only = on")
	p := startGem(t, []string{"DATABASE_URL=" + url}, "worker")
	p.stderr.waitFor(t, "the server takes no writes")
	testdb.Exec(t, db, "alter database "+database+" reset default_transaction_read_only")
	p.stderr.waitFor(t, "worker started")
	p.stop(t)
}

// The server may stop taking writes between the probe and the start.
func TestAStartIsTriedAgainWhileTheServerTakesNoWrites(t *testing.T) {
	t.Parallel()
	tries := 0
	start := func(context.Context) error {
		tries++
		switch tries {
		case 1:
			return fmt.Errorf("register: %w", &pgconn.PgError{Code: "25006"})
		case 2:
			return fmt.Errorf("register: %w", &pgconn.PgError{Code: "57P03"})
		}
		return errors.New("another registry was recorded")
	}
	var reasons []string
	err := whenUsable(t.Context(), time.Minute, func(reason string) { reasons = append(reasons, reason) }, start)
	if tries != 3 || len(reasons) != 2 || err == nil || err.Error() != "another registry was recorded" {
		t.Errorf("after %d tries, for %q: %v", tries, reasons, err)
	}
}

func TestWorkerSetsItsOwnIsolationLevelOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	database := testdb.Value[string](t, db, "select current_database()")
	testdb.Exec(t, db, "alter database "+database+" set default_transaction_isolation = serializable")
	pooler := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction}).URL(url)

	direct := startWorker(t, url)
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, input) select 'os.create_note',
		'{"domain": "both", "title": "a", "content": "b"}' from generate_series(1, 200)`)
	for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where status = 'succeeded'") < 200 {
	}
	direct.stop(t)
	if n := testdb.Value[int](t, db, "select count(*)::int from core_tool_events where event = 'retried'"); n != 0 {
		t.Errorf("%d attempts met a conflict", n)
	}
	const warning = "transactions are serializable by default"
	if strings.Contains(direct.stderr.String(), warning) || strings.Contains(direct.stderr.String(), "could not") {
		t.Errorf("a warning without a reason:\n%s", &direct.stderr)
	}
	pooled := startWorker(t, pooler)
	wants(t, pooled.stderr.String(), warning, "in database "+database+
		" set default_transaction_isolation = 'read committed'")
	pooled.stop(t)
}
