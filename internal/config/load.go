package config

import (
	"cmp"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/jackc/pgx/v5"
)

// InvalidError is the error of an environment with wrong values, one problem a line.
type InvalidError = envvar.InvalidError

// Load reads the environment. Its error is an [*InvalidError] with every wrong value; no value is required.
func Load() (*Config, error) {
	c := &Config{}
	if err := envvar.Read(os.Getenv, c); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	platform := cmp.Or(strings.TrimSpace(os.Getenv("RENDER_INSTANCE_ID")), host)
	c.WorkerID = cmp.Or(c.WorkerID, workerID(platform), "worker")
	return c, nil
}

// Describe lists the variables in the order of [Config].
func Describe() []envvar.Variable { return envvar.Describe(&Config{}) }

// Wrong returns the rule of each tag named may, for [envvar.Read].
func (c *Config) Wrong() map[string]string {
	c.DatabasePooler, c.LogLevel, c.LogFormat = strings.ToLower(c.DatabasePooler), strings.ToLower(c.LogLevel),
		strings.ToLower(c.LogFormat)
	wrong := map[string]string{}
	for name, value := range map[string]handlers.Secret{"DATABASE_URL": c.DatabaseURL, "DIRECT_URL": c.DirectURL} {
		if reason := database(value.Reveal()); reason != "" {
			wrong[name] = reason
		}
	}
	for name, right := range map[string]bool{
		"DATABASE_POOLER":        slices.Contains([]string{"auto", "none", "session", "transaction"}, c.DatabasePooler),
		"WORKER_ID":              c.WorkerID == workerID(c.WorkerID),
		"WORKER_CONCURRENCY":     within(c.WorkerConcurrency, 1, 1000),
		"WORKER_CONNECTIONS":     within(c.WorkerConnections, 0, 1000),
		"TOOLS_POLL_INTERVAL_MS": within(c.PollIntervalMS, 10, 60_000),
		"WORKER_SHUTDOWN_GRACE":  c.ShutdownGrace >= 0 && c.ShutdownGrace <= time.Hour,
		"LOG_LEVEL":              slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel),
		"LOG_FORMAT":             slices.Contains([]string{"json", "console"}, c.LogFormat),
	} {
		if !right {
			wrong[name] = ""
		}
	}
	return wrong
}

// database returns why a connection string cannot be used, or "". It passes none of pgx's errors on, since they quote
// the string.
func database(dsn string) (reason string) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	parsed, err := pgx.ParseConfig(dsn)
	_, badEscape := url.PathUnescape(dsn)
	switch {
	case dsn == "":
		return ""
	case strings.ContainsAny(dsn[:1], "\"'`"):
		return "it begins with a quotation mark, which does not belong to it"
	case isURL && scheme != "postgres" && scheme != "postgresql" && !strings.ContainsAny(scheme, "= "):
		return "it is the URL of something other than Postgres"
	case strings.Contains(dsn, "[YOUR-PASSWORD]"):
		return "it still has [YOUR-PASSWORD] where the password belongs"
	case err == nil && isURL && strayAt(dsn):
		return "a part of the password was taken for the host"
	case err == nil && strings.ContainsAny(parsed.Host, "<>"):
		return "its host has a part in <…>, which stands for a name of your own"
	case err == nil:
		return ""
	case isURL && badEscape != nil:
		return "it has a % without two digits of a code behind it; a % of the password itself is written %25"
	case !isURL && !strings.Contains(dsn, "="):
		return "it does not begin with postgres://"
	}
	return "pgx cannot read it, or a file that it names, or a variable of libpq such as PGSSLMODE"
}

// strayAt reports whether a URL has an @ after its host: a slash or another special character, in a password that was
// not written with %XX, ended the host early. The beginning of that password would be resolved, and logged, as the
// host.
func strayAt(dsn string) bool {
	u, err := url.Parse(dsn)
	return err == nil && strings.Contains(u.EscapedPath()+u.Fragment, "@")
}

// workerID returns the part of a name that can be a worker's: 100 printable characters.
func workerID(name string) string {
	printable := []rune(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name))
	return string(printable[:min(len(printable), 100)])
}

func within(n, lowest, highest int) bool { return lowest <= n && n <= highest }
