package config

import (
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/kelseyhightower/envconfig"
)

// InvalidError is the error of an environment with wrong values.
type InvalidError struct {
	// Problems are sentences, one a variable in the order of [Config]: its name, what it is unless that is secret, and what
	// it may be.
	Problems []string
}

// Error prints one problem a line.
func (e *InvalidError) Error() string { return strings.Join(e.Problems, "\n") }

// Load reads the environment. Its error is an [*InvalidError] with every wrong value; no value is required.
func Load() (*Config, error) {
	c := &Config{}
	l := loader{wrong: map[string]string{}}
	fields := reflect.TypeFor[Config]()
	for i := range fields.NumField() {
		l.read(fields.Field(i), reflect.ValueOf(c).Elem().Field(i))
	}
	l.check(c)
	if len(l.wrong) > 0 {
		return nil, l.error()
	}
	if c.WorkerID == "" {
		c.WorkerID = defaultWorkerID()
	}
	return c, nil
}

// loader collects the names of the variables that are wrong, with a reason that may be empty.
type loader struct{ wrong map[string]string }

// read lets envconfig read one field. It stops at its first error, so each field is a struct of its own to it.
func (l *loader) read(field reflect.StructField, into reflect.Value) {
	name := field.Tag.Get("envconfig")
	if strings.TrimSpace(os.Getenv(name)) == "" {
		// No variable can have this name, so that envconfig takes the default.
		field.Tag = reflect.StructTag(fmt.Sprintf(`envconfig:"=" default:%q`, field.Tag.Get("default")))
	}
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: field.Name, Type: field.Type, Tag: field.Tag}}))
	if err := envconfig.Process("", one.Interface()); err != nil {
		l.wrong[name] = "" // envconfig's error shows the value, which may be secret
	}
	value := one.Elem().Field(0)
	if value.Kind() == reflect.String {
		value.SetString(strings.TrimSpace(value.String()))
	}
	into.Set(value)
}

// is notes a variable as wrong unless it is right. A value that could not be read at all is wrong already.
func (l *loader) is(right bool, name string) {
	if _, known := l.wrong[name]; !right && !known {
		l.wrong[name] = ""
	}
}

// check holds every rule of the tags named may.
func (l *loader) check(c *Config) {
	l.database("DATABASE_URL", c.DatabaseURL)
	l.database("DIRECT_URL", c.DirectURL)
	c.DatabasePooler = strings.ToLower(c.DatabasePooler)
	l.is(slices.Contains([]string{"auto", "none", "session", "transaction"}, c.DatabasePooler), "DATABASE_POOLER")
	l.is(utf8.RuneCountInString(c.WorkerID) <= maxWorkerID && printable(c.WorkerID), "WORKER_ID")
	l.is(within(c.WorkerConcurrency, 1, 1000), "WORKER_CONCURRENCY")
	l.is(within(c.WorkerConnections, 0, 1000), "WORKER_CONNECTIONS")
	l.is(within(c.PollIntervalMS, 10, 60_000), "TOOLS_POLL_INTERVAL_MS")
	l.is(c.ShutdownGrace >= 0 && c.ShutdownGrace <= time.Hour, "WORKER_SHUTDOWN_GRACE")

	c.LogLevel, c.LogFormat = strings.ToLower(c.LogLevel), strings.ToLower(c.LogFormat)
	l.is(slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel), "LOG_LEVEL")
	l.is(slices.Contains([]string{"json", "console"}, c.LogFormat), "LOG_FORMAT")

	l.is(c.SMTPHost == "" || isHost(c.SMTPHost), "SMTP_HOST")
	l.is(within(c.SMTPPort, 1, 65_535), "SMTP_PORT")
	_, err := mail.ParseAddress(c.SMTPFrom)
	l.is(c.SMTPFrom == "" || err == nil, "SMTP_FROM")
	c.SMTPTLS = strings.ToLower(c.SMTPTLS)
	l.is(slices.Contains([]string{"starttls", "tls", "none"}, c.SMTPTLS), "SMTP_TLS")

	l.is(c.TwilioAccountSID == "" || plainWord.MatchString(c.TwilioAccountSID), "TWILIO_ACCOUNT_SID")
	l.is(printable(c.TwilioFrom), "TWILIO_FROM")
	l.is(isBaseURL(c.TwilioBaseURL), "TWILIO_BASE_URL")
	c.TwilioBaseURL = strings.TrimRight(c.TwilioBaseURL, "/")

	for i, host := range c.HTTPAllowedHosts {
		c.HTTPAllowedHosts[i] = strings.ToLower(strings.TrimSpace(host))
	}
	c.HTTPAllowedHosts = slices.DeleteFunc(c.HTTPAllowedHosts, func(host string) bool { return host == "" })
	for _, host := range c.HTTPAllowedHosts {
		l.is(isHost(host) || isHostPort(host), "HTTP_ALLOWED_HOSTS")
	}
}

// error puts the wrong variables into sentences.
func (l *loader) error() error {
	e := &InvalidError{}
	for _, v := range variables() {
		reason, wrong := l.wrong[v.Name]
		if !wrong {
			continue
		}
		is := "is " + shorten(os.Getenv(v.Name))
		if v.Secret {
			is = "is set to what it can not be (its value is not shown)"
		}
		if reason != "" {
			is += ": " + reason
		}
		e.Problems = append(e.Problems, fmt.Sprintf("%s %s; it may be %s", v.Name, is, v.may))
	}
	return e
}

func shorten(value string) string {
	if runes := []rune(value); len(runes) > 80 {
		value = string(runes[:79]) + "…"
	}
	return strconv.Quote(value)
}

// database checks a connection string. pgx's own errors quote it, so none of their words are passed on.
func (l *loader) database(name string, value Secret) {
	if value == "" {
		return
	}
	dsn := value.Reveal()
	scheme, _, isURL := strings.Cut(dsn, "://")
	parsed, err := pgx.ParseConfig(dsn)
	_, badEscape := url.PathUnescape(dsn)
	switch {
	case strings.ContainsAny(dsn[:1], "\"'`"):
		l.wrong[name] = "it begins with a quotation mark, which does not belong to it"
	case isURL && scheme != "postgres" && scheme != "postgresql" && !strings.ContainsAny(scheme, "= "):
		l.wrong[name] = "it is the URL of something else than Postgres"
	case strings.Contains(dsn, "[YOUR-PASSWORD]"):
		l.wrong[name] = "it still has [YOUR-PASSWORD] where the password belongs"
	case err == nil && isURL && strayAt(dsn):
		l.wrong[name] = "a part of the password was taken for the host"
	case err == nil && strings.ContainsAny(parsed.Host, "<>"):
		l.wrong[name] = "its host has a part in <…>, which stands for a name of your own"
	case err != nil && isURL && badEscape != nil:
		l.wrong[name] = "it has a % without two digits of a code behind it; a % of the password itself is written %25"
	case err != nil && !isURL && !strings.Contains(dsn, "="):
		l.wrong[name] = "it does not begin with postgres://"
	case err != nil:
		l.wrong[name] = "pgx can not read it, or a file that it names, or a variable of libpq such as PGSSLMODE"
	}
}

// strayAt reports whether a URL has an @ behind its host: a slash or another special character ended the host early, inside
// a password that was not written with %XX. The rest of that password would be looked up, and logged, as a host's name.
func strayAt(dsn string) bool {
	u, err := url.Parse(dsn)
	return err == nil && strings.Contains(u.EscapedPath()+u.Fragment, "@")
}

const maxWorkerID = 100 // characters

// defaultWorkerID never fails: what the platform calls this process is made to fit.
func defaultWorkerID() string {
	id := strings.TrimSpace(os.Getenv("RENDER_INSTANCE_ID"))
	if id == "" {
		id, _ = os.Hostname()
	}
	id = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, id)
	if runes := []rune(id); len(runes) > maxWorkerID {
		id = string(runes[:maxWorkerID])
	}
	if id == "" {
		id = "worker"
	}
	return id
}

func within(n, lowest, highest int) bool { return lowest <= n && n <= highest }

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

var (
	plainWord = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	hostName  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
)

// isHost accepts names and addresses, an IPv6 address with or without brackets.
func isHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		return ok && err == nil && addr.Is6()
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= 253 && hostName.MatchString(s)
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || !isHost(host) {
		return false
	}
	n, err := strconv.Atoi(port)
	return err == nil && within(n, 1, 65_535)
}

func isBaseURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && isHost(u.Hostname()) &&
		u.User == nil && u.RawQuery == "" && u.Fragment == ""
}
