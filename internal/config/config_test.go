package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/config"
)

// environment sets these variables, and no other of GEM.
func environment(t *testing.T, set map[string]string) {
	t.Helper()
	for _, v := range config.Describe() {
		t.Setenv(v.Name, set[v.Name])
	}
	t.Setenv("RENDER_INSTANCE_ID", set["RENDER_INSTANCE_ID"])
}

func load(t *testing.T, set map[string]string) *config.Config {
	t.Helper()
	environment(t, set)
	c, err := config.Load()
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	c := load(t, nil)
	host, _ := os.Hostname()
	want := &config.Config{
		DatabasePooler: "auto", WorkerID: host, WorkerConcurrency: 10, PollIntervalMS: 1000, ShutdownGrace: 25 * time.Second,
		LogLevel: "info", LogFormat: "json",
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	if c.PollInterval() != time.Second {
		t.Errorf("PollInterval = %v", c.PollInterval())
	}
}

func TestEveryVariableIsRead(t *testing.T) {
	c := load(t, map[string]string{
		"DATABASE_URL": "postgres://u:p@h/d", "DIRECT_URL": "host=h user=u", "DATABASE_POOLER": "Session",
		"TOOLS_REGISTRY": " tools.json ", "TOOLS_RULES": "rules.json", "GEM_DOMAINS": "domains.json", "WORKER_ID": "wörker 1",
		"WORKER_CONCURRENCY": "1000", "WORKER_CONNECTIONS": "12", "TOOLS_POLL_INTERVAL_MS": "10",
		"WORKER_SHUTDOWN_GRACE": "1m30s", "LOG_LEVEL": "WARN", "LOG_FORMAT": "console",
	})
	want := &config.Config{
		DatabaseURL: "postgres://u:p@h/d", DirectURL: "host=h user=u", DatabasePooler: "session", ToolsRegistry: "tools.json",
		ToolsRules: "rules.json", GemDomains: "domains.json", WorkerID: "wörker 1",
		WorkerConcurrency: 1000, WorkerConnections: 12, PollIntervalMS: 10, ShutdownGrace: 90 * time.Second, LogLevel: "warn",
		LogFormat: "console",
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

func TestCallsShareNoMoreConnectionsThanThereAreCalls(t *testing.T) {
	for _, c := range []struct{ concurrency, connections, want int }{{10, 0, 10}, {100, 4, 4}, {2, 10, 2}} {
		cfg := config.Config{WorkerConcurrency: c.concurrency, WorkerConnections: c.connections}
		if got := cfg.CallConnections(); got != c.want {
			t.Errorf("%d calls, WORKER_CONNECTIONS %d: got %d, want %d", c.concurrency, c.connections, got, c.want)
		}
	}
}

func TestWhiteSpaceCountsAsUnset(t *testing.T) {
	blank := map[string]string{}
	for _, v := range config.Describe() {
		blank[v.Name] = " \t "
	}
	if diff := cmp.Diff(load(t, nil), load(t, blank)); diff != "" {
		t.Error(diff)
	}
	if got := os.Getenv("LOG_LEVEL"); got != " \t " {
		t.Errorf("Load changed the environment: %q", got)
	}
}

func TestWrongValues(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"DATABASE_URL", "postgres://user:hunter2@host:port/db", "may be a connection string"},
		{"DATABASE_URL", `"postgres://user:hunter2@host/db"`, "quotation mark"},
		{"DATABASE_URL", "mysql://user:hunter2@host/db?a=b", "something other than Postgres"},
		{"DATABASE_URL", "postgres://user:8@hunter2/x@host:5432/db", "with special characters of the password as %XX"},
		{"DATABASE_URL", "postgres://user:8@hunter2#x@host:5432/db", "taken for the host"},
		{"DATABASE_URL", "postgres://user:8/x@hunter2@host/db", "may be a connection string"},
		{"DATABASE_URL", "postgres://postgres.ref:[YOUR-PASSWORD]@host:6543/postgres", "[YOUR-PASSWORD]"},
		{"DATABASE_URL", "postgres://postgres:hunter2@aws-0-<region>.pooler.supabase.com:5432/postgres",
			"a name of your own"},
		{"DATABASE_URL", "postgres://user:hunter2%x@host:5432/db", "written %25"},
		{"DIRECT_URL", "hunter2", "may be a connection string"},
		{"DIRECT_URL", "user:hunter2@host:5432/db", "does not begin with postgres://"},
		{"DATABASE_POOLER", "statement", `is "statement"; it may be auto, none, session or transaction`},
		{"WORKER_ID", strings.Repeat("x", 101), "1 to 100 printable characters"},
		{"WORKER_ID", "a\x1bb", `"a\x1bb"`},
		{"WORKER_CONCURRENCY", "many", `is "many"; it may be a whole number from 1 to 1000`},
		{"WORKER_CONCURRENCY", "0", `is "0"`},
		{"WORKER_CONCURRENCY", "1001", `is "1001"`},
		{"WORKER_CONCURRENCY", "1.5", `is "1.5"`},
		{"WORKER_CONNECTIONS", "-1", `is "-1"; it may be a whole number from 0 to 1000`},
		{"WORKER_CONCURRENCY", "99999999999999999999", "may be"},
		{"TOOLS_POLL_INTERVAL_MS", "9", "from 10 to 60000"},
		{"TOOLS_POLL_INTERVAL_MS", "1s", "from 10 to 60000"},
		{"WORKER_SHUTDOWN_GRACE", "25", "such as 25s"},
		{"WORKER_SHUTDOWN_GRACE", "-1s", "from 0s to 1h"},
		{"WORKER_SHUTDOWN_GRACE", "61m", "from 0s to 1h"},
		{"LOG_LEVEL", "verbose", "debug, info, warn or error"},
		{"LOG_FORMAT", "xml", "json or console"},
	} {
		t.Run(c.name+" "+c.value, func(t *testing.T) {
			environment(t, map[string]string{c.name: c.value})
			_, err := config.Load()
			var invalid *config.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Problems) != 1 {
				t.Fatalf("Load: %v", err)
			}
			if !strings.HasPrefix(err.Error(), c.name+" is ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error lacks %q: %v", c.want, err)
			}
			if strings.Contains(err.Error(), "hunter2@") || strings.Contains(err.Error(), "hunter2/") ||
				strings.Contains(err.Error(), "hunter2#") || c.value == "hunter2" && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestAllWrongValuesAreReportedAtOnce(t *testing.T) {
	environment(t, map[string]string{"LOG_LEVEL": "x", "WORKER_CONCURRENCY": "x", "WORKER_SHUTDOWN_GRACE": "x",
		"DATABASE_URL": "x"})
	_, err := config.Load()
	var names []string
	for _, line := range strings.Split(fmt.Sprint(err), "\n") {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	if diff := cmp.Diff([]string{"DATABASE_URL", "WORKER_CONCURRENCY", "WORKER_SHUTDOWN_GRACE", "LOG_LEVEL"},
		names); diff != "" {
		t.Error(diff)
	}
}

func TestWorkerIDComesFromThePlatform(t *testing.T) {
	for _, c := range []struct{ set, render, want string }{
		{"mine", "srv-1", "mine"},
		{" ", "srv-1", "srv-1"},
		{"", "a\x1bb\n", "ab"},
		{"", strings.Repeat("é", 150), strings.Repeat("é", 100)},
	} {
		environment(t, map[string]string{"WORKER_ID": c.set, "RENDER_INSTANCE_ID": c.render})
		got, err := config.Load()
		if err != nil || got.WorkerID != c.want {
			t.Errorf("WorkerID = %q, %v; want %q", got.WorkerID, err, c.want)
		}
	}
}

func TestRequireDatabase(t *testing.T) {
	if err := load(t, nil).RequireDatabase(); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") ||
		!strings.Contains(err.Error(), "gem dev") {
		t.Errorf("unset: %v", err)
	}
	if err := load(t, map[string]string{"DATABASE_URL": "postgres://h/d"}).RequireDatabase(); err != nil {
		t.Errorf("set: %v", err)
	}
}

func TestSecretsAreNotLogged(t *testing.T) {
	c := load(t, map[string]string{"DATABASE_URL": "postgres://u:hunter2@h/d", "DIRECT_URL": "postgres://u:hunter2@h/d"})
	s := c.DatabaseURL
	out := stderr(t, func() {
		for _, format := range []string{"json", "console"} {
			c.LogFormat = format
			log := c.Logger()
			log.Info("x", zap.Any("s", s), zap.Any("p", &s), zap.Reflect("c", c), zap.Stringer("t", s),
				zap.Any("l", []handlers.Secret{s}))
			log.Sugar().Infow("x", "s", s)
			log.Sugar().Infof("%s %d %v", s, s, c)
		}
	})
	if strings.Contains(out, "hunter2") {
		t.Errorf("a secret is shown:\n%s", out)
	}
	if !strings.Contains(out, `"DatabaseURL":"[set]"`) {
		t.Errorf("the log does not show that it is set:\n%s", out)
	}
}

// stderr returns what is written to it meanwhile.
func stderr(t *testing.T, write func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = w
	defer func() { os.Stderr = old }()
	write()
	_ = w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLogger(t *testing.T) {
	text := stderr(t, func() {
		log := load(t, map[string]string{"LOG_LEVEL": "warn"}).Logger()
		log.Info("quiet")
		for range 500 { // no sampling
			log.Warn("call ended", zap.String("call_id", "1"), zap.Duration("duration", time.Second))
		}
	})
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 500 {
		t.Fatalf("%d lines", len(lines))
	}
	var line map[string]string
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.RFC3339Nano, line["time"]); err != nil || line["level"] != "warn" ||
		line["msg"] != "call ended" || line["call_id"] != "1" || line["duration"] != "1s" {
		t.Errorf("%v %v", line, err)
	}
	if text := stderr(t, func() {
		load(t, map[string]string{"LOG_FORMAT": "console"}).Logger().
			Info("hello")
	}); !strings.Contains(text, "INFO\thello") {
		t.Errorf("console: %q", text)
	}
}

func TestALogLineIsOneLineWhateverOthersSaid(t *testing.T) {
	const hostile = "it said\r\n00:00:00.000\tINFO\tall is " +
		"well\x1b[2J\u009b2J\u202e\u2028\x7f\u115f\ufe01\U000e0041\ue000end"
	for _, format := range []string{"console", "json"} {
		text := stderr(t, func() {
			log := load(t, map[string]string{"LOG_FORMAT": format}).Logger().With(zap.String("tool", hostile))
			log.Info(hostile, zap.String("call", hostile), zap.Error(errors.New(hostile)),
				zap.Strings(hostile, []string{hostile}))
		})
		if strings.Count(text, "\n") != 1 || strings.Contains(text, "\x1b") || strings.Contains(text, "\r") ||
			!strings.Contains(text, "it said") {
			t.Errorf("%s: %q", format, text)
		}
		if strings.ContainsAny(text, "\u009b\u202e\u2028\x7f\u115f\ufe01\U000e0041\ue000") ||
			strings.Count(text, "\tINFO\t") > 1 {
			t.Errorf("%s: %q", format, text)
		}
		var line map[string]any
		if format == "json" && (json.Unmarshal([]byte(text), &line) != nil || line["msg"] != hostile ||
			line["tool"] != hostile) {
			t.Errorf("%s does not hold what was said", text)
		}
	}
}

func TestEveryVariableIsDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range config.Describe() {
		if v.Name == "" || v.Description == "" || !strings.HasSuffix(v.Description, ".") || seen[v.Name] {
			t.Errorf("%+v", v)
		}
		seen[v.Name] = true
		if secret := strings.HasSuffix(v.Name, "_URL"); secret && !v.Secret && v.Name != "GEM_DASHBOARD_URL" {
			t.Errorf("%s is not secret", v.Name)
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d variables", len(seen))
	}
}
