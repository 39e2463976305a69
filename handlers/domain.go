package handlers

import (
	"context"
	"io/fs"
	"net/http"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
)

// Domain is a domain of tools that needs more than its methods: configuration, connections or tables. List any other
// domain as the plain value whose methods are its tools. A function that returns a Domain should make a new one each
// time, because GEM configures and opens it in place.
type Domain struct {
	// Tools is the value whose exported methods are the tools. The name of its type is the domain's name.
	Tools any
	// Config, if set, points to a struct that binding.Configure fills from the environment. Each field is read from one
	// variable, which the tags of the field describe: `envconfig` is the variable's name, `default` its default value,
	// and `desc` a sentence for `gem worker --help`. The tag `may` describes the possible values: it completes the words
	// "it may be" in the error for an invalid value. A field can be of any type that github.com/kelseyhightower/envconfig
	// reads; a [Secret] is never shown, and a field without envconfig is left alone. A type with a method Decode(string)
	// error parses its own value. A struct may have a method Wrong() map[string]string, which returns the unusable
	// variables, each with a reason that may be empty. It may also have a method Lookup(func(variable string) string),
	// for environment variables that are named in a file that the domain reads. GEM calls Lookup after setting the fields
	// and before Wrong. It passes a function that returns the value of any variable, trimmed of white space. If a value
	// may be secret, Lookup must make it a [Secret] at once.
	Config any
	// Open, if set, is called once, after Config was filled and before the worker starts. gem dev calls the Open of the
	// domain llm again when its routes file has changed.
	Open func(Env) error
	// Check, if set, is called at each start of a worker, after Postgres has become available. If it returns an error,
	// the worker does not start.
	Check func(context.Context, DB) error
	// Tables, if set, holds the domain's tables: SQL files in its root, named NNNNN_name.sql and numbered from 1. `gem
	// migrate` applies each once, in a transaction, if the registry has a tool of the domain. To have old rows removed,
	// define the SQL function gem_<domain>.prune(before timestamptz, most integer), which removes at most `most` rows
	// and returns their number as an integer. `gem prune` calls it until it returns 0.
	Tables fs.FS
	// Remote lists the methods that use a remote service, such as SendEmail; "*" means all methods. By default, GEM
	// retries their calls more often and for longer; the field retry of a registry entry overrides this.
	Remote []string
	// Grants are the rights of the role gem_worker on the tables, one string per table, such as "select, insert on
	// public.notes".
	Grants []string
}

// Env has the resources that a process shares with its domains. All fields except Isolated are always set.
type Env struct {
	// Pool is the pool that all running calls share. A method without a Tx can run its own statements on it.
	Pool      *pgxpool.Pool
	Log       *zap.Logger
	Transport http.RoundTripper
	// Meter makes the instruments of a domain.
	Meter metric.Meter
	// Tables has the names of the tables in the Grants of all domains that have a tool in the registry.
	Tables []string
	// Isolated means that a domain must not contact other services or read files in the working directory, as in gem
	// demo. [Domain.Config] then has only the values that gem demo sets, and none from the
	// environment.
	Isolated bool
}

// Name returns the domain's name in lower case, such as leads.
func (d Domain) Name() string { return strings.ToLower(d.TypeName()) }

// TypeName returns the name of the type whose methods are the domain's tools.
func (d Domain) TypeName() string {
	t := reflect.TypeOf(d.Tools)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}
