// Package config reads GEM's configuration from the environment. [Config] lists every variable.
package config

import (
	"cmp"
	"time"

	"github.com/gemworker/gem/handlers"
)

// Config is the configuration of a GEM process. Its tags are the one place that states a variable's name, default,
// description (desc) and what it may be (may); see [Describe].
//
// A variable of only white space counts as unset. Text is trimmed, and all values are checked, by [Load].
type Config struct {
	DatabaseURL handlers.Secret `envconfig:"DATABASE_URL" may:"a connection string such as postgres://user:password@host:5432/database, with special characters of the password as %XX" desc:"The Postgres that holds everything, direct or through a pooler."`
	DirectURL   handlers.Secret `envconfig:"DIRECT_URL" may:"a connection string such as postgres://user:password@host:5432/database, with special characters of the password as %XX" desc:"The same Postgres without a pooler, for migrations and notifications; set it where DATABASE_URL is a pooler in transaction mode."`

	DatabasePooler string `envconfig:"DATABASE_POOLER" default:"auto" may:"auto, none, session or transaction" desc:"The mode of the pooler that DATABASE_URL leads to, or none. By default the worker finds out and logs what it found."`

	ToolsRegistry string `envconfig:"TOOLS_REGISTRY" may:"the path of a file, or the JSON itself" desc:"The registry. By default tools.registry.json in the working directory, otherwise the one built into the program."`
	ToolsRules    string `envconfig:"TOOLS_RULES" may:"the path of a file, or the JSON itself" desc:"The rules for calls. By default rules.json in the working directory, otherwise those built into the program, if any."`
	GemDomains    string `envconfig:"GEM_DOMAINS" may:"the path of a file, or the JSON itself" desc:"The domains that live behind HTTP or in MCP servers. By default domains.json in the working directory, otherwise those built into the program, if any."`
	GemNotify     string `envconfig:"GEM_NOTIFY" may:"the path of a file, or the JSON itself" desc:"Who hears about questions, failures and others. By default notify.json in the working directory, if there is one."`
	DashboardURL  string `envconfig:"GEM_DASHBOARD_URL" may:"a URL such as https://ops.example.com/gem" desc:"The URL under which people see the dashboard, for links in notices. By default they have none."`

	WorkerID          string        `envconfig:"WORKER_ID" may:"1 to 100 printable characters" desc:"The name of this worker. By default RENDER_INSTANCE_ID, otherwise the name of the host."`
	WorkerConcurrency int           `envconfig:"WORKER_CONCURRENCY" default:"10" may:"a whole number from 1 to 1000" desc:"How many calls run at once."`
	WorkerConnections int           `envconfig:"WORKER_CONNECTIONS" default:"0" may:"a whole number from 0 to 1000" desc:"The connections to Postgres that running calls share; 0 means WORKER_CONCURRENCY. The worker itself uses three more."`
	PollIntervalMS    int           `envconfig:"TOOLS_POLL_INTERVAL_MS" default:"1000" may:"a whole number from 10 to 60000" desc:"Milliseconds between two polls of an idle worker."`
	ShutdownGrace     time.Duration `envconfig:"WORKER_SHUTDOWN_GRACE" default:"25s" may:"a duration from 0s to 1h, such as 25s" desc:"The time that running calls have after SIGTERM. It should be less than the platform waits before it kills the process."`

	LogLevel  string `envconfig:"LOG_LEVEL" default:"info" may:"debug, info, warn or error" desc:"The least severe messages that are logged."`
	LogFormat string `envconfig:"LOG_FORMAT" default:"json" may:"json or console" desc:"json for machines, console for people."`
}

// PollInterval is the time between two polls of an idle worker.
func (c *Config) PollInterval() time.Duration {
	return time.Duration(c.PollIntervalMS) * time.Millisecond
}

// CallConnections is how many connections running calls share: at most one a call.
func (c *Config) CallConnections() int {
	return min(cmp.Or(c.WorkerConnections, c.WorkerConcurrency), c.WorkerConcurrency)
}

// RequireDatabase returns an error with the solution if no database is configured.
func (c *Config) RequireDatabase() error {
	if c.DatabaseURL == "" {
		return &InvalidError{Problems: []string{"DATABASE_URL is not set: set it to the connection string of your " +
			"Postgres, " +
			"such as postgres://user:password@host:5432/database, or run `gem dev` in this folder, which starts a private one"}}
	}
	return nil
}
