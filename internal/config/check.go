package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gemworker/gem/handlers"
	"github.com/jackc/pgx/v5/pgxpool"
)

// check returns a line for each wrong setting.
func (c *Config) check() []string {
	var problems []string
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	within := func(name string, value, lowest, highest int) {
		bad(value >= lowest && value <= highest, "%s is %d, and must be a whole number from %d to %d", name, value, lowest, highest)
	}
	oneOf := func(name, value string, values ...string) {
		bad(slices.Contains(values, value), "%s is %q, and must be one of %s", name, value, strings.Join(values, ", "))
	}
	database := func(name, value string) {
		if value != "" {
			_, err := pgxpool.ParseConfig(value) // its error may repeat parts of the value
			bad(err == nil, "%s is not a Postgres connection string: it has the form postgres://user:password@host:5432/database", name)
		}
	}

	database("DATABASE_URL", c.DatabaseURL)
	database("DIRECT_URL", c.DirectURL)
	bad(len(c.WorkerID) <= 100 && !strings.ContainsFunc(c.WorkerID, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }),
		"WORKER_ID must be at most 100 printable characters")
	within("WORKER_CONCURRENCY", c.WorkerConcurrency, 1, 1000)
	within("TOOLS_POLL_INTERVAL_MS", c.PollIntervalMS, 10, 60_000)
	bad(c.ShutdownGrace >= 0 && c.ShutdownGrace <= time.Hour, "WORKER_SHUTDOWN_GRACE is %s, and must be from 0s to 1h", c.ShutdownGrace)
	oneOf("LOG_LEVEL", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("LOG_FORMAT", c.LogFormat, "json", "console")
	within("SMTP_PORT", c.SMTPPort, 1, 65535)
	oneOf("SMTP_TLS", c.SMTPTLS, "starttls", "tls", "none")
	bad((c.SMTPUsername == "") == (c.SMTPPassword == ""), "SMTP_USERNAME and SMTP_PASSWORD belong together: set both, or neither")
	base, err := url.Parse(c.TwilioBaseURL)
	bad(err == nil && (base.Scheme == "https" || base.Scheme == "http") && base.Host != "" && base.User == nil,
		"TWILIO_BASE_URL must be an address such as https://api.twilio.com")
	if err := (handlers.HTTPConfig{AllowedHosts: c.HTTPAllowedHosts}).Validate(); err != nil {
		problems = append(problems, "HTTP_ALLOWED_HOSTS: "+err.Error())
	}
	return problems
}
