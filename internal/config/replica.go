package config

import "github.com/gemworker/gem/handlers"

// Replica configures the standby of gem dashboard, gem list and gem audit. They also read [Config].
type Replica struct {
	URL handlers.Secret `envconfig:"READ_DATABASE_URL" may:"a connection string such as postgres://user:password@host:5432/database, with special characters of the password as %XX" desc:"A standby of the same Postgres, from which lists and audits are read."`
}

// Wrong returns the variables with unusable values, each with the reason. [envvar.Read] calls it.
func (c *Replica) Wrong() map[string]string {
	if reason := database(c.URL.Reveal()); reason != "" {
		return map[string]string{"READ_DATABASE_URL": reason}
	}
	return nil
}
