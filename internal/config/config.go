// Package config reads GEM's settings from the environment: one struct, whose tags are also what --help prints.
package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// Config is every setting. What is not set has its default; what is wrong is refused by [Load].
type Config struct {
	DatabaseURL   string `envconfig:"DATABASE_URL" secret:"true" desc:"Postgres, direct or through a pooler: postgres://user:password@host:5432/database"`
	DirectURL     string `envconfig:"DIRECT_URL" secret:"true" desc:"Postgres without a transaction pooler, for notifications and migrations, where DATABASE_URL leads through one"`
	ToolsRegistry string `envconfig:"TOOLS_REGISTRY" desc:"path of the registry; by default tools.registry.json in the working directory, else the one built in"`

	WorkerID          string        `envconfig:"WORKER_ID" desc:"name of this worker, at most 100 characters; by default RENDER_INSTANCE_ID, else the host's name"`
	WorkerConcurrency int           `envconfig:"WORKER_CONCURRENCY" default:"10" desc:"calls that run at once, 1 to 1000; the worker takes 3 connections more than that"`
	PollIntervalMS    int           `envconfig:"TOOLS_POLL_INTERVAL_MS" default:"1000" desc:"milliseconds between looks at the queue when no notification comes, 10 to 60000"`
	ShutdownGrace     time.Duration `envconfig:"WORKER_SHUTDOWN_GRACE" default:"25s" desc:"what running calls get to end after SIGTERM, 0s to 1h; less than the platform's own limit"`

	LogLevel  string `envconfig:"LOG_LEVEL" default:"info" desc:"debug, info, warn or error"`
	LogFormat string `envconfig:"LOG_FORMAT" default:"json" desc:"json or console"`

	SMTPHost     string `envconfig:"SMTP_HOST" desc:"mail server of comms.send_email"`
	SMTPPort     int    `envconfig:"SMTP_PORT" default:"587" desc:"its port, 1 to 65535"`
	SMTPUsername string `envconfig:"SMTP_USERNAME" desc:"its user, where it wants one"`
	SMTPPassword string `envconfig:"SMTP_PASSWORD" secret:"true" desc:"and the password"`
	SMTPFrom     string `envconfig:"SMTP_FROM" desc:"sender: office@example.com, or Acme <office@example.com>"`
	SMTPTLS      string `envconfig:"SMTP_TLS" default:"starttls" desc:"starttls, tls or none"`

	TwilioAccountSID string `envconfig:"TWILIO_ACCOUNT_SID" desc:"account of comms.send_sms"`
	TwilioAuthToken  string `envconfig:"TWILIO_AUTH_TOKEN" secret:"true" desc:"its token"`
	TwilioFrom       string `envconfig:"TWILIO_FROM" desc:"a number of the account, such as +15551234567"`
	TwilioBaseURL    string `envconfig:"TWILIO_BASE_URL" default:"https://api.twilio.com" desc:"where its API is"`

	HTTPAllowedHosts []string `envconfig:"HTTP_ALLOWED_HOSTS" desc:"what http.request may reach, by commas: host, or host:port; nothing by default"`
}

// Variable is a setting as --help shows it.
type Variable struct {
	Name, Default, Description string
	Secret                     bool // its value is never shown
}

// Describe lists the settings in the order of the struct.
func Describe() []Variable {
	var all []Variable
	for field := range reflect.TypeFor[Config]().Fields() {
		all = append(all, Variable{
			Name:        field.Tag.Get("envconfig"),
			Default:     field.Tag.Get("default"),
			Description: field.Tag.Get("desc"),
			Secret:      field.Tag.Get("secret") == "true",
		})
	}
	return all
}

// InvalidError names every wrong setting: what it is, and what it may be. It never repeats a secret.
type InvalidError struct{ Problems []string }

func (e *InvalidError) Error() string {
	return "these settings are wrong:\n  " + strings.Join(e.Problems, "\n  ")
}

// Load reads the environment. The error is an [*InvalidError].
func Load() (*Config, error) {
	// A variable that holds only white space counts as unset: that is what is left of one when its line was emptied.
	for _, v := range Describe() {
		if value, set := os.LookupEnv(v.Name); set && strings.TrimSpace(value) == "" {
			_ = os.Unsetenv(v.Name)
		}
	}
	var c Config
	var wrong InvalidError
	if err := envconfig.Process("", &c); err != nil {
		var parse *envconfig.ParseError
		if !errors.As(err, &parse) {
			return nil, err
		}
		// envconfig stops at the first value that it can not read; the others are checked once this one is mended.
		wrong.Problems = append(wrong.Problems, fmt.Sprintf("%s is %q, and must be %s", parse.KeyName, parse.Value, kind(parse.TypeName)))
		return nil, &wrong
	}
	c.fill()
	wrong.Problems = c.check()
	if len(wrong.Problems) > 0 {
		return nil, &wrong
	}
	return &c, nil
}

func kind(typeName string) string {
	switch typeName {
	case "int":
		return "a whole number"
	case "time.Duration":
		return "a duration such as 25s or 2m"
	}
	return "a " + typeName
}

// fill sets the defaults that depend on the machine.
func (c *Config) fill() {
	if c.WorkerID == "" {
		c.WorkerID = os.Getenv("RENDER_INSTANCE_ID")
	}
	if c.WorkerID == "" {
		c.WorkerID, _ = os.Hostname()
	}
	hosts := c.HTTPAllowedHosts[:0]
	for _, h := range c.HTTPAllowedHosts {
		if h = strings.TrimSpace(h); h != "" {
			hosts = append(hosts, h)
		}
	}
	c.HTTPAllowedHosts = hosts
}

// PollInterval is TOOLS_POLL_INTERVAL_MS.
func (c *Config) PollInterval() time.Duration {
	return time.Duration(c.PollIntervalMS) * time.Millisecond
}

// String keeps the settings out of logs and errors: it names those that are set.
func (c Config) String() string {
	var set []string
	for field, value := range reflect.ValueOf(c).Fields() {
		if !value.IsZero() {
			set = append(set, field.Tag.Get("envconfig"))
		}
	}
	return "config{" + strings.Join(set, " ") + "}"
}

// GoString is [Config.String], for %#v.
func (c Config) GoString() string { return c.String() }

// MarshalJSON is [Config.String], for loggers that write JSON.
func (c Config) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", c.String()), nil }

// RequireDatabase says what to do when DATABASE_URL is not set.
func (c *Config) RequireDatabase() error {
	if c.DatabaseURL == "" {
		return errors.New("DATABASE_URL is not set: set it to a Postgres connection string, or run `gem dev` in another terminal and use the one it prints")
	}
	return nil
}
