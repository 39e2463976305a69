package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/config"
)

// clear unsets every setting for the time of a test.
func clear(t *testing.T) {
	t.Helper()
	for _, v := range config.Describe() {
		t.Setenv(v.Name, "")
	}
	t.Setenv("RENDER_INSTANCE_ID", "")
}

func TestNothingNeedsToBeSet(t *testing.T) {
	clear(t)
	t.Setenv("WORKER_CONCURRENCY", "  ")
	c, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	if c.WorkerConcurrency != 10 || c.PollInterval() != time.Second || c.ShutdownGrace != 25*time.Second || c.LogLevel != "info" ||
		c.SMTPPort != 587 || c.WorkerID == "" || len(c.HTTPAllowedHosts) != 0 {
		t.Errorf("%+v", *c)
	}
	if err := c.RequireDatabase(); err == nil || !strings.Contains(err.Error(), "gem dev") {
		t.Errorf("got %v", err)
	}
}

func TestTheEnvironmentIsRead(t *testing.T) {
	clear(t)
	for name, value := range map[string]string{
		"DATABASE_URL": "postgres://u:hunter2@localhost/d", "WORKER_CONCURRENCY": "3", "WORKER_SHUTDOWN_GRACE": "2m",
		"RENDER_INSTANCE_ID": "srv-1", "HTTP_ALLOWED_HOSTS": "api.example.com, 127.0.0.1:9000,", "TOOLS_POLL_INTERVAL_MS": "250",
	} {
		t.Setenv(name, value)
	}
	c, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	if c.WorkerConcurrency != 3 || c.ShutdownGrace != 2*time.Minute || c.WorkerID != "srv-1" || len(c.HTTPAllowedHosts) != 2 ||
		c.HTTPAllowedHosts[1] != "127.0.0.1:9000" || c.PollInterval() != 250*time.Millisecond || c.RequireDatabase() != nil {
		t.Errorf("%d %s %s %q", c.WorkerConcurrency, c.ShutdownGrace, c.WorkerID, c.HTTPAllowedHosts)
	}
}

func TestWrongValuesAreRefusedWithTheirNameAndWhatTheyMayBe(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"WORKER_CONCURRENCY", "many", `WORKER_CONCURRENCY is "many", and must be a whole number`},
		{"WORKER_CONCURRENCY", "0", "WORKER_CONCURRENCY is 0, and must be a whole number from 1 to 1000"},
		{"TOOLS_POLL_INTERVAL_MS", "5", "from 10 to 60000"},
		{"WORKER_SHUTDOWN_GRACE", "25", "a duration such as 25s or 2m"},
		{"WORKER_SHUTDOWN_GRACE", "-1s", "from 0s to 1h"},
		{"WORKER_ID", strings.Repeat("x", 101), "at most 100 printable characters"},
		{"LOG_LEVEL", "loud", `LOG_LEVEL is "loud", and must be one of debug, info, warn, error`},
		{"LOG_FORMAT", "xml", "one of json, console"},
		{"SMTP_TLS", "maybe", "one of starttls, tls, none"},
		{"SMTP_PORT", "70000", "from 1 to 65535"},
		{"SMTP_USERNAME", "me", "belong together"},
		{"TWILIO_BASE_URL", "api.twilio.com", "https://api.twilio.com"},
		{"HTTP_ALLOWED_HOSTS", "http://example.com/x", "HTTP_ALLOWED_HOSTS"},
		{"DATABASE_URL", "postgres://u:hunter2@[", "DATABASE_URL is not a Postgres connection string"},
		{"DIRECT_URL", "mysql://u:hunter2@h/d", "DIRECT_URL is not a Postgres connection string"},
	} {
		t.Run(c.name+" "+c.value, func(t *testing.T) {
			clear(t)
			t.Setenv(c.name, c.value)
			_, err := config.Load()
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWrongValuesAreNamedTogether(t *testing.T) {
	clear(t)
	t.Setenv("LOG_LEVEL", "loud")
	t.Setenv("SMTP_TLS", "maybe")
	if _, err := config.Load(); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") || !strings.Contains(err.Error(), "SMTP_TLS") {
		t.Errorf("got %v", err)
	}
}

func TestNoWayOfPrintingTheSettingsShowsASecret(t *testing.T) {
	clear(t)
	for _, v := range config.Describe() {
		if v.Secret {
			t.Setenv(v.Name, "postgres://u:hunter2@localhost/d")
		}
	}
	t.Setenv("SMTP_USERNAME", "me")
	c, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v %#v %s", *c, *c, *c), string(encoded)} {
		if strings.Contains(shown, "hunter2") || !strings.Contains(shown, "DATABASE_URL") {
			t.Errorf("shown: %s", shown)
		}
	}
}

func TestEverySettingIsDescribed(t *testing.T) {
	for _, v := range config.Describe() {
		if v.Name == "" || v.Description == "" {
			t.Errorf("%+v", v)
		}
	}
}
